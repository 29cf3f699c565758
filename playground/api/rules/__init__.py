"""
What makes an object valid: decoding, formats, schemas and CEL rules of custom resources, the rules of built-in kinds.
"""
