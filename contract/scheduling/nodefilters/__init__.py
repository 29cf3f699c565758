"""
The filters of kube-scheduler that look at one node: resources, host ports, declared features.

Each module reads a pod's needs, and checks whether a node satisfies them. `contract.scheduling.filters` runs them in
order, and also checks what has no module here: the node's name, taints, selectors. Pure.
"""
