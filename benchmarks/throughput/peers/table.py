"""Every peer, in the order in which tables show them."""

from __future__ import annotations

from benchmarks.throughput.peers import claimsfloor, dra, hami, kai, timeslicing

PEERS = (dra.PEER, claimsfloor.PEER, hami.PEER, kai.PEER, timeslicing.PEER)
