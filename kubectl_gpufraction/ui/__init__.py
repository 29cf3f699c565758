"""
`kubectl gpufraction ui`: the cluster's GPUs as a page in the browser, on loopback with the user's own kubeconfig.

`pages` makes what is shown from a `ClusterView` (pure), `reading` reads the cluster at most every few seconds for any
number of tabs, `server` answers the browser, and `command` starts all of it. The files in `static` are served as they
are. Nothing here writes to the cluster.
"""
