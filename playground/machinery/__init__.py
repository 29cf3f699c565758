"""
The programs behind the playground's API server: controllers, a scheduler and a stand-in for every node's kubelet.

`cluster.Machinery` starts and stops all of it. Everything talks only to the API server, in process, as the real
components do, and nothing here knows about GPU fractions: a GPU is what a container's environment says to the NVIDIA
runtime, and an extended resource is a name with a number.
"""
