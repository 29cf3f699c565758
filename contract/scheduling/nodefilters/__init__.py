"""
The filters of kube-scheduler that look at one node: resources, host ports, declared features.

Each module says what a pod needs, and whether a node has it. `contract.scheduling.filters` runs them in their order,
with what needs no module of its own: the node's name, taints, selectors. Pure.
"""
