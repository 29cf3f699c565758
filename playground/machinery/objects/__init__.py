"""
What components read in objects and write into them: Node objects, amounts of resources, conditions. Pure.
"""
