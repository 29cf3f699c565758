"""
The allocator's figures for whoever scrapes them: read from the controller at each scrape, kept by nobody in between.

Which GPUs there are changes, so their gauges are read row by row and a node that has left is not reported for ever.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator

from allocator.features.metering.meter import Counted
from allocator.scheduler.core import Controller
from contract.metrics import allocator as specs
from contract.model import WHOLE, Usage
from runtime.httpserver import Reply, Request, Routes
from runtime.metrics import Metrics

log = logging.getLogger(__name__)


def scraped(routes: Routes, refresh: Callable[[], None]) -> Routes:
    """The routes, with the gauges brought up to date before each `/metrics`."""
    render = routes["GET", "/metrics"]

    def fresh(request: Request) -> Reply:
        try:
            refresh()
        except Exception:  # the other metrics are wanted all the more then
            log.exception("gauges not brought up to date")
        return render(request)

    return {**routes, ("GET", "/metrics"): fresh}


class AllocatorGauges:
    """Sets every gauge of the allocator from its controller."""

    def __init__(self, controller: Controller, metrics: Metrics, leading: Callable[[], bool]) -> None:
        self._controller, self._leading = controller, leading
        self._one_at_a_time = threading.Lock()  # two scrapes at once would mix their figures
        self._reservations = metrics.gauge(specs.RESERVATIONS)
        self._waiting = metrics.gauge(specs.WAITING_PODS)
        self._parked = metrics.gauge(specs.PARKED_PODS)
        self._unreadable = metrics.gauge(specs.UNREADABLE_PODS)
        self._overcommitted = metrics.gauge(specs.OVERCOMMITTED_GPUS)
        self._reserved_nodes = metrics.gauge(specs.RESERVED_NODES)
        self._unbound = metrics.gauge(specs.UNBOUND_PODS)
        self._quarantined = metrics.gauge(specs.QUARANTINED_PODS)
        self._leader = metrics.gauge(specs.LEADER)
        self._idle = metrics.gauge(specs.IDLE_PODS)
        metrics.rows(specs.GPU_MEMORY_ALLOCATED, lambda: self._of_gpus(lambda usage: usage.memory))
        metrics.rows(specs.GPU_MEMORY_LIMITS, lambda: self._of_gpus(lambda usage: usage.memory + usage.burst))
        metrics.rows(specs.GPU_CORES_ALLOCATED, lambda: self._of_gpus(lambda usage: usage.cores / WHOLE))
        metrics.rows(specs.CLAIMS, lambda: iter(self._controller.claim_counts()[0].items()))
        metrics.rows(specs.ELASTIC_GPUS, self._of_shares)
        metrics.rows(specs.NOT_EVALUATED_PODS, self._of_not_evaluated)
        metrics.rows(specs.GPU_SHARERS, lambda: self._of_gpus(lambda usage: usage.sharers))

    def refresh(self) -> None:
        """Read the controller."""
        with self._one_at_a_time:
            look = self._controller.look()
            self._reservations.labels(state="assumed").set(look.assumed)
            self._reservations.labels(state="confirmed").set(look.confirmed)
            self._waiting.set(look.waiting)
            self._parked.set(look.parked)
            self._unreadable.set(look.unreadable)
            self._overcommitted.set(look.overcommitted)
            self._reserved_nodes.set(look.reserved)
            self._unbound.set(look.unbound)
            self._quarantined.set(look.quarantined)
            self._leader.set(float(self._leading()))
            agreed, others = look.idle
            self._idle.labels(agreed="yes").set(agreed)
            self._idle.labels(agreed="no").set(others)

    def _of_not_evaluated(self) -> Iterator[tuple[tuple[str, ...], float]]:
        for what, count in self._controller.not_evaluated().items():
            yield (what,), count

    def _of_shares(self) -> Iterator[tuple[tuple[str, ...], float]]:
        for phase, count in self._controller.claim_counts()[1].items():
            yield (phase,), count

    def _of_gpus(self, figure: Callable[[Usage], float]) -> Iterator[tuple[tuple[str, ...], float]]:
        for node in self._controller.nodes():
            for gpu, usage in zip(node.gpus, node.usage, strict=True):
                yield (node.name, gpu.uuid), figure(usage)


class CardHours:
    """
    The counters of card hours. `counted` gives what was counted, `new` for how many seconds a new series reads 0.

    Prometheus does not count what a series had when it first saw it. Without the pause a short job would be missing
    from the bill, and so would the time between two leaders, which the new one has when it begins.
    """

    def __init__(
        self, metrics: Metrics, counted: Callable[[], Counted], *, new: float, clock: Callable[[], float]
    ) -> None:
        self._new, self._clock = new, clock
        self._seen: dict[str, dict[tuple[str, ...], float]] = {}
        """By metric and labels when each series was first shown."""
        metrics.rows(specs.SHARE_HELD_SECONDS, lambda: self._settled("held", counted().held.items()))
        metrics.rows(specs.SHARE_IDLE_SECONDS, lambda: self._settled("idle", counted().idle.items()))
        metrics.rows(specs.GPU_FREE_SECONDS, lambda: self._settled("free", _of_free(counted())))

    def _settled(self, what: str, rows: Iterable[tuple[tuple[str, ...], float]]) -> list[tuple[tuple[str, ...], float]]:
        now, before, found = self._clock(), self._seen.get(what, {}), list(rows)
        seen = self._seen[what] = {labels: before.get(labels, now) for labels, _ in found}
        return [(labels, seconds if now - seen[labels] >= self._new else 0.0) for labels, seconds in found]


def _of_free(counted: Counted) -> Iterator[tuple[tuple[str, ...], float]]:
    for account, seconds in counted.free.items():
        yield (account.model, "open" if account.takes_pods else "closed"), seconds
