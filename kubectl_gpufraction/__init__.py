"""
`kubectl gpufraction`: what GPUs there are, who holds them, why pods wait, and where a manifest would go.

It reads the API server with the user's own kubeconfig and needs no service of ours, so that it tells the same story
when our programs are down. What it shows is what stands on the objects; it decides nothing and changes nothing (a dry
run is the API server's). It imports the vocabulary and the runtime, none of the programs.
"""
