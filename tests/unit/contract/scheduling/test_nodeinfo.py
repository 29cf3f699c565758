"""A node with additional pods, as a decision imagines it."""

from __future__ import annotations

from contract.encoding.quantity import GIB
from contract.model import (
    FREE,
    Compute,
    ContainerAllocation,
    FractionRequest,
    Gpu,
    GpuShare,
    NodeState,
    PodRequest,
    Usage,
)
from contract.scheduling.demand import Demand, usage_of
from contract.scheduling.needs import PodNeeds, SchedulingRequest
from contract.scheduling.nodeinfo import booked, holding

GPUS = tuple(Gpu(f"GPU-{at}", at, "T4", 10 * GIB, 10 * GIB) for at in range(2))
EMPTY = NodeState("n1", GPUS, (FREE, FREE), requested=Compute(cpu=500), host_ports=frozenset({("", "TCP", 22)}))
SMALL, WHOLE_CARD = Demand(2 * GIB, 20, False), Demand(10 * GIB, 100, True)


def test_nobody_more_changes_nothing() -> None:
    assert holding(EMPTY, []) == EMPTY


def test_what_pods_take_and_need_adds_up() -> None:
    needs = PodNeeds(Compute(cpu=1000, memory=GIB, pods=1), host_ports=frozenset({("", "TCP", 80)}))
    after = holding(EMPTY, [({"GPU-0": SMALL}, needs), ({"GPU-0": SMALL, "GPU-1": WHOLE_CARD}, needs)])
    assert after.usage == (Usage(4 * GIB, 40, 2, False), Usage(10 * GIB, 100, 1, True))
    assert after.requested == Compute(cpu=2500, memory=2 * GIB, pods=2)
    assert after.host_ports == {("", "TCP", 22), ("", "TCP", 80)}


def test_a_share_of_a_gpu_that_is_not_there_counts_nowhere() -> None:
    assert holding(EMPTY, [({"GPU-9": SMALL}, PodNeeds(Compute()))]) == EMPTY


def test_a_booked_pod_takes_what_its_containers_take_at_most_at_any_time() -> None:
    containers = (FractionRequest("init", 1, memory=4 * GIB, init=True), FractionRequest("main", 1, memory=3 * GIB))
    given = [
        ContainerAllocation(each.container, (GpuShare("GPU-1", 1, each.memory, 0, 10 * GIB),)) for each in containers
    ]
    after = booked(EMPTY, SchedulingRequest(PodRequest("native", containers), PodNeeds(Compute(pods=1))), given)
    assert (after.usage, after.requested) == ((FREE, Usage(4 * GIB, 0, 1, False)), Compute(cpu=500, pods=1))


def test_the_usage_of_a_gpu_is_the_sum_of_its_pods() -> None:
    assert (usage_of([]), usage_of([SMALL, SMALL])) == (FREE, Usage(4 * GIB, 40, 2, False))
    assert usage_of([SMALL, WHOLE_CARD]).exclusive
