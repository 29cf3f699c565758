"""
Figures of the allocator's state, for whoever looks in. Pure: reads a cluster and changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from allocator.cache.cache import Cache


@dataclass(frozen=True, slots=True)
class CacheFigures:
    """How many reservations, waiting pods and troubled pods and GPUs there are."""

    assumed: int
    confirmed: int
    waiting: int
    unreadable: int
    overfull: int
    unbound: int = 0
    kept: int = 0
    quarantined: int = 0


def look(cluster: Cache, *, unbound: int, quarantined: int = 0) -> CacheFigures:
    """Count."""
    assumed = len(cluster.ledger.assumed())
    return CacheFigures(
        assumed=assumed,
        confirmed=len(cluster.ledger) - assumed,
        waiting=len(cluster.queue),
        unreadable=len(cluster.queue.unreadable),
        overfull=sum(len(uuids) for uuids in cluster.overfull().values()),
        unbound=unbound,
        kept=len({kept.node for kept in cluster.kept}),
        quarantined=quarantined,
    )
