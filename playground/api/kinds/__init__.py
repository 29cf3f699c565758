"""
The kinds that the API server knows and what every request is made of: values, requests, refusals, defaults, discovery.
"""
