"""
Pods that come too late: their share was given to others before the API server stored them.

An admitted pod may take long to be stored, because other webhooks take their time. A new leader does not know of it. It
shows itself when it comes: a pod with a share that this leader neither listed nor gave, on a GPU that has no more room
for it, is failed before it uses a GPU. Pure; the shell holds the lock.
"""

from __future__ import annotations

from allocator.cache.cache import Cache
from allocator.queue.queue import CycleTrigger
from allocator.queue.records import PodRecords, StatusUpdate
from allocator.scheduler import consistency
from allocator.scheduler.events import LatePod, LatePodFailed
from allocator.scheduler.leadership import Leadership
from contract import names
from contract.encoding import codec


class LatePods:
    """Which pods come unannounced, and which of them must be failed."""

    def __init__(
        self,
        *,
        cache: Cache,
        records: PodRecords,
        trigger: CycleTrigger,
        leadership: Leadership,
    ) -> None:
        self._cache, self._records, self._trigger, self._leadership = cache, records, trigger, leadership
        self._newcomers: set[str] = set()
        """Pods with a share that this leader neither listed at its beginning nor gave, and that were not judged yet."""
        self.failing: set[str] = set()
        """Pods that were asked to fail and hold their share until they have failed."""

    def took_in(self, uid: str) -> None:
        """A pod that holds a share was taken in, and nobody had announced it."""
        if self._leadership.holds():
            self._newcomers.add(uid)
            self._trigger.wake()

    def due(self, *, listing: bool) -> tuple[LatePod, ...]:
        """
        Who must be failed now: pods that nobody had announced, and whose GPU is promised beyond what it has with them.

        Not while a list is being read, which may bring a pod before it takes away the one in whose place it came.
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
        said = consistency.too_much_for(self._cache, holding) if holding is not None else ""
        if holding is None or not said:
            return None
        return LatePod(holding.pod, uid, f"{said}. {_LATE}", tuple(codec.container_annotations(holding.allocation)))

    def failed(self, event: LatePodFailed, now: float) -> None:
        """The kubelet was asked to fail the pod, or the pod is gone."""
        late = event.late
        self._newcomers.discard(late.uid)
        if self._cache.ledger.holding(late.uid) is not None:
            self.failing.add(late.uid)
            reason = names.SHARE_TAKEN
            self._records.tell(StatusUpdate(late.key, late.uid, False, reason, late.why, warning=reason), now)
            self._trigger.requeue()


_LATE = (
    "The pod was stored after its reservation had expired and its share had gone to other pods: storing it took too "
    "long, or the leader changed meanwhile. The pod sees no GPU and is failed in its first second. Its controller "
    "creates another; if it has no controller, create it again"
)
