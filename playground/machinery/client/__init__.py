"""
The parts that all components use: client, informer, work queue and Events as in client-go, and their RBAC roles.
"""
