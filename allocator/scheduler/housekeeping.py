"""
Housekeeping about once a second, for pods and reservations to which nothing happens for too long.

A reservation whose pod never came is given back, and so is a share behind another system's gate. Pure; the shell holds
the lock.
"""

from __future__ import annotations

from collections.abc import Callable

from allocator.cache import unconfirmed
from allocator.cache.capacities import HeldBeyond
from allocator.cache.ledger import OWN, Reservation
from allocator.cache.podinfo import PodInfo
from allocator.cache.repeated import RepeatedNote
from allocator.preemption.agent_reports import AgentReports
from allocator.queue.records import EventRecord, Eviction, StatusUpdate
from allocator.scheduler import messages
from allocator.scheduler.consistency import OvercommitReporter
from allocator.scheduler.events import (
    AssumedChecked,
    CheckAssumed,
    DriftFound,
    Effect,
    Relist,
    ShareTaken,
    TakeShare,
)
from allocator.scheduler.leadership import SchedulerState
from allocator.scheduler.parts import Gangs
from allocator.scheduler.reservations import Preemptor, StarvationGuard
from allocator.scheduler.silence import SilentAgents
from allocator.settings import Settings
from contract import names
from contract.encoding import codec
from contract.reasons.gpunodes import NodeEventReason
from contract.reasons.pods import PodEventReason

_HARD_END = 3
"""Times `assume_ttl` after which a reservation ends although it is unknown whether its pod exists."""
_TAKE_AGAIN = 5.0
"""Seconds until the next try to remove a share from a pod that another system's gate holds."""
_RELISTED = 100
"""Remembered reservations for which the pods were listed again, so that this is done only once for them."""


class Housekeeping:
    """Work that depends on time: `starvation`, `overcommit`, `reports` and `silence` have parts of it."""

    def __init__(
        self,
        state: SchedulerState,
        *,
        preemptor: Preemptor,
        gangs: Gangs,
        settings: Settings,
        clock: Callable[[], float],
        forgotten: Callable[[str], None],
    ) -> None:
        self._cache = state.cache
        self._records = state.records
        self._trigger = state.trigger
        self._leadership = state.leadership
        self._capacities = state.capacities
        self._repeated = state.repeated
        self._unconfirmed = state.unconfirmed
        self._arrivals = state.arrivals
        self.starvation = StarvationGuard(
            state, preemptor=preemptor, faults=state.faults, settings=settings, together=gangs.held
        )
        self.overcommit = OvercommitReporter(
            state, clock=clock, evict=self.evict if settings.repair == "evict" else None
        )
        self.reports = AgentReports(state.cache, state.records, holds=state.leadership.holds, wake=state.trigger.wake)
        self.silence = SilentAgents(state)
        self._settings = settings
        self._forgotten = forgotten
        self._evictions: list[Eviction] = []
        self._relist = False
        """The pods must be listed again, because the state differs from the API server's."""
        self._existed: set[str] = set()
        """Overdue reservations whose pods exist, although the watch had not brought them."""
        self._relisted_for: tuple[str, ...] = ()

    def tick(self, now: float) -> None:
        """End the pauses that are over."""
        self._trigger.event(self._records.resume(now))
        self.silence.tick(now)

    def evict(self, order: Eviction) -> None:
        """Request the eviction of the pod."""
        self._evictions.append(order)

    def status_updates(self, now: float) -> list[HeldBeyond | RepeatedNote | StatusUpdate]:
        """
        What is to be written besides the reports of a cycle: on GPUNodes what pods hold beyond what their GPUs promise
        and which cards other nodes report too, and on pods what was written before and does not show. Pods whose GPU is
        missing learn it.
        """
        if not self._leadership.holds():
            return []
        notes, news = self._repeated.look(now)
        for node, why in news:
            self._records.note(EventRecord("Node", node, node, NodeEventReason.GPU_REPEATED, why))
            self._trigger.wake()
        updates: list[HeldBeyond | RepeatedNote | StatusUpdate] = [
            *notes,
            *self._capacities.look(self._cache, now),
            *self._records.repeat_overwritten(now),
        ]
        stranded = self._capacities.stranded(self._cache, now)
        for pod in stranded:
            self._records.note(EventRecord("Pod", pod.key, pod.uid, pod.code, pod.why))
        if stranded:
            self._trigger.wake()
        return updates

    def evictions(self, now: float) -> list[Effect]:
        """The pods to evict, each once; none if this replica may not decide."""
        evictions, self._evictions = self._evictions, []
        return [*(evictions if self._leadership.holds() else ()), *self.reports.tick(now)]

    def drift_found(self, event: DriftFound, now: float) -> None:
        """The state differs from what the API server says: have the pods listed again."""
        self._relist = True
        self._trigger.wake()

    def relist(self) -> list[Effect]:
        """`Relist`, once for each drift that was found, and where too many pods are to be told to read each of them."""
        if self._leadership.unlisted() is not None:
            return []
        wanted, self._relist = self._relist, False
        if self._leadership.tells():
            wanted |= self._leadership.untold.take_all()
        return [Relist(self._leadership.number())] if wanted else []

    def overdue(self, now: float) -> list[Effect]:
        """
        `CheckAssumed` for the reservations from admissions whose pods should have been seen by now.

        The watch may be behind, so nothing is forgotten before the API server is asked.
        """
        writing = self._records.writing()
        late = (h for h in self._cache.ledger.assumed() if now - h.since > self._waited_for(h))
        overdue = tuple(h for h in late if h.key not in writing and not h.key.startswith(OWN))
        return [CheckAssumed(overdue)] if overdue else []

    def _waited_for(self, holding: Reservation) -> float:
        """Seconds for which the pod of a reservation is waited for."""
        if holding.judged is None:
            return self._settings.assume_ttl
        return self._arrivals.within(unconfirmed.namespace_of(holding))

    def checked(self, event: AssumedChecked, now: float) -> None:
        """
        Give back the overdue reservations, except those whose allocation id a pod that exists carries: these the watch
        will bring, and are given their time once more. If it has not brought them by then, the pods are listed again.

        If that could not be found out, a reservation lasts at most three times its own time longer, so that no failure
        makes it permanent. If its pod is stored anyway without having been seen, it comes too late, and is failed
        before it uses a GPU that others got meanwhile (`LatePods`).
        """
        if event.exist is None:
            end = now - _HARD_END * self._settings.assume_ttl
            for holding in event.reservations:
                if holding.since <= end:
                    self._give_back(holding, now)
            return
        for holding in event.reservations:
            if holding.key in event.exist:
                self._cache.renew(holding.key, now)
                self._relist_for(holding)
            else:
                self._give_back(holding, now)
        self._existed &= {holding.key for holding in self._cache.ledger.assumed()}

    def _relist_for(self, holding: Reservation) -> None:
        """Once for each: the watch never shows a pod with damaged annotations as a holder of this share."""
        if holding.key in self._existed and holding.key not in self._relisted_for:
            self._relisted_for = (*self._relisted_for[-_RELISTED:], holding.key)
            self._relist = True
        self._existed.add(holding.key)

    def _give_back(self, holding: Reservation, now: float) -> None:
        if self._cache.forget(holding.key):
            self._forgotten("expired")
            namespace = unconfirmed.namespace_of(holding)
            self._unconfirmed.ended(namespace, now)
            self._arrivals.given_back(holding.key, namespace, holding.since)
            self._trigger.requeue_helped()


class ForeignGates:
    """
    Pods that have a share although another system's scheduling gate holds them.

    Admission gives no share to such a pod. But a webhook may add its gate after ours was called for the last time. The
    share would then be held for as long as the other system makes the pod wait, so it is removed from the pod.
    """

    def __init__(self, state: SchedulerState) -> None:
        self._cache = state.cache
        self._records = state.records
        self._trigger = state.trigger
        self._leadership = state.leadership
        self.pods: dict[str, tuple[PodInfo, float]] = {}
        """The pod, and when its share is removed, by uid."""

    def see(self, pod: PodInfo) -> None:
        """A gate holds this pod, and it has a share."""
        _, due = self.pods.get(pod.uid, (pod, 0.0))
        self.pods[pod.uid] = (pod, due)
        self._trigger.wake()

    def tick(self, now: float) -> list[Effect]:
        """`TakeShare` for each such pod; again after a pause, until the watch shows the pod without it."""
        if not self.pods or not self._leadership.holds():
            return []
        found: list[Effect] = []
        for uid, (pod, due) in tuple(self.pods.items()):
            holding = self._cache.ledger.holding(uid)
            if holding is None or now < due:
                continue
            self.pods[uid] = (pod, now + _TAKE_AGAIN)
            written = (str(names.ALLOCATION), *codec.container_annotations(holding.allocation), *pod.protected)
            found.append(TakeShare(pod.key, uid, pod.version, written, pod.behind))
        return found

    def taken(self, event: ShareTaken, now: float) -> None:
        """
        The share was removed: the pod gets an Event, and pods in the queue may fit now. For a pod that kube-scheduler
        does not bind, the result is reported when the watch shows it.
        """
        take = event.take
        if not take.gate:
            return
        text = messages.share_taken(take.gate)
        self._records.note(EventRecord("Pod", take.key, take.uid, PodEventReason.SHARE_RETURNED, text))
        self._trigger.wake()
