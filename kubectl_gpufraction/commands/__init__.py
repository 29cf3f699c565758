"""One module for each command: what it reads of the cluster, and its answer."""
