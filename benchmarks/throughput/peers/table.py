"""Every peer, in the order in which tables show them."""

from __future__ import annotations

from benchmarks.throughput.peers import dra, timeslicing

PEERS = (dra.PEER, timeslicing.PEER)
