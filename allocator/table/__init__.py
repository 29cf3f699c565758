"""The table of all nodes in columns, on which the fast engine and the learned policies compute."""
