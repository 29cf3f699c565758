"""
A whole Kubernetes cluster with gpufraction on one machine, for the demo, the tests and the benchmarks.

`cluster.Cluster` composes it: a control plane (embedded or real), the shipped manifests, and our programs as processes.
Production code never imports anything from here.
"""
