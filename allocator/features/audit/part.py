"""
The feature's part of the core: which shares pods got or lost, and why.

Once a second, it compares the holders of shares with those of a second before. A share ends because of an eviction, the
deletion of its pod, or the pod's end. Pure.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from allocator.queue.records import Eviction
from allocator.scheduler.events import TickPhase
from allocator.scheduler.parts import Core, FeaturePart
from contract.scheduling.nodeinfo import AllocatedPod

_EVERY = 1.0
_MOST_EVICTED = 4_096
"""Evictions that are kept until their pods are gone."""
End = Literal["evicted", "deleted", "finished", "taken"]


@dataclass(frozen=True, slots=True)
class Granted:
    """A pod has a share that it did not have at the last check. by: at its admission, or from the queue."""

    pod: AllocatedPod
    dialect: str
    allocation: str
    by: Literal["admission", "queue"]


@dataclass(frozen=True, slots=True)
class Released:
    """A pod no longer has its share. held: seconds for which it had it, as observed."""

    pod: AllocatedPod
    allocation: str
    end: End
    cause: str
    """Of an eviction, as in `gpufraction_evictions_total`."""
    why: str
    held: float


@dataclass(slots=True)
class _Known:
    pod: AllocatedPod
    allocation: str
    since: float


class AuditPart:
    """The holders at the last check."""

    def __init__(self, core: Core, settings: object) -> None:
        self._cache = core.state.cache
        self._queue = core.state.queue
        self._leadership = core.state.leadership
        self._known: dict[str, _Known] | None = None
        """None until the first check of this term: other leaders, or other terms, granted the shares before."""
        self._waited: set[str] = set()
        self._evicted: OrderedDict[str, Eviction] = OrderedDict()
        self._next = float("-inf")

    def part(self) -> FeaturePart:
        """The hooks that it adds to the core."""
        return FeaturePart(ticks={TickPhase.UPKEEP: self._look}, evicted=self._evicts)

    def _evicts(self, order: Eviction, owner: str, now: float) -> None:
        self._evicted[order.uid] = order
        if len(self._evicted) > _MOST_EVICTED:
            self._evicted.popitem(last=False)

    def _look(self, now: float) -> Iterable[Granted | Released]:
        if not self._leadership.holds():
            self._known = None
            self._waited.clear()
            self._evicted.clear()
            return ()
        if now < self._next:
            return ()
        self._next = now + _EVERY
        first, known = self._known is None, self._known or {}
        self._known = known
        holders = self._cache.allocated
        found: list[Granted | Released] = []
        for uid in known.keys() - holders.uids():
            found.append(self._released(known.pop(uid), now))
        for uid in holders.uids() - known.keys():
            pod, held = holders.get(uid), self._cache.ledger.holding(uid)
            if pod is None or held is None:
                continue
            known[uid] = _Known(pod, held.allocation.id, now)
            if not first:
                by: Literal["admission", "queue"] = "queue" if uid in self._waited else "admission"
                found.append(Granted(pod, held.request.dialect, held.allocation.id, by))
        self._waited = set(self._queue.uids())
        for uid in self._evicted.keys() - holders.uids():  # of a pod that ended before its grant was noted
            del self._evicted[uid]
        return found

    def _released(self, before: _Known, now: float) -> Released:
        uid, order = before.pod.uid, self._evicted.pop(before.pod.uid, None)
        tracked = self._cache.tracks(uid)
        end: End = "evicted" if order is not None else "deleted" if not tracked else "finished"
        if order is None and tracked and self._cache.tracked(uid).allocation is None:
            end = "taken" if not self._cache.tracked(uid).node else end
        cause, why = (order.cause, order.why) if order is not None else ("", "")
        return Released(before.pod, before.allocation, end, cause, why, now - before.since)
