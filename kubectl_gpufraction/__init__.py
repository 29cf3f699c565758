"""
`kubectl gpufraction`: the GPUs, the pods that share them, why pods wait, and where a manifest would go.

It reads the API server with the user's own kubeconfig and needs no service of ours, so it also works while our programs
are down. It shows the content of the objects, and changes nothing except with `advise --evict`; dry runs are the API
server's. It imports the vocabulary and the runtime, none of the programs.
"""
