"""
Objects in memory: the store with its versions, selectors, and watches that resume from a version.
"""
