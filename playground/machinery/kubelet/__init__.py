"""
A stand-in for the kubelet of each node and for the NVIDIA container runtime: admits pods, runs them, reports status.
"""
