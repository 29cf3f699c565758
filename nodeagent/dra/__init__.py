"""The agent as a kubelet plugin of Dynamic Resource Allocation: the cards of a pod's ResourceClaim as CDI devices."""
