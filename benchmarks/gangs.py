"""
`python -m benchmarks.gangs`: gangs that wait while cards come free one by one.

The production controller without an API server, on nodes of 8 cards. All cards are taken at first. Each step ends
one holder, runs the cycles that follow until none is requested, and writes what they decide at once. So in each step
every waiting pod is tried. Processor time of one thread, so that other programs on the machine do not count.
"""

from __future__ import annotations

import argparse
import itertools
import resource
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from allocator.cache.cache import Cache
from allocator.cache.podinfo import PodEvent, pod_event
from allocator.engine.engine import Engine
from allocator.features.gangs.part import GangScheduling
from allocator.features.gangs.settings import GangSettings
from allocator.queue.records import Binding
from allocator.scheduler.core import Controller
from allocator.scheduler.events import (
    BindSucceeded,
    ExcludedGpusListed,
    InventoriesListed,
    NamespacesLabelled,
    NodesListed,
    PodDeleted,
    pods_listed,
)
from allocator.settings import Settings
from benchmarks.decisions import mix
from benchmarks.figures import MILLISECOND, machine_line, table
from contract import names, pods
from contract.encoding import codec
from contract.model import Allocation, ContainerAllocation, FractionRequest, GpuShare, PodRequest

JSON = dict[str, Any]
_FRACTION = FractionRequest("main", count=1, percent=100, cores=100, exclusive=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it, and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gangs", description=__doc__.split("\n\n")[0])
    parser.add_argument("--gangs", type=int, default=1000)
    parser.add_argument("--size", type=int, default=8, help="pods of each")
    parser.add_argument("--nodes", type=int, default=100, help="nodes of 8 cards")
    parser.add_argument("--cards", type=int, default=400, help="cards that become free, one after the other")
    given = parser.parse_args(arguments)
    for line in measured(given.gangs, given.size, given.nodes, given.cards):
        print(line)
    return 0


def measured(gangs: int, size: int, nodes: int, cards: int) -> Iterator[str]:
    """The lines of the report."""
    wakes = _Wakes()
    controller = _controller(nodes, wakes.put)
    holders = [_holder(number, at, card) for number, (at, card) in enumerate(itertools.product(range(nodes), range(8)))]
    for each in holders:
        controller.handle(pod_event(pods.trim(each)))
    started = time.thread_time_ns()
    waiting = dict[str, JSON]()
    for gang, number in itertools.product(range(gangs), range(size)):
        made = _member(gang, number, size)
        waiting[made["metadata"]["uid"]] = made
        controller.handle(pod_event(pods.trim(made)))
    _settled(controller, wakes, waiting)
    first = (time.thread_time_ns() - started) / MILLISECOND
    times, settled = list[float](), list[_Settled]()
    for holder in holders[:cards]:
        begun = time.thread_time_ns()
        controller.handle(PodDeleted(pods.uid(holder)))
        settled.append(_settled(controller, wakes, waiting))
        times.append((time.thread_time_ns() - begun) / MILLISECOND)
    whole, placed = sum(times) / 1000, sum(each.written for each in settled)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    rows = [
        ("all gangs are read and told once, ms", f"{first:.0f}"),
        ("one card becomes free: median, ms", f"{statistics.median(times):.1f}"),
        ("one card becomes free: slowest, ms", f"{max(times):.1f}"),
        ("one card becomes free: cycles, mean", f"{statistics.fmean(each.cycles for each in settled):.1f}"),
        ("pods placed", f"{placed}"),
        ("pods placed in a second of processor time", f"{placed / whole:.0f}"),
        ("memory of the process, MiB", f"{memory}"),
    ]
    yield table(f"{gangs} gangs of {size} wait, {nodes} nodes of 8 cards", ("what", ""), rows)
    slowest = f"{max(times):.2f}"
    figures = {"gangs": gangs, "size": size, "median_ms": f"{statistics.median(times):.2f}", "max_ms": slowest}
    yield machine_line("gangs", {**figures, "placed": placed, "memory_mib": memory})


class _Wakes:
    """Whether another cycle was requested."""

    def __init__(self) -> None:
        self._woken = False

    def put(self) -> None:
        """Request one."""
        self._woken = True

    def take(self) -> bool:
        """Whether one was requested since the last call."""
        woken, self._woken = self._woken, False
        return woken


@dataclass(frozen=True, slots=True)
class _Settled:
    """The cycles of one step, and the pods that they placed."""

    cycles: int
    written: int


def _settled(controller: Controller, wakes: _Wakes, waiting: dict[str, JSON]) -> _Settled:
    """Cycles until none is requested."""
    cycles = written = 0
    while wakes.take():
        bindings, _ = controller.schedule_pending()
        for binding in bindings:
            controller.handle(BindSucceeded(binding, _bound(binding, waiting)))
        cycles, written = cycles + 1, written + len(bindings)
    return _Settled(cycles, written)


def _bound(binding: Binding, waiting: dict[str, JSON]) -> PodEvent:
    """The pod as the API server answers."""
    made, allocation = waiting.pop(binding.pod.uid), binding.allocation
    annotations = {**made["metadata"]["annotations"], str(names.ALLOCATION): codec.allocation_to_text(allocation)}
    if binding.plan:
        annotations[str(names.GANG_PLAN)] = binding.plan
    metadata = {**made["metadata"], "annotations": annotations, "resourceVersion": "2"}
    spec = {**made["spec"], "nodeName": allocation.node}
    del spec["schedulingGates"]
    return pod_event(pods.trim({**made, "metadata": metadata, "spec": spec}))


def _controller(nodes: int, wake: Callable[[], None]) -> Controller:
    ids = itertools.count()
    controller = Controller(
        cache=Cache(engine=Engine()),
        settings=Settings(),
        clock=lambda: 100.0,
        new_id=lambda: f"id-{next(ids)}",
        leading=lambda: True,
        wake=wake,
        parts=(lambda core: GangScheduling(core, GangSettings()).part(),),
    )
    controller.handle(NodesListed(tuple(mix.facts(number) for number in range(nodes))))
    controller.handle(InventoriesListed(tuple(mix.inventory(number) for number in range(nodes))))
    controller.handle(ExcludedGpusListed(()))
    controller.handle(NamespacesLabelled({}))
    controller.handle(pods_listed(()))
    return controller


def _member(gang: int, number: int, size: int) -> JSON:
    name = f"gang-{gang}-{number}"
    made = _pod(name, f"tenant-{gang % 20}")
    extra = {str(names.GANG): f"gang-{gang}", str(names.GANG_MINIMUM): str(size)}
    made["metadata"]["annotations"].update(extra)
    made["spec"]["schedulingGates"] = [{"name": str(names.GATE)}]
    return made


def _holder(number: int, at: int, card: int) -> JSON:
    made, gpu = _pod(f"holder-{number}", "holders"), mix.inventory(at).gpus[card]
    share = GpuShare(gpu.uuid, gpu.index, gpu.usable, 100, gpu.memory)
    allocation = Allocation(f"holds-{number}", mix.facts(at).name, (ContainerAllocation("main", (share,)),))
    made["metadata"]["annotations"][str(names.ALLOCATION)] = codec.allocation_to_text(allocation)
    made["spec"]["nodeName"] = allocation.node
    return made


def _pod(name: str, namespace: str) -> JSON:
    request = PodRequest("native", (_FRACTION,))
    asked = {str(names.GPU_MEMORY): "1Gi", str(names.GPU_CORES): "100"}
    return {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"uid-{name}",
            "resourceVersion": "1",
            "creationTimestamp": "2026-01-05T08:00:00Z",
            "annotations": {str(names.REQUEST): codec.request_to_text(request)},
        },
        "spec": {
            "containers": [{"name": "main", "resources": {"limits": asked, "requests": asked}}],
            "tolerations": [{"operator": "Exists"}],
        },
    }


if __name__ == "__main__":
    raise SystemExit(main())
