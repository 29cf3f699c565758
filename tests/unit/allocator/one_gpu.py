"""A node with one GPU, a pod that has it, and pods that wait for it."""

from __future__ import annotations

from typing import Any

from allocator.cache.podinfo import pod_event
from allocator.queue.records import Binding
from contract.encoding.protocol import Placed
from contract.model import Allocation
from tests.builders import PodBuilder, node, pod
from tests.unit.allocator.harness import SchedulerHarness, admitted, question

JSON = dict[str, Any]
ONE_GPU = node("t4").gpus(1)
FULL = "waiting: 0 of 1 GPU nodes fit: 1 short of memory (largest free 5109 MiB, wanted 10000)"


def worker(name: str, *, created: str = "2030-01-01T00:00:00Z", mib: int = 10_000) -> PodBuilder:
    return pod(name).uid(f"uid-{name}").created(created).asks("gpufraction.io/gpu-memory", f"{mib}Mi")


def waiting(builder: PodBuilder) -> JSON:
    return admitted(builder, gated=True)


def running(builder: PodBuilder, allocation: Allocation) -> JSON:
    return admitted(builder.on(allocation.node), allocation=allocation)


def occupied() -> tuple[SchedulerHarness, Allocation]:
    """A harness in which the pod `first` has the only GPU."""
    harness = SchedulerHarness([ONE_GPU])
    answer = harness.controller.reserve(question(worker("first")))
    assert isinstance(answer, Placed)
    harness.controller.handle(pod_event(running(worker("first"), answer.allocation)))
    harness.controller.schedule_pending()
    return harness, answer.allocation


def keys(bindings: list[Binding]) -> list[str]:
    return [binding.pod.key for binding in bindings]
