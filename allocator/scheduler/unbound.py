"""
Pods that hold a share but that kube-scheduler does not bind: they learn what refuses them and why, and after a bounded
time their share goes to others. Pure; the shell holds the lock.

kube-scheduler may bind such a pod at any moment, so the share is taken back in two steps. First one write, tied to the
version of the pod at which it had no node, removes the allocation and the source of the containers' environment. If the
pod was bound first, the write fails and the pod keeps its share. If it is bound later, its containers see no GPU. The
share is free in the ledger only when the watch shows the pod without its allocation. So a write with an unknown outcome
frees nothing, and a leader that ends between the two steps leaves nothing behind: the pod says what it holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from allocator.cache.ledger import Reservation
from allocator.cache.podinfo import PodInfo, UnboundPod
from allocator.cache.refusals import family_of
from allocator.queue.records import Eviction, StatusUpdate
from allocator.scheduler import messages
from allocator.scheduler.events import Effect, TakeShare
from allocator.scheduler.leadership import SchedulerState
from allocator.settings import Settings
from contract import names
from contract.encoding import codec
from contract.reasons.pods import PodEventReason, PodReason

SOON = 10.0
"""Seconds after which a pod is told: kube-scheduler often binds a pod that it refused a moment ago."""
_AGAIN = 5.0
"""Seconds until a write is tried again while the watch does not show its result."""
_AT_ONCE = 8
"""Shares that are taken back in one turn: each is a round trip, and other pods wait for the loop meanwhile."""


class UnboundPods:
    """The pods without a node that hold a share, and those whose share was taken back."""

    def __init__(
        self,
        state: SchedulerState,
        *,
        settings: Settings,
        evict: Callable[[Eviction], None],
    ) -> None:
        self._cache = state.cache
        self._records = state.records
        self._trigger = state.trigger
        self._leadership = state.leadership
        self._settings = settings
        self._evict = evict
        self._faulted = state.faults.surfaced
        self.withdrawn: dict[str, PodInfo] = {}
        """The pods whose share was taken back, by uid; other parts only read it."""
        self._due: dict[str, float] = {}
        """When the next write about a pod may be tried."""

    def see(self, pod: PodInfo, now: float) -> None:
        """A pod is new or changed. If its share was taken back, its replacement avoids the node, and the pod gets the
        cure."""
        if not pod.withdrawn:
            self._forget(pod.uid)
            return
        if pod.uid not in self.withdrawn:
            self._due.pop(pod.uid, None)
            if pod.unschedulable:
                family = family_of(pod.key, pod.owner, pod.rules)
                self._cache.learn_refusal(family, pod.withdrawn, pod.unschedulable, now)
                self._trigger.requeue()
        self.withdrawn[pod.uid] = pod
        if not pod.deleting and self._leadership.may_tell(pod.uid, pod.key):
            code, text = messages.withdrawn(pod, evicts=self._is_evicted(pod))
            warning = PodEventReason.SHARE_RETURNED
            news = StatusUpdate(pod.key, pod.uid, False, code, text, warning=warning, gated=False)
            if self._records.tell(news, now, pod.condition):
                self._trigger.wake()

    def drop(self, uid: str) -> None:
        """The pod was deleted."""
        self._forget(uid)
        self._due.pop(uid, None)

    def _forget(self, uid: str) -> None:
        if self.withdrawn.pop(uid, None) is not None:
            self._due.pop(uid, None)

    def _is_evicted(self, pod: PodInfo) -> bool:
        """Whether the administrator agreed, and a controller creates another; a bound pod runs, and stays."""
        return self._settings.unbound == "delete" and bool(pod.owner) and not pod.bound and not pod.deleting

    def upkeep(self, now: float) -> None:
        """Tell pods that are not bound, evict those whose share is lost if that is wanted, and forget refusals."""
        if self._cache.expire_refusals(now):
            self._trigger.requeue()
        if not self._leadership.holds():
            return
        for stuck in self._cache.allocated.take_unbound(now, min(SOON, self._settings.unbound_after)):
            try:
                self._tell(stuck, now)
            except Exception:
                self._faulted("unbound", stuck.key)
        for uid, pod in self.withdrawn.items():
            if self._is_evicted(pod) and self._is_due(uid, now):
                why = messages.withdrawn(pod, evicts=True)[1]
                self._evict(Eviction(pod.key, uid, pod.version, "unbound", why))

    def _tell(self, stuck: UnboundPod, now: float) -> None:
        holding = self._cache.ledger.holding(stuck.uid)
        after = self._settings.unbound_after if holding is not None and self._gives_back(stuck, holding) else None
        text = messages.not_bound(stuck, after)
        news = StatusUpdate(
            stuck.key, stuck.uid, True, PodReason.NOT_SCHEDULED, text, warning=PodEventReason.SHARE_UNUSED
        )
        if self._records.tell(news, now):
            self._trigger.wake()

    def _gives_back(self, stuck: UnboundPod, holding: Reservation) -> bool:
        """
        Whether the share goes back: not that of an ElasticGPUClaim, which stays the claim's, and not where a
        ResourceClaim delivers it, which a kubelet would prepare although the pod says nothing of it.
        """
        allocation = holding.allocation
        return self._settings.unbound != "keep" and not allocation.claim and not allocation.by_claim

    def not_evaluated(self, now: float) -> Counter[str]:
        """
        How many pods are judged by rules that are not evaluated here, by what; `unknown` where nothing that the pod
        says explains why it is not bound.
        """
        allocated = self._cache.allocated
        unexplained = sum(not allocated.says_by_what(pod.uid) for pod in allocated.unbound_for(now, SOON))
        return allocated.not_evaluated() + Counter(unknown=unexplained)

    def tick(self, now: float) -> list[Effect]:
        """`TakeShare` for pods that have not been bound for too long; again after a pause while they have a share."""
        if not self._leadership.holds():
            return []
        found: list[Effect] = []
        for stuck in self._cache.allocated.unbound_for(now, self._settings.unbound_after):
            holding = self._cache.ledger.holding(stuck.uid)
            if holding is None or stuck.version is None or not self._gives_back(stuck, holding):
                continue
            if self._is_due(stuck.uid, now):
                taken = (str(names.ALLOCATION), *codec.container_annotations(holding.allocation), *stuck.protected)
                found.append(TakeShare(stuck.key, stuck.uid, stuck.version, taken, withdrawn_from=stuck.node))
            if len(found) == _AT_ONCE:
                break
        return found

    def _is_due(self, uid: str, now: float) -> bool:
        """Whether the next write about the pod may be tried; then the one after it must wait."""
        if self._due.get(uid, now) > now:
            return False
        self._due[uid] = now + _AGAIN
        return True
