"""
The clock's part of the allocator: what becomes of pods and reservations when nothing happens for too long.

Pods whose pause is over may be tried again, one that has waited past a bound has a node kept for it, a share that
nobody can use is told of, and a reservation whose pod never came is given back. To be called about once a second; like
all that works on the state it does so under the one lock, in memory, and returns what is to be written.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable

from allocator import answering, patience
from allocator.cluster import Cluster
from allocator.intake import Intake
from allocator.ledger import OWN, Holding
from allocator.line import Evict, Told
from allocator.mandate import Mandate
from allocator.options import Options
from allocator.unbound import Stuck, Unbound
from contract.model import PodRequest

_KEEP_EVERY = 5.0
"""Seconds after which it is looked anew which node to keep; it takes a look at every GPU of the cluster."""


class Tending(Intake):
    """What time brings about."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        mandate: Mandate,
        options: Options,
        clock: Callable[[], float],
        wake: Callable[[], None],
        forgotten: Callable[[str], None],
        asked: Callable[[PodRequest, int], None],
    ) -> None:
        unbound = Unbound(options.unbound_after)
        super().__init__(cluster=cluster, mandate=mandate, unbound=unbound, clock=clock, wake=wake, asked=asked)
        self._options = options
        self._forgotten = forgotten
        """Told why a reservation is given back before its pod was seen: expired, conflict, refused, deleted, fenced."""
        self._evictions: list[Evict] = []
        self._look_again = 0.0

    def settle(self) -> None:
        """
        The clock's part, to be called about once a second: pods may be tried again whose pause is over, and pods are
        told that hold a share and have not been bound for too long.
        """
        with self._lock:
            now = self._clock()
            self._waken(self._line.resume(now))
            if self._mandate.holds():
                for stuck in self._unbound.due(now):
                    self._say_unbound(stuck, now)
            self._tend_the_kept_node(now)

    def _tend_the_kept_node(self, now: float) -> None:
        """Keep a node for the first in line that has waited past the bound and that some node could serve."""
        held = patience.still_kept(self._cluster, self._line)
        if now < self._look_again and held == self._cluster.kept:
            return
        self._look_again = now + _KEEP_EVERY
        after = self._options.keep_after if self._mandate.holds() else 0.0
        if self._cluster.keep(patience.worth_keeping(self._cluster, self._line, after, now)):
            self._rouse()

    def _say_unbound(self, stuck: Stuck, now: float) -> None:
        text = answering.not_bound(stuck, (now - stuck.since) / 60)
        self._line.tell(Told(stuck.key, stuck.uid, True, answering.NOT_SCHEDULED, text, warning="GPUShareUnused"))
        if self._options.unbound == "delete" and stuck.owned:
            self._evictions.append(Evict(stuck.key, stuck.uid, stuck.version, "unbound", text))
        self._rouse()

    def take_evictions(self) -> list[Evict]:
        """The pods that must go, each once; asked for, and written, by the leader only."""
        with self._lock:
            evictions, self._evictions = self._evictions, []
            return evictions if self._mandate.holds() else []

    def overdue(self) -> tuple[Holding, ...]:
        """
        Reservations from admissions whose pods should have been seen by now.

        The watch may be behind, so this alone frees nothing: ask the API server for the pods, then `expire`.
        """
        with self._lock:
            before, writing = self._clock() - self._options.assume_ttl, self._line.writing()
            late = (h for h in self._cluster.ledger.assumed() if h.since < before)
            return tuple(h for h in late if h.key not in writing and not h.key.startswith(OWN))

    def expire(self, overdue: Iterable[Holding], exist: Container[str]) -> None:
        """
        Give back the overdue reservations, except those whose allocation id a pod that exists carries: these the watch
        will bring, and are given their time once more.
        """
        with self._lock:
            for holding in overdue:
                if holding.key in exist:
                    self._cluster.renew(holding.key, self._clock())
                elif self._cluster.forget(holding.key):
                    self._forgotten("expired")
                    self._rouse()
