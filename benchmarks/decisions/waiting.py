"""
What pods cost that wait: one that joins the queue behind others, and a cycle in which all of them are tried again.

The production controller on made-up nodes, of which no card is large enough. Processor time of one thread, so that
other programs on the machine do not count.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

from allocator.cache.cache import Cache
from allocator.cache.podinfo import pod_event
from allocator.claims import objects
from allocator.engine.engine import Engine
from allocator.options import SchedulerOptions
from allocator.scheduler.core import Controller
from allocator.scheduler.events import (
    ClaimsListed,
    ExcludedGpusListed,
    InventoriesListed,
    NamespacesLabelled,
    NodeChanged,
    NodesListed,
    pods_listed,
)
from benchmarks.decisions import mix
from benchmarks.figures import MILLISECOND, machine_line, table
from contract import names, pods
from contract.encoding import codec, quantity
from contract.model import FractionRequest, PodRequest

JSON = dict[str, Any]
SIZES = (100, 1_000, 5_000)
_NODES, _TIMES = 50, 21


def waiting(sizes: tuple[int, ...] = SIZES) -> Iterator[str]:
    """By how many wait: the cost of one more, and of a cycle in which all are tried again."""
    rows, lines = [], []
    for size in sizes:
        joins, again = _measured(size)
        rows.append((f"{size}", f"{joins:.2f}", f"{again:.1f}"))
        lines.append(machine_line("waiting", {"pods": size, "join_ms": f"{joins:.3f}", "again_ms": f"{again:.2f}"}))
    yield table("Processor time in ms, median", ("pods that wait", "one more", "all are tried again"), rows)
    yield from lines


def _measured(size: int) -> tuple[float, float]:
    """Milliseconds of one more pod, and of all of them once more."""
    controller = _controller()
    numbers = itertools.count()

    def join() -> None:
        controller.handle(pod_event(pods.trim(_pod(next(numbers)))))

    def change_a_node() -> None:
        # It helps no pod here, which is known only when all have been tried.
        controller.handle(NodeChanged(mix.facts(0, pool=f"pool-{next(numbers)}")))

    for _ in range(size):
        join()
    controller.schedule_pending()
    controller.schedule_pending()
    return _median_ms(join, controller), _median_ms(change_a_node, controller)


def _median_ms(happens: Callable[[], None], controller: Controller) -> float:
    found = []
    for _ in range(_TIMES):
        started = time.thread_time_ns()
        happens()
        controller.schedule_pending()
        found.append(time.thread_time_ns() - started)
    return statistics.median(found) / MILLISECOND


def _controller() -> Controller:
    """One that leads, and has seen all of its cluster."""
    ids = itertools.count()
    controller = Controller(
        cache=Cache(engine=Engine()),
        options=SchedulerOptions(),
        clock=lambda: 100.0,
        new_id=lambda: f"id-{next(ids)}",
        leading=lambda: True,
        wake=lambda: None,
    )
    controller.handle(NodesListed(tuple(mix.facts(number) for number in range(_NODES))))
    controller.handle(InventoriesListed(tuple(mix.inventory(number) for number in range(_NODES))))
    controller.handle(ExcludedGpusListed(()))
    controller.handle(NamespacesLabelled({}))
    for plural in (objects.CLAIMS, objects.CLASSES, objects.SHARES):
        controller.handle(ClaimsListed(plural, ()))
    controller.handle(pods_listed(()))
    return controller


def _pod(number: int) -> JSON:
    """A pod of one Deployment, as admission leaves it where there is no room: it wants more than a card has."""
    request = PodRequest("native", (FractionRequest("main", memory=1 << 40),))
    asked = {str(names.GPU_MEMORY): quantity.format_bytes(1 << 40)}
    return {
        "metadata": {
            "name": f"pod-{number}",
            "namespace": "tenant",
            "uid": f"uid-{number}",
            "resourceVersion": "1",
            "creationTimestamp": "2026-01-05T08:00:00Z",
            "labels": {"app": "bench"},
            "annotations": {str(names.REQUEST): codec.request_to_text(request)},
        },
        "spec": {
            "schedulingGates": [{"name": str(names.GATE)}],
            "containers": [{"name": "main", "resources": {"limits": asked, "requests": asked}}],
        },
    }
