"""
What a leader owes to the one before: nothing that was promised then may be given away again, nor come true too late.

Two things may still be on their way when a leadership begins. A waiting pod's placement, which is barred before
anything is decided (`allocator.scheduler.fencing`). And an admitted pod that the API server has not stored yet, because
other webhooks take their time over it: nobody can know of that one. It shows itself when it comes: a pod with a share
that this leader neither listed nor gave, on a GPU that has no more room for before it, is failed before it uses a GPU.

Like all that works on the state it works in memory, under the one lock, and returns what is to be written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from allocator.cache import unconfirmed
from allocator.cache.unconfirmed import Arrivals
from allocator.queue.queue import QueuedPodInfo
from allocator.queue.reporting import StatusUpdate
from allocator.scheduler import consistency
from allocator.scheduler.context import SchedulerContext
from allocator.scheduler.fencing import Fence
from allocator.scheduler.handlers import Intake
from contract import names, pods
from contract.encoding import codec

JSON = dict[str, Any]


@dataclass(frozen=True, slots=True)
class LatePod:
    """A pod that came when its share had been given away, and what it is told."""

    key: str
    """`namespace/name`."""
    uid: str
    why: str
    annotations: tuple[str, ...] = ()
    """Those that its containers' environment is read from."""


class Succession(Intake):
    """The watch's part, looked at for what the leader before has left."""

    def __init__(self, context: SchedulerContext) -> None:
        super().__init__(context)
        self._fence = Fence()
        self._arrivals = Arrivals(context.options.assume_ttl)
        self._forgotten = context.forgotten
        self._newcomers: set[str] = set()
        """Pods with a share that this leader neither listed at its beginning nor gave, and that were not judged yet."""

    # -- placements on their way ----------------------------------------------------------------------------------

    def to_bar(self) -> tuple[int | None, tuple[QueuedPodInfo, ...]]:
        """The pods still to be touched before anything is decided, and the leadership for which that is needed."""
        with self._lock:
            tenure = self._mandate.unfenced()
            if tenure is None:
                return None, ()
            queue = self._queue
            left = self._fence.left(tenure, queue.in_any_order(), lambda uid: queue.pod(uid) is not None)
            if not left:
                self._mandate.fenced(tenure)
                self._rouse()
            return tenure, left

    def barred(self, uid: str, pod: JSON | None) -> None:
        """A pod has been touched; `pod` is what it is now, None where it cannot be written any more."""
        with self._lock:
            self._fence.touched(uid)
            if pod is not None and self._queue.pod(uid) is not None:
                self._waken(self._take_in(pod, self._clock(), trim=pods.trim))
                self._line.touched(uid, pods.version(pod))

    # -- pods that come too late ----------------------------------------------------------------------------------

    def _put_pod(self, pod: JSON, now: float) -> bool:
        uid, ledger = pods.uid(pod), self._cluster.ledger
        freed = not self._tracks(uid) and self._note_arrival(pod, now)
        announced = ledger.holding(uid) is not None or ledger.holding(pods.allocation_id(pod)) is not None
        might_help = super()._put_pod(pod, now) or freed
        if not announced and ledger.holding(uid) is not None and self._mandate.holds():
            self._newcomers.add(uid)
            self._wake()
        return might_help

    def _note_arrival(self, pod: JSON, now: float) -> bool:
        """
        A pod is seen for the first time. True if that gave something back: what was reserved for it before its share
        was replaced, or for another creation of its name, which the API server refuses from now on.
        """
        identity, key, ledger = pods.allocation_id(pod), pods.key(pod), self._cluster.ledger
        reserved = ledger.holding(identity) if identity else None
        if reserved is not None and reserved.judged is not None:
            self._arrivals.came(unconfirmed.namespace_of(reserved), now - reserved.since)
        elif identity and reserved is None:
            self._arrivals.came_late(identity, now)
        returned, namespace = pods.annotations_of(pod).get(names.RETURNED, ""), key.split("/", 1)[0]
        freed = False
        for each in unconfirmed.of_admissions(ledger.assumed()):
            own = unconfirmed.namespace_of(each) == namespace and each.key == returned
            if each.key != identity and (own or each.pod == key) and self._cluster.forget(each.key):
                self._forgotten("replaced")
                freed = True
        return freed

    def late(self) -> tuple[LatePod, ...]:
        """
        Who must be failed now: pods that nobody had announced, and whose GPU is promised beyond what it has with them.

        Not while a list is being read, which may bring a pod before it takes away the one in whose place it came.
        """
        with self._lock:
            if self._amid_a_list or not self._newcomers:
                return ()
            found = [self._if_late(uid) for uid in self._newcomers] if self._mandate.holds() else []
            late = tuple(sorted((one for one in found if one is not None), key=lambda one: one.key))
            self._newcomers = {one.uid for one in late}
            for one in late:
                self._line.take_back(one.uid)  # that it has a share
            return late

    def _if_late(self, uid: str) -> LatePod | None:
        holding = self._cluster.ledger.holding(uid)
        said = consistency.too_much_for(self._cluster, holding) if holding is not None else ""
        if holding is None or not said:
            return None
        return LatePod(holding.pod, uid, f"{said}. {_LATE}", tuple(codec.container_annotations(holding.allocation)))

    def failed(self, late: LatePod) -> None:
        """Its kubelet was asked to fail the pod, or it is gone."""
        with self._lock:
            self._newcomers.discard(late.uid)
            if self._cluster.ledger.holding(late.uid) is not None:
                self._failing.add(late.uid)
                reason = names.SHARE_TAKEN
                self._line.tell(
                    StatusUpdate(late.key, late.uid, False, reason, late.why, warning=reason), self._clock()
                )
                self._rouse()


_LATE = (
    "The pod was stored after its reservation had expired and its share had gone to other pods: storing it took too "
    "long, or the leader changed meanwhile. The pod sees no GPU and is failed in its first second. Its controller "
    "creates another; if it has no controller, create it again"
)
