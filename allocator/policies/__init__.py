"""
Placement that learns what is asked for: the policies `fragmentation` and `value`.

`kinds` says what a share is on a card whose sides are memory and cores, `stock` prices the shares, `tables` turns the
demand seen into numbers to look up, `learning` watches the demand. `plain` judges one node by the tables and is the
specification; `ranks` gives the same answers for all nodes and remembers them until a node changes. Nothing here reads
a clock, does I/O or draws at random: the same requests and the same nodes always give the same decisions.
"""
