"""No pod is placed on a node that has GPUs for it, but no room by what Kubernetes counts for the pods there."""

from __future__ import annotations

from typing import Any

import pytest

from allocator.cache.podinfo import pod_event
from allocator.engine.reference import Policy
from allocator.scheduler.events import PodDeleted
from contract import names
from contract.encoding.protocol import Never, Placed, Wait
from tests.builders import PodBuilder, node, pod
from tests.unit.allocator.harness import SchedulerHarness, admitted, question

JSON = dict[str, Any]


def large_first(name: str) -> PodBuilder:
    """Kubernetes counts 20000 MiB for it; on one card it holds 15000."""
    made = pod(name).uid(f"uid-{name}").init("first").asks(names.GPU_MEMORY, "15000Mi")
    for container in ("main", "second"):
        made = made.container(container).asks(names.GPU_MEMORY, "5000Mi")
    return made


def usual(name: str, mib: int) -> PodBuilder:
    return pod(name).uid(f"uid-{name}").asks(names.GPU_MEMORY, f"{mib}Mi")


def running(harness: SchedulerHarness, made: PodBuilder) -> JSON:
    """The pod once it runs on its node."""
    answer = harness.controller.reserve(question(made))
    assert isinstance(answer, Placed), answer
    bound = admitted(made.on(answer.allocation.node).phase("Running"), allocation=answer.allocation)
    harness.controller.handle(pod_event(bound))
    return bound


def test_a_pod_waits_for_the_room_that_kubernetes_lacks_and_gets_it() -> None:
    """Both cards have 15109 MiB. The first pod holds 15000 of one card."""
    harness = SchedulerHarness([node("n1").gpus(2)])
    running(harness, large_first("large"))
    answer = harness.controller.reserve(question(usual("p", 15000)))
    assert isinstance(answer, Wait)
    assert answer.reason == (
        "0 of 1 GPU nodes fit: 1 short of GPU memory in MiB, as Kubernetes counts it, which is more than pods hold "
        "(most free 10218, wanted 15000)"
    )
    harness.controller.handle(pod_event(admitted(usual("p", 15000), gated=True)))
    assert harness.controller.schedule_pending()[0] == []
    harness.controller.handle(PodDeleted("uid-large"))
    assert [each.pod.key for each in harness.controller.schedule_pending()[0]] == ["default/p"]
    harness.controller.check_invariants()


def test_what_is_left_for_kubernetes_is_given() -> None:
    harness = SchedulerHarness([node("n1").gpus(2)])
    running(harness, large_first("large"))
    running(harness, usual("p", 10000))
    assert isinstance(harness.controller.reserve(question(usual("q", 300))), Wait)
    running(harness, usual("r", 200))


def test_a_restarted_replica_knows_what_is_counted() -> None:
    before = SchedulerHarness([node("n1").gpus(2)])
    large = running(before, large_first("large"))
    after = SchedulerHarness([node("n1").gpus(2)], synced=False)
    after.sync([large])
    assert isinstance(after.controller.reserve(question(usual("p", 15000))), Wait)


@pytest.mark.parametrize("policy", [Policy("binpack"), Policy("value")], ids=lambda policy: policy.node)
def test_a_pod_that_kubernetes_counts_as_larger_than_any_node_is_told_so(policy: Policy) -> None:
    harness = SchedulerHarness([node("n1").gpus(1), node("n2").gpus(1)], policy=policy)
    answer = harness.controller.reserve(question(large_first("large")))
    assert isinstance(answer, Never)
    assert "as Kubernetes counts it" in answer.reason
