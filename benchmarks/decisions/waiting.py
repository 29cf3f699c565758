"""
The cost of waiting pods: of one that joins the queue, and of a cycle that retries all of them; and the savings of
waking only the pods that an event can help.

The production controller on made-up nodes, of which no card is large enough. Processor time of one thread, so that
other programs on the machine do not count.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from allocator.cache.cache import Cache
from allocator.cache.podinfo import pod_event
from allocator.engine.engine import Engine
from allocator.engine.reference import NOWHERE, Decision, Prefer
from allocator.scheduler.core import Controller
from allocator.scheduler.events import (
    Event,
    ExcludedGpusListed,
    InventoriesListed,
    InventoryChanged,
    NamespacesLabelled,
    NodeChanged,
    NodesListed,
    PodDeleted,
    TickPhase,
    pods_listed,
)
from allocator.settings import Settings
from benchmarks.decisions import mix
from benchmarks.figures import MILLISECOND, machine_line, table
from contract import names, pods
from contract.encoding import codec
from contract.model import Allocation, ContainerAllocation, FractionRequest, GpuShare, PodRequest, Wishes
from contract.reasons.nodes import Reason
from contract.scheduling.needs import SchedulingRequest

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
    yield from _hints()


_SHAPES = 40
"""Different requests that wait, of each of the five kinds."""
_EVENTS = 120


def _hints() -> Iterator[str]:
    """Decisions that a mix of events causes, with hints and where each event wakes every pod."""
    found = {hints: _replayed(hints=hints) for hints in (False, True)}
    rows = [("hints" if hints else "every pod", f"{each.decisions}", f"{each.ms:.0f}") for hints, each in found.items()]
    yield table(f"{_EVENTS} events, {5 * _SHAPES} shapes that wait", ("woken by", "decisions", "ms in all"), rows)
    yield machine_line(
        "hints",
        {
            "all": found[False].decisions,
            "hinted": found[True].decisions,
            "all_ms": f"{found[False].ms:.0f}",
            "hinted_ms": f"{found[True].ms:.0f}",
        },
    )


@dataclass
class _Cost:
    decisions: int = 0
    ms: float = 0.0


class _Counting(Engine):
    """Counts its decisions."""

    decisions = 0

    def decide(
        self, ask: SchedulingRequest, refused: Mapping[str, Reason] = NOWHERE, prefer: Prefer | None = None
    ) -> Decision:
        self.decisions += 1
        return super().decide(ask, refused, prefer)


def _replayed(*, hints: bool) -> _Cost:
    """
    The same events on the same queue. A third of the events are pods without a share that end on GPU nodes, a third
    pods with a share, a sixth labels of nodes and a sixth GPUNodes; no pod that waits fits.
    """
    engine = _Counting()
    controller = _controller(engine, hints=hints)
    for number in range(_SHAPES):
        for kind in range(5):
            controller.handle(pod_event(pods.trim(_of_kind(kind, number))))
    for number in range(_EVENTS):
        controller.handle(pod_event(pods.trim(_ends(number))))
    controller.schedule_pending()
    for _ in range(20):  # a round takes several cycles
        controller.schedule_pending()
    engine.decisions, started = 0, time.thread_time_ns()
    for number in range(_EVENTS):
        controller.handle(_event(number))
        controller.tick(TickPhase.UPKEEP)
        controller.schedule_pending()
    return _Cost(engine.decisions, (time.thread_time_ns() - started) / MILLISECOND)


def _event(number: int) -> Event:
    at = number % _NODES
    match number % 6:
        case 0 | 3:
            return PodDeleted(f"plain-{number}")
        case 1 | 4:
            return PodDeleted(f"share-{number}")
        case 2:
            return NodeChanged(mix.facts(at, pool=f"pool-{number}"))
        case _:
            inventory = mix.inventory(at)
            first, *rest = inventory.gpus
            return InventoryChanged(replace(inventory, gpus=(replace(first, healthy=number % 12 == 5), *rest)))


def _of_kind(kind: int, number: int) -> JSON:
    """A pod that waits: short of memory, for a model, for a selector, for CPU, or for the affinity to another pod."""
    small = FractionRequest("main", memory=(1 << 20) * (number + 1))
    fraction, spec, cpu = (
        (replace(small, memory=(1 << 40) + number), {}, ""),
        (replace(small, wishes=Wishes(use_models=("None",))), {}, ""),
        (small, {"nodeSelector": {"disk": "ssd"}}, ""),
        (small, {}, f"{1000 + number}"),
        (small, {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [_NEAR]}}}, ""),
    )[kind]
    made = _pod(number, fraction, cpu)
    metadata = {**made["metadata"], "name": f"kind-{kind}-{number}", "uid": f"kind-{kind}-{number}"}
    return {**made, "metadata": metadata, "spec": {**made["spec"], **spec}}


_NEAR = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "none"}}}


def _ends(number: int) -> JSON:
    """The pod that ends by the event of this number, if one does."""
    name = "share" if number % 3 == 1 else "plain"
    made = _pod(number, FractionRequest("main", memory=1 << 20), "")
    metadata = {**made["metadata"], "name": f"{name}-{number}", "uid": f"{name}-{number}", "labels": {}}
    spec = {key: value for key, value in made["spec"].items() if key != "schedulingGates"}
    at = number % _NODES
    if name == "plain":
        metadata["annotations"] = {}
        spec["containers"] = [{"name": "main", "resources": {"requests": {"cpu": "10m"}}}]
    else:
        card = mix.inventory(at).gpus[0]
        share = GpuShare(card.uuid, card.index, 1 << 20, 0, card.memory)
        allocation = Allocation(f"id-of-{number}", mix.facts(at).name, (ContainerAllocation("main", (share,)),))
        annotations = {**metadata["annotations"], str(names.ALLOCATION): codec.allocation_to_text(allocation)}
        metadata["annotations"] = {**annotations, **codec.container_annotations(allocation)}
    return {**made, "metadata": metadata, "spec": {**spec, "nodeName": mix.facts(at).name}}


def _measured(size: int) -> tuple[float, float]:
    """Milliseconds of one more pod, and of all of them once more."""
    numbers = itertools.count()

    def join(controller: Controller) -> None:
        controller.handle(pod_event(pods.trim(_pod(next(numbers)))))

    def change_a_node(controller: Controller) -> None:
        # It helps no pod here. Without hints that is known only when all have been tried.
        controller.handle(NodeChanged(mix.facts(0, pool=f"pool-{next(numbers)}")))

    hinted, plain = _controller(), _controller(hints=False)
    for controller in (hinted, plain):
        for _ in range(size):
            join(controller)
        controller.schedule_pending()
        controller.schedule_pending()
    return _median_ms(join, hinted), _median_ms(change_a_node, plain)


def _median_ms(happens: Callable[[Controller], None], controller: Controller) -> float:
    found = []
    for _ in range(_TIMES):
        started = time.thread_time_ns()
        happens(controller)
        controller.schedule_pending()
        found.append(time.thread_time_ns() - started)
    return statistics.median(found) / MILLISECOND


def _controller(engine: Engine | None = None, *, hints: bool = True) -> Controller:
    """One that leads, and has seen all of its cluster."""
    ids = itertools.count()
    controller = Controller(
        cache=Cache(engine=engine or Engine()),
        settings=Settings(),
        clock=lambda: 100.0,
        new_id=lambda: f"id-{next(ids)}",
        leading=lambda: True,
        wake=lambda: None,
        hints=hints,
    )
    controller.handle(NodesListed(tuple(mix.facts(number) for number in range(_NODES))))
    controller.handle(InventoriesListed(tuple(mix.inventory(number) for number in range(_NODES))))
    controller.handle(ExcludedGpusListed(()))
    controller.handle(NamespacesLabelled({}))
    controller.handle(pods_listed(()))
    return controller


_LARGE = FractionRequest("main", memory=1 << 40)


def _pod(number: int, fraction: FractionRequest = _LARGE, cpu: str = "") -> JSON:
    """A pod of one Deployment, as admission leaves it where there is no room: it wants more than a card has."""
    request = PodRequest("native", (fraction,))
    asked = {str(names.GPU_MEMORY): str(fraction.memory), **({"cpu": cpu} if cpu else {})}
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
