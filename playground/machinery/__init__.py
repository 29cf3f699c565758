"""
The programs behind the playground's API server: controllers, a scheduler and a stand-in for every node's kubelet.

`cluster.Machinery` starts and stops all of it. As the real components do, these talk only to the API server, here in
process. Nothing here knows about GPU fractions: the NVIDIA runtime reads GPUs from a container's environment, and an
extended resource is a name with a number.
"""
