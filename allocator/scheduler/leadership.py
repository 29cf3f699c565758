"""
Whether this replica may decide now, and the state that the scheduler's parts share.

A replica may decide once it has seen the cluster, it leads, it has since listed what is booked, and no write of the
former leader can still take effect. The last two keep two leaders from giving away the same share one after the other:
what the former leader has written is on the API server but perhaps not yet in our watch, and a write of its may still
be in transit (`Fence`). Leadership ends by the clock, so it is asked again right before a write.

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
_LISTED = frozenset(("pods", "namespaces", "nodes", "gpunodes", KEPT_OUT))
"""The objects that must have been seen before the first decision."""
_BOOKED = frozenset(("pods",))
"""The kinds that contain the booked shares."""


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
        self._untold = False

    def needs(self, kinds: Iterable[str], booked: Iterable[str]) -> None:
        """These collections must also have been seen; those that are `booked` say which shares are taken."""
        self._unsynced.update(kinds)
        self._booked.update(booked)

    def listed(self, kind: str, term: int | None = None) -> None:
        """A whole collection was taken in; with a term, it was requested after that began."""
        self._unsynced.discard(kind)
        if term is not None:
            self._listed_in[kind] = term

    @property
    def _trusted(self) -> int | None:
        """The term in which everything that books shares was listed."""
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
            return "new leader: listing pods"
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
        """The term for which the booked shares must still be listed; None if they were, or if another replica leads."""
        term = self.number()
        return term if term != self._trusted else None

    def leave_untold(self) -> None:
        """
        A pod should learn something, and this replica does not lead. Another does, or none: then we must report it once
        we lead again in the same term.
        """
        self._untold = True

    def take_untold(self) -> bool:
        """
        Whether pods must be looked at again, since this replica leads and some conditions were not written before.
        """
        if not self._leading():
            return False
        untold, self._untold = self._untold, False
        return untold

    def unfenced(self) -> int | None:
        """The term in which everything was listed and the former leader must be fenced; None if that is done."""
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
            leads=leadership.leads,
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
