"""
What a new leader does about the former leader's writes: it waits until its watch has brought them, fences bindings that
may still be in transit, and fails pods that come too late. Pure; the shell holds the lock.

Storing an admitted pod may take long because of slow webhooks. A new leader does not know such a pod. It is recognised
when it comes: a pod with a share that this leader neither listed nor gave, on a GPU without room for it, is failed
before it uses a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from allocator.cache.ledger import OWN, ReservationState
from allocator.queue.parking import ParkedPod
from allocator.queue.queue import QueuedPodInfo
from allocator.queue.records import StatusUpdate
from allocator.scheduler import consistency
from allocator.scheduler.events import (
    BarrierWritten,
    Effect,
    FencePods,
    LatePod,
    LatePodFailed,
    Relist,
    WriteBarrier,
)
from allocator.scheduler.leadership import PODS, SchedulerState
from contract import names, pods
from contract.encoding import codec
from contract.reasons.pods import PodReason

_PATIENCE = 5.0
"""Seconds for which a new leader waits until its watch shows its own write."""
_TRIES = 3
"""Pods that are tried, one after the other: the first ones may be deleted, or a policy may refuse the write."""


class Barrier:
    """
    Waits until the watch of pods has brought everything that was written before this replica began to lead.

    A watch delivers the writes to its collection in their order. So the new leader writes one pod, and when its watch
    shows that write, it has shown every earlier one. That takes as long as the watch is late, however many pods there
    are. The pod holds a share or waits for one, and the write is the one by which `Fence` fences.

    All pods are listed instead if none can be written, if the watch does not show the write in time, and if the first
    list has not ended: then it begins again.
    """

    def __init__(self, state: SchedulerState) -> None:
        self._cache = state.cache
        self._queue = state.queue
        self._trigger = state.trigger
        self._leadership = state.leadership
        self._term: int | None = None
        self._until = 0.0
        self.tried: dict[str, str | None] = {}
        """
        The fencing token that each pod was given; None while that is unknown, or if it failed. Empty while nothing is
        waited for; other parts only read it.
        """
        self._asked = ""
        """The pod that is being written."""
        self._shown: dict[str, object] = {}
        """The token that the watch has shown last, of each pod that was tried."""

    def tick(self, now: float) -> list[Effect]:
        """What to do for a term that has begun."""
        term = self._leadership.unlisted()
        if term is None or self._leadership.has_seen(PODS, term):
            self._forget()
            return []
        if term != self._term:
            self._term, self._until = term, now + _PATIENCE
            self._forget()
            if not self._leadership.has_seen(PODS):
                return self._list(term)
            began = self._write(term)
            return began if Relist(term) in began else [Relist(term, pods=False), *began]
        if now > self._until:
            return self._list(term)
        return self._write(term) if not self._asked and self._until < math.inf else []

    def _write(self, term: int) -> list[Effect]:
        found = self._candidate() if len(self.tried) < _TRIES else None
        if found is None:
            return self._list(term)
        self._asked, key = found
        self.tried[self._asked] = None
        return [WriteBarrier(term, key, self._asked)]

    def _candidate(self) -> tuple[str, str] | None:
        """uid and key of a pod that was not tried: one that holds a share, else one that waits."""
        for held in self._cache.ledger:
            confirmed = held.state is ReservationState.CONFIRMED and not held.key.startswith(OWN)
            if confirmed and held.key not in self.tried:
                return held.key, held.pod
        waiting: tuple[QueuedPodInfo | ParkedPod, ...] = (*self._queue.in_any_order(), *self._queue.parking.pods())
        return next(((each.uid, each.key) for each in waiting if each.uid not in self.tried), None)

    def _list(self, term: int) -> list[Effect]:
        if self._until == math.inf:
            return []
        self._forget()
        self._until = math.inf
        return [Relist(term)]

    def _forget(self) -> None:
        self.tried, self._shown, self._asked = {}, {}, ""

    def written(self, event: BarrierWritten, now: float) -> None:
        """The write has an answer. If it failed, another pod is tried."""
        if event.term != self._term or event.uid != self._asked:
            return
        self.tried[event.uid] = event.word
        if event.word is None:
            self._asked = ""
            self._trigger.wake()

    def shows(self, uid: str, pod: Mapping[str, Any]) -> None:
        """The watch shows a pod, or a list that has begun later does."""
        if uid in self.tried:
            self._shown[uid] = pods.annotations_of(pod).get(names.FENCE)

    def passed(self) -> int | None:
        """The term whose write the watch has shown; None if it has not, and after the first call."""
        if not any(word is not None and self._shown.get(uid) == word for uid, word in self.tried.items()):
            return None
        self._forget()
        term = self._leadership.unlisted()
        return term if term == self._term and not self._leadership.has_seen(PODS, term) else None


class Fence:
    """
    Pending pods that a new leader must still give a later version, before anything is decided.

    A binding names the version of its pod, so it cannot take effect once the pod has a later one. Once a new leader has
    given every pending pod a new version, a delayed binding of the former leader finds a newer version. A pod that
    another system's gate holds cannot have been placed, and the former leader never saw pods that were created later.

    Without this, placements would depend on how long a network can delay a request, which no clock of ours measures.
    """

    def __init__(self, state: SchedulerState) -> None:
        self._queue = state.queue
        self._trigger = state.trigger
        self._leadership = state.leadership
        self._term: int | None = None
        self._left: dict[str, QueuedPodInfo | ParkedPod] = {}

    def tick(self) -> list[Effect]:
        """
        `FencePods` where a fence is needed, with the pods that are still to be fenced.

        A pod that has left the queue is placed, or deleted, and that was a later version too.
        """
        term = self._leadership.unfenced()
        if term is None:
            return []
        if term != self._term:
            self._term = term
            waiting: tuple[QueuedPodInfo | ParkedPod, ...] = (*self._queue.in_any_order(), *self._queue.parking.pods())
            self._left = {entry.uid: entry for entry in waiting if not entry.foreign}
        self._left = {uid: entry for uid, entry in self._left.items() if self._queue.knows(uid)}
        if self._left:
            return [FencePods(term, tuple(self._left.values()))]
        self._complete(term)
        return []

    def fenced(self, uid: str) -> None:
        """The pod has a later version, or none will ever be written."""
        known, term = self._left.pop(uid, None), self._term
        if known is not None and not self._left and term is not None and term == self._leadership.unfenced():
            self._complete(term)

    def _complete(self, term: int) -> None:
        self._leadership.fenced(term)
        self._trigger.requeue()


class LatePods:
    """The unexpected pods, and those of them that must be failed."""

    def __init__(self, state: SchedulerState) -> None:
        self._cache = state.cache
        self._records = state.records
        self._trigger = state.trigger
        self._leadership = state.leadership
        self._newcomers: set[str] = set()
        """Pods with a share that this leader neither listed at its start nor gave, and that were not judged yet."""
        self.failing: set[str] = set()
        """Pods that were asked to fail and hold their share until they have failed."""

    def took_in(self, uid: str) -> None:
        """An unexpected pod that holds a share was taken in."""
        if self._leadership.holds():
            self._newcomers.add(uid)
            self._trigger.wake()

    def due(self, *, listing: bool) -> tuple[LatePod, ...]:
        """
        The pods to fail now: unexpected pods with which their GPU is promised beyond what it has.

        Not while a list is being read, which may bring a pod before it removes the one that it replaces.
        """
        if listing or not self._newcomers:
            return ()
        found = [self._if_late(uid) for uid in self._newcomers] if self._leadership.holds() else []
        late = tuple(sorted((one for one in found if one is not None), key=lambda one: one.key))
        self._newcomers = {one.uid for one in late}
        for one in late:
            self._records.take_back(one.uid)  # that it has a share
        return late

    def _if_late(self, uid: str) -> LatePod | None:
        holding = self._cache.ledger.holding(uid)
        excess = consistency.too_much_for(self._cache, holding) if holding is not None else ""
        if holding is None or not excess:
            return None
        return LatePod(holding.pod, uid, f"{excess}. {_LATE}", tuple(codec.container_annotations(holding.allocation)))

    def failed(self, event: LatePodFailed, now: float) -> None:
        """The kubelet was asked to fail the pod, or the pod was deleted."""
        late = event.late
        self._newcomers.discard(late.uid)
        if self._cache.ledger.holding(late.uid) is not None:
            self.failing.add(late.uid)
            reason = PodReason.SHARE_TAKEN
            news = StatusUpdate(late.key, late.uid, False, reason, late.why, warning=reason, gated=False)
            self._records.tell(news, now)
            self._trigger.requeue()


_LATE = (
    "The pod was stored after its reservation had expired and its share had gone to other pods: storing it took too "
    "long, or the leader changed meanwhile. The pod sees no GPU and is marked as failed in its first second. Its "
    "controller creates another; if it has no controller, create it again"
)
