"""
The kinds that the API server serves, and the parts of every request: values, requests, errors, defaults, discovery.
"""
