"""
What a request does to stored objects: create, update, patch, delete, and the subresources.
"""
