"""
Our programs as processes on a cluster: manifests, accounts, ports, logs, mounted ConfigMaps, a Service's balancing.
"""
