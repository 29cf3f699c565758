"""
What the cache holds of one pod: what it takes of its node, where it stands, and what an eviction is decided by.

The ledger knows what is reserved. Time is passed in: how long a pod has been ending is counted from when this process
first saw it end, so that no clock of another machine matters. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from allocator.cache.ledger import Reservation
from contract import pods
from contract.model import Allocation, Compute
from contract.scheduling.demand import demands
from contract.scheduling.nodeinfo import AllocatedPod

_NOT_DIGITS = re.compile(r"\D")


@dataclass(frozen=True, slots=True)
class NodeUse:
    """What a pod takes of its node besides GPUs."""

    node: str
    compute: Compute
    host_ports: frozenset[tuple[str, str, int]] = frozenset()


@dataclass(frozen=True, slots=True)
class TrackedPod:
    """Where a pod stands by what the watches brought. `waits`: behind our gate."""

    node: str = ""
    waits: bool = False
    allocation: Allocation | None = None


UNTRACKED = TrackedPod()
"""The record of a pod that is not tracked."""


class AllocatedPods:
    """The notes. Not thread-safe: one owner calls it."""

    def __init__(self) -> None:
        self._node_of: dict[str, str] = {}
        self._by_node: dict[str, dict[str, AllocatedPod]] = {}
        self._priorities: dict[int, int] = {}

    def see(self, pod: Mapping[str, Any], holding: Reservation, compute: Compute, now: float) -> None:
        """A pod that holds a share is new or changed."""
        uid, node = pods.uid(pod), holding.allocation.node
        known = self.get(uid)
        metadata = pod.get("metadata") or {}
        since = known.ending if known is not None and known.ending is not None else now
        self.drop(uid)
        priority = pods.priority(pod)
        self._node_of[uid] = node
        self._by_node.setdefault(node, {})[uid] = AllocatedPod(
            uid=uid,
            key=holding.pod,
            node=node,
            priority=priority,
            created=int(_NOT_DIGITS.sub("", str(metadata.get("creationTimestamp", ""))) or 0),
            demands={} if holding.allocation.claim else demands(holding.request, holding.allocation),
            compute=compute,
            ending=since if metadata.get("deletionTimestamp") else None,
        )
        self._priorities[priority] = self._priorities.get(priority, 0) + 1

    def drop(self, uid: str) -> None:
        """The pod holds nothing any more."""
        node = self._node_of.pop(uid, None)
        if node is None:
            return
        gone = self._by_node[node].pop(uid)
        if not self._by_node[node]:
            del self._by_node[node]
        self._priorities[gone.priority] -= 1
        if not self._priorities[gone.priority]:
            del self._priorities[gone.priority]

    def get(self, uid: str) -> AllocatedPod | None:
        """A holder by its uid."""
        node = self._node_of.get(uid)
        return None if node is None else self._by_node[node][uid]

    def on(self, node: str) -> tuple[AllocatedPod, ...]:
        """The holders on a node, in the order in which they were seen."""
        return tuple(self._by_node.get(node, {}).values())

    def by_node(self) -> dict[str, tuple[AllocatedPod, ...]]:
        """All holders by node; a copy, whose values are frozen."""
        return {node: tuple(sharers.values()) for node, sharers in self._by_node.items()}

    def any_below(self, priority: int) -> bool:
        """Whether a pod of lower priority holds a share."""
        return any(lower < priority for lower in self._priorities)


def youngest_first(sharers: Iterable[AllocatedPod]) -> list[AllocatedPod]:
    """By age alone; of two created in one second the one with the greater uid."""
    return sorted(sharers, key=lambda sharer: (sharer.created, sharer.uid), reverse=True)
