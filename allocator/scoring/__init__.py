"""
Chooses among the nodes and GPUs that fit if the policy learns from requests.

`classes` says what a share is on a card whose sides are memory and cores, `pricing` prices the shares, `tables` turns
the demand seen into numbers to look up, `estimator` watches the demand. `reference` judges one node by the tables and
is the specification; `ranking` gives the same answers for all nodes and remembers them until a node changes. Nothing
here reads a clock, does I/O or draws at random: the same requests and nodes always give the same decisions.
"""
