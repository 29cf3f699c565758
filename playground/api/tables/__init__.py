"""
The tables that kubectl prints: the columns of each kind.
"""
