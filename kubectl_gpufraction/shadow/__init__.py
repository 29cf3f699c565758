"""`shadow` and `what-if`: the report of the recorder in the cluster, by `kubectl exec` in its pod."""
