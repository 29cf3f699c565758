"""
For whom a node is kept: the first in the queue that has waited past the bound and that some node could serve.

The bound counts from when this process first saw the pod wait, and past it a pod need not have been at the head all
that time: of many large pods, each has its turn as soon as the one before it is placed. Pure over the cluster and the
line's notes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from allocator.cache import reserved
from allocator.cache.cache import Cache
from allocator.cache.reserved import NodeReservation
from allocator.queue.queue import QueuedPodInfo, SchedulingQueue
from allocator.queue.reporting import PodRecords
from contract.backoff import backoff

_TRIES = 8
"""Pods in the queue that are looked at; each costs a look at every GPU, and most often the first one has it."""


_LONGEST_PAUSE = 8
"""Times the bound for which nothing is kept for a namespace, at most."""


@dataclass(slots=True)
class _Spent:
    seconds: float = 0.0
    """For which a node was kept since the last pause."""
    pauses: int = 0
    until: float = 0.0
    """The end of the last pause."""
    last: float = 0.0
    """When a node was last kept."""


class ReservationBudget:
    """
    How long a node may be kept for pods of a namespace: `most` seconds, until one of them is placed. After that comes a
    pause of as many, and of twice as many each time that it was in vain again. 0: no bound.

    The time is counted by namespace: a pod that is deleted and created again gets no fresh time. Not thread-safe: one
    owner calls it.
    """

    def __init__(self, most: float) -> None:
        self._most = most
        self._of: dict[str, _Spent] = {}
        self._kept, self._since = "", 0.0

    def passes(self, namespace: str, now: float) -> None:
        """A node is kept for this namespace from now on, until it is said again; none where it is empty."""
        if self._kept and self._most:
            self._spend(self._of.setdefault(self._kept, _Spent()), now)
        self._kept, self._since = namespace, now
        over = 2 * _LONGEST_PAUSE * self._most
        for idle in [name for name, spent in self._of.items() if now - max(spent.last, spent.until) > over]:
            del self._of[idle]

    def _spend(self, spent: _Spent, now: float) -> None:
        spent.seconds, spent.last = spent.seconds + now - self._since, now
        if spent.seconds >= self._most:
            pause = backoff(spent.pauses + 1, self._most, self._most * _LONGEST_PAUSE)
            spent.seconds, spent.pauses, spent.until = 0.0, min(spent.pauses + 1, _LONGEST_PAUSE), now + pause

    def allows(self, namespace: str, now: float) -> bool:
        """Whether a node may be kept for this namespace now."""
        spent = self._of.get(namespace)
        return spent is None or now >= spent.until

    def served(self, namespace: str) -> None:
        """The pod for which a node was kept is placed: it was not in vain."""
        self._of.pop(namespace, None)
        self._kept = ""


def current_reservation(cache: Cache, queue: SchedulingQueue, line: PodRecords) -> NodeReservation | None:
    """What is kept, unless its pod has left the queue or is being written; the first, where more is."""
    for kept in cache.reservations:
        if queue.pod(kept.uid) is not None and not line.is_writing(kept.uid):
            return NodeReservation(kept.node, kept.uid, kept.priority, against=kept.against, namespace=kept.namespace)
    return None


def choose_reservation(
    cache: Cache,
    queue: SchedulingQueue,
    line: PodRecords,
    budget: ReservationBudget,
    after: float,
    now: float,
    failed: Callable[[QueuedPodInfo], None],
) -> NodeReservation | None:
    """
    Which node to keep for whom; None where nobody has waited for `after` seconds, or `after` is 0.

    Whose namespace has had its time is passed over. A node whose room depends on others is preferred to one whose room
    the pod's own namespace holds.

    `failed` is told of a pod for which an error came up, as it is handled; the next one in the queue is looked at.
    """
    kept, asked = current_reservation(cache, queue, line), 0
    for entry in queue.in_order() if after else ():
        if (
            entry.foreign
            or entry.ask.request.claim
            or line.is_writing(entry.uid)
            or line.quarantine.holds(entry.uid, now)
            or now - line.waits(entry.uid, now) < after
            or not budget.allows(entry.asking.namespace, now)
        ):
            continue
        before = kept.node if kept is not None and kept.uid == entry.uid else ""
        try:
            found = _soonest(cache, entry, before)
        except Exception:
            failed(entry)
            continue
        if found is not None:
            return found
        asked += 1
        if asked == _TRIES:
            break
    return None


def _soonest(cache: Cache, entry: QueuedPodInfo, before: str) -> NodeReservation | None:
    namespace, limits, nodes = entry.asking.namespace, cache.engine.limits, cache.snapshot
    node = reserved.soonest(nodes.values(), entry.ask, limits, before, cache.ledger.held_by(namespace))
    against = ""
    if node is None:
        node, against = reserved.soonest(nodes.values(), entry.ask, limits, before), namespace
    return (
        None if node is None else NodeReservation(node, entry.uid, entry.priority, against=against, namespace=namespace)
    )
