"""
What lives behind the playground's API server: controllers, a scheduler and a stand-in for every node's kubelet.

`cluster.Machinery` starts and stops all of it. Everything talks to the API server alone, in process, the way the real
components talk to theirs, and nothing here knows about GPU fractions: a GPU is what a container's environment says to
the NVIDIA runtime, and an extended resource is a name with a number.
"""
