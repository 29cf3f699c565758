"""
The parts of objects that components read and write: Node objects, amounts of resources, conditions. Pure.
"""
