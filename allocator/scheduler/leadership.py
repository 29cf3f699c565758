"""
Whether this replica may decide now, and the state that the scheduler's parts share.

A replica may decide once it has seen the cluster, it leads, it has since seen all that is booked (`Barrier`), and no
write of the former leader can still take effect (`Fence`). The last two keep two leaders from giving away the same
share one after the other: what the former leader has written is on the API server but perhaps not yet in our watch, and
a write of its may still be in transit. Leadership ends by the clock, so it is asked again right before a write.

Not thread-safe: the shell's lock guards it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from allocator.cache.cache import Cache
from allocator.cache.capacities import Capacities
from allocator.cache.declared_pools import DeclaredPools
from allocator.cache.repeated import RepeatedGpus
from allocator.cache.unconfirmed import Arrivals, Unconfirmed
from allocator.faults import Faulted
from allocator.preemption.tracker import PreemptionTracker
from allocator.queue.parking import Parking
from allocator.queue.queue import CycleTrigger, QueueOrder, Rounds, SchedulingQueue
from allocator.queue.records import PodFaults, PodRecords
from allocator.settings import Settings
from contract.dialects.table import Dialects

KEPT_OUT = "configmaps"
"""Lists of cards that an administrator keeps out (`contract.nodes.excluded`)."""
PODS = "pods"
_LISTED = frozenset((PODS, "namespaces", "nodes", "gpunodes", KEPT_OUT))
"""The objects that must have been seen before the first decision."""
_BOOKED = frozenset((PODS,))
"""The kinds that contain the booked shares."""
_MOST_UNTOLD = 500
"""Pods that are read one by one; if there are more, all pods are listed."""


class Untold:
    """
    The pods to which this replica must report something as soon as it leads.

    Another replica led when they changed, or none, and perhaps did not report it any more. A later change of such a pod
    replaces the earlier one. Not thread-safe: one owner calls it.
    """

    def __init__(self) -> None:
        self.noted: dict[str, str] = {}
        """`namespace/name` by uid; other parts only read it."""
        self._reading: dict[str, int] = {}
        """By uid, the number of the read that is under way: an earlier answer may be older than the watch."""
        self._reads = 0
        self._too_many = False

    def note(self, uid: str, key: str) -> None:
        """The pod should have learnt something."""
        if uid in self.noted or len(self.noted) < _MOST_UNTOLD:
            self.noted[uid] = key
        else:
            self._too_many = True

    def settle(self, uid: str) -> None:
        """The pod is evaluated again now, or gone, so nothing noted before counts."""
        self.noted.pop(uid, None)
        self._reading.pop(uid, None)

    def take(self) -> list[tuple[str, str, int]]:
        """uid and key of each pod to read now, and the number of the read."""
        taken = []
        for uid, key in self.noted.items():
            if uid not in self._reading:
                self._reads += 1
                self._reading[uid] = self._reads
                taken.append((uid, key, self._reads))
        return taken

    def take_all(self) -> bool:
        """Whether all pods must be listed, because some were not noted. Then the noted ones need not be read."""
        too_many, self._too_many = self._too_many, False
        if too_many:
            self.noted.clear()
            self._reading.clear()
        return too_many

    def was_read(self, uid: str, number: int, *, failed: bool = False) -> bool:
        """
        The read of this number has an answer. True if that counts: nothing newer has come of the pod. One whose reading
        failed is read again.
        """
        if self._reading.get(uid) != number:
            return False
        del self._reading[uid]
        if not failed:
            del self.noted[uid]
        return not failed


class Leadership:
    """
    `leading` says whether we lead; `term` gives the number of our leadership, None while another leads. No `term`
    without an election: then no other replica ever writes.
    """

    def __init__(self, leading: Callable[[], bool], term: Callable[[], int | None] | None) -> None:
        self._leading = leading
        self._term = term
        self._unsynced = set(_LISTED)
        self._booked = set(_BOOKED)
        self._listed_in: dict[str, int] = {}
        self._fenced_in: int | None = None
        self.untold = Untold()

    def needs(self, kinds: Iterable[str], booked: Iterable[str]) -> None:
        """These collections must also have been seen; those that are `booked` say which shares are taken."""
        self._unsynced.update(kinds)
        self._booked.update(booked)

    def listed(self, kind: str, term: int | None = None) -> None:
        """
        A whole collection was taken in. With a term, it has everything that was written before that began, because it
        was requested later, or because the watch has brought a write of that term.
        """
        self._unsynced.discard(kind)
        if term is not None:
            self._listed_in[kind] = max(term, self._listed_in.get(kind, term))

    def has_seen(self, kind: str, term: int | None = None) -> bool:
        """Whether the collection was taken in, and with a term, as it was in that term or later."""
        return kind not in self._unsynced and (term is None or self._listed_in.get(kind) == term)

    @property
    def _trusted(self) -> int | None:
        """The term in which everything that books shares was seen."""
        terms = {self._listed_in.get(kind) for kind in self._booked}
        return terms.pop() if len(terms) == 1 else None

    def unready(self) -> str:
        """The objects that have not been seen yet; empty if all have."""
        return f"still listing {', '.join(sorted(self._unsynced))}" if self._unsynced else ""

    def lacks(self) -> str:
        """Why nothing may be decided; empty if it may."""
        if self._unsynced:
            return self.unready()
        if not self._leading():
            return "another replica leads"
        if self._term is not None and self._term() != self._trusted:
            return "new leader: catching up with the former leader's writes"
        if self.unfenced() is not None:
            return "new leader: fencing pending pods"
        return ""

    def leads(self) -> bool:
        """Whether we must report to pods, although we may not decide yet."""
        return self._leading()

    def holds(self) -> bool:
        """Whether this replica may decide."""
        return not self.lacks()

    def unlisted(self) -> int | None:
        """The term for which the booked shares must still be seen; None if they were, or if another replica leads."""
        term = self.number()
        return term if term != self._trusted else None

    def may_tell(self, uid: str, key: str) -> bool:
        """Whether we report to this pod, `namespace/name`, now; if not, it is noted, and told once we lead."""
        if self._leading():
            return True
        self.untold.note(uid, key)
        return False

    def tells(self) -> bool:
        """Whether we lead, and have seen what the former leader told the pods."""
        return self._leading() and self.unlisted() is None

    def unfenced(self) -> int | None:
        """The term in which everything was seen and the former leader must be fenced; None if that is done."""
        term = self.number()
        return term if term is not None and term == self._trusted and term != self._fenced_in else None

    def fenced(self, term: int) -> None:
        """No write of the former leader can still take effect."""
        self._fenced_in = term

    def number(self) -> int | None:
        """The present term, to be noted with the decisions made in it."""
        return self._term() if self._term is not None else None

    def covers(self, noted: int | None) -> bool:
        """Whether a decision of that term may still be written."""
        return self._leading() if self._term is None else noted is not None and noted == self._term()


@dataclass(frozen=True, slots=True)
class SchedulerState:
    """The state that nearly every part of the scheduler reads and changes, under the shell's lock."""

    cache: Cache
    queue: SchedulingQueue
    order: QueueOrder
    records: PodRecords
    trigger: CycleTrigger
    leadership: Leadership
    dialects: Dialects
    rounds: Rounds
    pools: DeclaredPools
    faults: PodFaults
    unconfirmed: Unconfirmed
    arrivals: Arrivals
    capacities: Capacities
    repeated: RepeatedGpus
    preemptions: PreemptionTracker

    @classmethod
    def begin(
        cls,
        cache: Cache,
        leadership: Leadership,
        settings: Settings,
        *,
        dialects: Dialects,
        clock: Callable[[], float],
        wake: Callable[[], None],
        faulted: Faulted,
    ) -> SchedulerState:
        """The state of a replica that has seen pods only in the cache. The arguments are those of `Controller`."""
        records = PodRecords()
        parking = Parking(each=settings.queue.memory, total=settings.queue.memory_total, stays=records.is_writing)
        queue = SchedulingQueue(parking)
        faults = PodFaults(
            cache=cache,
            records=records,
            may_tell=leadership.may_tell,
            clock=clock,
            wake=wake,
            faulted=faulted,
        )
        return cls(
            cache=cache,
            queue=queue,
            order=QueueOrder(cache, queue, fair=settings.queue.order == "fair"),
            records=records,
            trigger=CycleTrigger(wake),
            leadership=leadership,
            dialects=dialects,
            rounds=Rounds(),
            pools=DeclaredPools(cache.engine.limits),
            faults=faults,
            unconfirmed=Unconfirmed(settings.sharing.max_unconfirmed),
            arrivals=Arrivals(settings.assume_ttl),
            capacities=Capacities(),
            repeated=RepeatedGpus(),
            preemptions=PreemptionTracker(),
        )
