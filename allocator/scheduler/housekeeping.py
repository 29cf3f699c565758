"""
Housekeeping about once a second: what becomes of pods and reservations when nothing happens for too long.

A pod that holds a share and is not bound is told so, and a reservation whose pod never came is given back. Pure; the
shell holds the lock.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable

from allocator.cache import unconfirmed
from allocator.cache.cache import Cache
from allocator.cache.capacities import Capacities, HeldBeyond
from allocator.cache.ledger import OWN, Reservation
from allocator.cache.podinfo import UnboundPod, UnboundPods
from allocator.cache.unconfirmed import Arrivals, Unconfirmed
from allocator.faults import Faulted
from allocator.queue.queue import CycleTrigger
from allocator.queue.records import EventRecord, Eviction, PodRecords, StatusUpdate
from allocator.scheduler import messages
from allocator.scheduler.leadership import Leadership
from allocator.scheduler.options import SchedulerOptions

_HARD_END = 3
"""Times `assume_ttl` after which a reservation ends though nobody could say whether its pod exists."""
_RELISTED = 100
"""Reservations for which the pods were listed again, that are remembered so that it is not done twice for them."""


class Housekeeping:
    """What time brings about."""

    def __init__(
        self,
        *,
        cache: Cache,
        records: PodRecords,
        trigger: CycleTrigger,
        leadership: Leadership,
        unbound: UnboundPods,
        capacities: Capacities,
        unconfirmed: Unconfirmed,
        arrivals: Arrivals,
        options: SchedulerOptions,
        clock: Callable[[], float],
        forgotten: Callable[[str], None],
        faulted: Faulted,
    ) -> None:
        self._cache, self._records, self._trigger, self._leadership = cache, records, trigger, leadership
        self._unbound, self._capacities = unbound, capacities
        self._unconfirmed, self._arrivals, self._options = unconfirmed, arrivals, options
        self._clock, self._forgotten, self._faulted = clock, forgotten, faulted
        self._evictions: list[Eviction] = []
        self._relist = False
        """The pods are to be listed again, since what is known is not what the API server says."""
        self._existed: set[str] = set()
        """Overdue reservations whose pods were found to exist, though the watch had not brought them."""
        self._relisted_for: tuple[str, ...] = ()

    def tick(self, now: float) -> None:
        """End the pauses that are over, and tell pods that hold a share and have not been bound for too long."""
        self._trigger.event(self._records.resume(now))
        if not self._leadership.holds():
            return
        for stuck in self._unbound.due(now):
            try:
                self._say_unbound(stuck, now)
            except Exception:
                self._faulted("unbound", stuck.key)

    def evict(self, order: Eviction) -> None:
        """Have the pod evicted by whoever carries evictions out."""
        self._evictions.append(order)

    def to_write(self) -> list[HeldBeyond | StatusUpdate]:
        """
        What is to be written besides news: on GPUNodes what pods hold beyond what their GPUs promise, and on pods what
        they were told and do not show. Pods whose GPU is gone are told. To be called about once a second.
        """
        if not self._leadership.holds():
            return []
        now = self._clock()
        words: list[HeldBeyond | StatusUpdate] = [
            *self._capacities.look(self._cache, now),
            *self._records.repeat_overwritten(now),
        ]
        stranded = self._capacities.stranded(self._cache, now)
        for pod in stranded:
            self._records.note(EventRecord("Pod", pod.key, pod.uid, pod.code, pod.why))
        if stranded:
            self._trigger.wake()
        return words

    def _say_unbound(self, stuck: UnboundPod, now: float) -> None:
        text = messages.not_bound(stuck, (now - stuck.since) / 60)
        self._records.tell(
            StatusUpdate(stuck.key, stuck.uid, True, messages.NOT_SCHEDULED, text, warning="GPUShareUnused"), now
        )
        if self._options.unbound == "delete" and stuck.owned:
            self.evict(Eviction(stuck.key, stuck.uid, stuck.version, "unbound", text))
        self._trigger.requeue()

    def take_evictions(self) -> list[Eviction]:
        """The pods that must go, each once; asked for, and written, by the leader only."""
        evictions, self._evictions = self._evictions, []
        return evictions if self._leadership.holds() else []

    def request_relist(self) -> None:
        """The state is not what the API server says: have the pods listed anew."""
        self._relist = True
        self._trigger.wake()

    def take_relist(self) -> bool:
        """Whether the pods are to be listed anew; said once."""
        wanted, self._relist = self._relist, False
        return wanted

    def overdue(self) -> tuple[Reservation, ...]:
        """
        Reservations from admissions whose pods should have been seen by now.

        The watch may be behind, so this alone frees nothing: ask the API server for the pods, then `expire`.
        """
        now, writing = self._clock(), self._records.writing()
        late = (h for h in self._cache.ledger.assumed() if now - h.since > self._waited_for(h))
        return tuple(h for h in late if h.key not in writing and not h.key.startswith(OWN))

    def _waited_for(self, holding: Reservation) -> float:
        """Seconds for which the pod of a reservation is waited for."""
        if holding.judged is None:
            return self._options.assume_ttl
        return self._arrivals.within(unconfirmed.namespace_of(holding))

    def expire(self, overdue: Iterable[Reservation], exist: Container[str]) -> None:
        """
        Give back the overdue reservations, except those whose allocation id a pod that exists carries: these the watch
        will bring, and are given their time once more. If it has not brought them by then, the pods are listed anew.
        """
        for holding in overdue:
            if holding.key in exist:
                self._cache.renew(holding.key, self._clock())
                self._relist_for(holding)
            else:
                self._give_back(holding)
        self._existed &= {holding.key for holding in self._cache.ledger.assumed()}

    def _relist_for(self, holding: Reservation) -> None:
        """Once for each: a pod whose annotations are damaged is never brought as one that holds this share."""
        if holding.key in self._existed and holding.key not in self._relisted_for:
            self._relisted_for = (*self._relisted_for[-_RELISTED:], holding.key)
            self._relist = True
        self._existed.add(holding.key)

    def not_listed(self, overdue: Iterable[Reservation]) -> None:
        """
        Nobody could say whether the pods of these reservations exist. A reservation outlives that three times its own
        time at most, so that no failure makes it last.

        Should its pod be stored all the same and never have been seen, it comes too late, and is failed before it uses
        a GPU that others were given meanwhile (`late`).
        """
        end = self._clock() - _HARD_END * self._options.assume_ttl
        for holding in overdue:
            if holding.since <= end:
                self._give_back(holding)

    def _give_back(self, holding: Reservation) -> None:
        if self._cache.forget(holding.key):
            self._forgotten("expired")
            self._has_not_come(holding)
            self._trigger.requeue()

    def _has_not_come(self, holding: Reservation) -> None:
        namespace = unconfirmed.namespace_of(holding)
        self._unconfirmed.ended(namespace, self._clock())
        self._arrivals.given_back(holding.key, namespace, holding.since)
