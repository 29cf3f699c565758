"""
Whether this replica may decide now: it has seen the cluster, it leads, it has listed since then what is booked, and no
write of the leader before can take effect any more.

The last two are what keeps two leaders from giving away the same share one after the other: what the leader before has
written is on the API server, and not necessarily in our watch yet; and what it was about to write may be on its way
still (`Fence`). Not thread-safe by itself; its owner's lock guards it. Leadership ends by the
clock, so what was true a moment ago is asked again right before a write.
"""

from __future__ import annotations

from collections.abc import Callable

from allocator.queue.queue import CycleTrigger, QueuedPodInfo, SchedulingQueue
from allocator.scheduler.events import Effect, FencePods

KEPT_OUT = "configmaps"
"""Lists of cards that an administrator keeps out (`contract.nodes.excluded`)."""
_BOOKED = ("pods", "elasticgpus")
"""What says which shares are taken."""


class Leadership:
    """
    `leading` says whether we lead; `term` gives the number of our leadership, None while another leads. No `term`
    at all where there is no election: then nobody else ever writes.
    """

    def __init__(self, leading: Callable[[], bool], term: Callable[[], int | None] | None) -> None:
        self._leading, self._term = leading, term
        self._unsynced = {"nodes", "gpunodes", "elasticgpuclaims", "elasticgpuclasses", KEPT_OUT, *_BOOKED}
        self._listed_in: dict[str, int] = {}
        self._fenced_in: int | None = None

    def listed(self, kind: str, term: int | None = None) -> None:
        """A whole collection was taken in; with a term, it was asked for after that began."""
        self._unsynced.discard(kind)
        if term is not None:
            self._listed_in[kind] = term

    @property
    def _trusted(self) -> int | None:
        """The term in which everything was listed that shares are booked by."""
        terms = {self._listed_in.get(kind) for kind in _BOOKED}
        return terms.pop() if len(terms) == 1 else None

    def unready(self) -> str:
        """What is still to be seen for the first time; empty if nothing is."""
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
        """Whether it is on us to tell pods what became of them, though we may not decide yet."""
        return self._leading()

    def holds(self) -> bool:
        """Whether this replica may decide."""
        return not self.lacks()

    def unlisted(self) -> int | None:
        """The term for which pods and ElasticGPUs are still to be listed; None where all is well or another leads."""
        term = self.number()
        return term if term != self._trusted else None

    def unfenced(self) -> int | None:
        """The term in which everything was listed and the leader before is to be fenced; None where that is done."""
        term = self.number()
        return term if term is not None and term == self._trusted and term != self._fenced_in else None

    def fenced(self, term: int) -> None:
        """Whatever the leader before this term was about to write cannot take effect any more."""
        self._fenced_in = term

    def number(self) -> int | None:
        """The term we are in, to be noted with what is decided in it."""
        return self._term() if self._term is not None else None

    def covers(self, noted: int | None) -> bool:
        """Whether what was decided in the term so noted may still be written."""
        return self._leading() if self._term is None else noted is not None and noted == self._term()


class Fence:
    """
    Pending pods that a new leader must still give a later version, before anything is decided.

    A binding names the version of its pod, so it cannot take effect once the pod has a later one. Where a new leader
    has given every pending pod a new version, a binding of the leader before that is still on its way, however long it
    is held up, finds its version gone. A pod that another system's gate holds cannot have been placed by anybody, and
    one that was created since was never seen by the leader before.

    Without this, who is placed and who is told to wait would depend on how long a network can hold a request back, and
    no clock of ours knows that.
    """

    def __init__(self, queue: SchedulingQueue, trigger: CycleTrigger, leadership: Leadership) -> None:
        self._queue, self._trigger, self._leadership = queue, trigger, leadership
        self._term: int | None = None
        self._left: dict[str, QueuedPodInfo] = {}

    def tick(self) -> list[Effect]:
        """
        `FencePods` where a fence is needed, with the pods that are still to be fenced.

        A pod that has left the queue is placed, or gone, and that was a later version too.
        """
        term = self._leadership.unfenced()
        if term is None:
            return []
        if term != self._term:
            self._term = term
            self._left = {entry.uid: entry for entry in self._queue.in_any_order() if not entry.foreign}
        self._left = {uid: entry for uid, entry in self._left.items() if self._queue.pod(uid) is not None}
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
