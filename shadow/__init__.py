"""
Shadow mode: shows what gpufraction would do on a cluster that shares its GPUs in another way, or uses whole cards.

The recorder reads pods and nodes, and writes their changes into files of its own, never to the API server. A
report replays the recording through the webhook's admission and the allocator's core, in virtual time, and compares:
cards in use, waiting times, overcommitted cards, and manifests as they would be. `what-if` replays it twice, without a
change and with it.

It uses the programs' code, and none of them imports it.
"""
