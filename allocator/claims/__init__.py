"""
ElasticGPUClaims made to mean something: which share a claim has, who may use it, and when it is given back.

`objects` reads what is on the API server, `shares` what a claim asks for, `lifecycle` says what is to be written next,
`desk` decides under the controller's lock, `cards` says what a GPU object shows. These are pure. `writer`, `feed` and
`running` are the edge.
"""
