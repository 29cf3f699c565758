"""
The allocator's figures for scrapers: read from the controller at each scrape, and not stored in between.

GPUs come and go, so their gauges are read row by row, and a removed node is no longer reported.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator

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
        except Exception:  # the other metrics are needed even more then
            log.exception("gauges not brought up to date")
        return render(request)

    return {**routes, ("GET", "/metrics"): fresh}


class AllocatorGauges:
    """Sets every gauge of the allocator from its controller."""

    def __init__(self, controller: Controller, metrics: Metrics, leading: Callable[[], bool]) -> None:
        self._controller = controller
        self._leading = leading
        self._one_at_a_time = threading.Lock()  # two scrapes at once would mix their figures
        self._reservations = metrics.gauge(specs.RESERVATIONS)
        self._waiting = metrics.gauge(specs.WAITING_PODS)
        self._parked = metrics.gauge(specs.PARKED_PODS)
        self._unreadable = metrics.gauge(specs.UNREADABLE_PODS)
        self._overcommitted = metrics.gauge(specs.OVERCOMMITTED_GPUS)
        self._reserved_nodes = metrics.gauge(specs.RESERVED_NODES)
        self._unbound = metrics.gauge(specs.UNBOUND_PODS)
        self._unread = metrics.gauge(specs.UNREAD_SHARES)
        self._quarantined = metrics.gauge(specs.QUARANTINED_PODS)
        self._leader = metrics.gauge(specs.LEADER)
        metrics.rows(specs.GPU_MEMORY_ALLOCATED, lambda: self._of_gpus(lambda usage: usage.memory))
        metrics.rows(specs.GPU_MEMORY_LIMITS, lambda: self._of_gpus(lambda usage: usage.memory + usage.burst))
        metrics.rows(specs.GPU_CORES_ALLOCATED, lambda: self._of_gpus(lambda usage: usage.cores / WHOLE))
        metrics.rows(specs.NOT_EVALUATED_PODS, self._of_not_evaluated)
        metrics.rows(specs.AGENT_SILENT, self._of_silent_agents)
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
            self._unread.set(look.unread)
            self._quarantined.set(look.quarantined)
            self._leader.set(float(self._leading()))

    def _of_not_evaluated(self) -> Iterator[tuple[tuple[str, ...], float]]:
        for what, count in self._controller.not_evaluated().items():
            yield (what,), count

    def _of_silent_agents(self) -> Iterator[tuple[tuple[str, ...], float]]:
        yield from (((node.name,), 1.0) for node in self._controller.nodes() if node.silent)

    def _of_gpus(self, figure: Callable[[Usage], float]) -> Iterator[tuple[tuple[str, ...], float]]:
        for node in self._controller.nodes():
            for gpu, usage in zip(node.gpus, node.usage, strict=True):
                yield (node.name, gpu.uuid), figure(usage)
