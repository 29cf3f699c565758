"""
The controllers of workloads: Deployments, ReplicaSets, StatefulSets and Jobs.
"""
