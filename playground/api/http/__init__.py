"""
The API server on a TLS port: certificates, routes, JSON and protobuf bodies, streams of a watch.
"""
