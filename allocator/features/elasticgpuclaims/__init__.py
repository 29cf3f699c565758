"""
ElasticGPUClaims made to mean something: which share a claim has, who may use it, and when it is given back.

`objects` reads what is on the API server, `shares` what a claim asks for, `lifecycle` says what is to be written next,
`cards` what a GPU object shows. `store` keeps a record of each object and `inflight` the bindings under way; by these
`manager` decides and `steps` writes, under the controller's lock. The edge is in `allocator.workers.claims`.
"""
