"""
What every component uses: client, informer, work queue and Events as in client-go, and the components' RBAC roles.
"""
