"""One module for each command: it reads the cluster and makes the answer."""
