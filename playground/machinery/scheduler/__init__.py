"""
A stand-in for kube-scheduler: filters nodes, binds pods, and says why a pod does not fit.
"""
