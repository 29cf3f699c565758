"""ResourceClaims for nodes that deliver GPUs by Dynamic Resource Allocation."""
