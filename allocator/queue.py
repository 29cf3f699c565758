"""
The queue: which pods wait for a share, and in what order they are tried.

Filled by `Cluster` from what the watch brings. It knows neither nodes nor GPUs, and not what a pod was told or when it
may be tried again (see `allocator.line`). Must not: read a clock; who came first is told by creation times and by a
count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from allocator.engine import Ask
from contract import names, pods, scheduling


@dataclass(frozen=True, slots=True)
class Waiting:
    """A pod that is gated by us. `foreign` names other gates, whose owners must have let it go before we place it."""

    uid: str
    key: str
    ask: Ask
    priority: int
    created: str
    """creationTimestamp; RFC 3339 in UTC, so that text order is time order."""
    pod: Mapping[str, Any]
    foreign: tuple[str, ...] = ()
    came: int = 0
    """How many were seen to come before it: creation times tell seconds only, and a Deployment makes many in one."""

    @property
    def order(self) -> tuple[int, int, str, int, str]:
        """
        The line: higher priority first, of the PriorityClass and then of the dialect, then older, then seen first.
        """
        return (-self.priority, -self.ask.request.priority, self.created, self.came, self.uid)


class Queue:
    """The pods behind our gate. Not thread-safe: one owner calls it."""

    def __init__(self) -> None:
        self.unreadable: dict[str, str] = {}
        """Gated pods (by uid) whose request annotation does not agree with them: `namespace/name`."""
        self._waiting: dict[str, Waiting] = {}
        self._came = 0

    def __len__(self) -> int:
        """How many are in line."""
        return len(self._waiting)

    def in_order(self) -> list[Waiting]:
        """The pods in line, the first first."""
        return sorted(self._waiting.values(), key=lambda w: w.order)

    def in_any_order(self) -> Iterable[Waiting]:
        """The pods in line, unsorted; not to be kept."""
        return self._waiting.values()

    def pod(self, uid: str) -> Waiting | None:
        """A pod in line by its uid."""
        return self._waiting.get(uid)

    def knows(self, uid: str) -> bool:
        """Whether this pod is in line, or would be if it could be read."""
        return uid in self._waiting or uid in self.unreadable

    def uids(self) -> Iterable[str]:
        """Every pod that is in line, or would be if it could be read."""
        return (*self._waiting, *self.unreadable)

    def put(self, uid: str, pod: Mapping[str, Any]) -> bool:
        """A gated pod, trimmed, is new or changed. True if it joined the line, or asks for something else now."""
        request = pods.admitted(pod)
        if request is None:
            self.unreadable[uid] = pods.key(pod)
            self._waiting.pop(uid, None)
            return False
        self.unreadable.pop(uid, None)
        metadata = pod.get("metadata") or {}
        known = self._waiting.get(uid)
        entry = Waiting(
            uid=uid,
            key=pods.key(pod),
            ask=Ask(request, scheduling.needs_of(pod, several=request.several)),
            priority=pods.priority(pod),
            created=str(metadata.get("creationTimestamp", "")),
            pod=pod,
            foreign=tuple(gate for gate in pods.gates(pod) if gate != names.GATE),
            came=known.came if known is not None else self._came,
        )
        self._came += known is None
        self._waiting[uid] = entry
        return known is None or (known.ask, known.foreign) != (entry.ask, entry.foreign)

    def drop(self, uid: str) -> bool:
        """A pod waits no longer. True if it was in line."""
        self.unreadable.pop(uid, None)
        return self._waiting.pop(uid, None) is not None
