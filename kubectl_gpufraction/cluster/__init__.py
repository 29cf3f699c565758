"""The cluster as its objects describe it, and whether a node has room. Pure."""
