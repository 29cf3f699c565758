"""Decisions continue whatever amounts pods, nodes and annotations contain: they may exceed the columns' 64 bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from allocator.cache.podinfo import pod_event
from allocator.scheduler.events import NodeChanged
from contract import names, pods
from contract.encoding import codec
from contract.encoding.reading import Malformed
from contract.model import MOST_MEMORY, FractionRequest, NodeState, PodRequest
from contract.nodes.attributes import MOST_TAINTS, TOO_MANY, facts, trim
from contract.nodes.inventories import inventory_from_object
from contract.scheduling.needs import Toleration, untolerated
from tests.builders import PodBuilder, node, pod
from tests.unit.allocator.harness import SchedulerHarness, admitted, question

JSON = dict[str, Any]
MOST = str((1 << 63) - 1)
"""The largest quantity that Kubernetes stores."""


def worker(name: str) -> PodBuilder:
    return pod(name).uid(f"uid-{name}").asks("gpufraction.io/gpu-memory", "1000Mi")


def asking(**amounts: str) -> Callable[[SchedulerHarness], str]:
    def comes(harness: SchedulerHarness) -> str:
        harness.controller.reserve(question(worker("odd").needs(**amounts)))
        harness.controller.handle(pod_event(pods.trim(admitted(worker("odd").needs(**amounts), gated=True))))
        return "default/odd"

    return comes


def running(harness: SchedulerHarness) -> str:
    """A pod without a share that is bound by hand, as any user who may create pods can do."""
    for number in range(3):
        builder = pod(f"odd{number}").uid(f"odd{number}").needs(cpu=MOST, memory=MOST).on("t4")
        harness.controller.handle(pod_event(pods.trim(builder.json())))
    return ""


def its_kubelet(harness: SchedulerHarness) -> str:
    odd = node("t4").gpus(1).json()
    odd["status"]["allocatable"].update({"cpu": MOST, "memory": "1e60", "ephemeral-storage": "-1e60", "pods": MOST})
    harness.controller.handle(NodeChanged(facts(trim(odd))))
    return ""


ODD: dict[str, Callable[[SchedulerHarness], str]] = {
    "a pod that wants all CPUs there are": asking(cpu=MOST),
    "a pod that wants all memory there is": asking(memory=MOST),
    "pods that have all of a node": running,
    "a node that has all there is": its_kubelet,
}


@pytest.mark.parametrize("comes", ODD.values(), ids=ODD.keys())
def test_others_are_placed_beside(comes: Callable[[SchedulerHarness], str]) -> None:
    harness = SchedulerHarness([node("t4").gpus(1), node("u").gpus(1)])
    odd = comes(harness)
    harness.controller.handle(pod_event(pods.trim(admitted(worker("p"), gated=True))))
    bindings, _ = harness.controller.schedule_pending()
    assert [binding.pod.key for binding in bindings] == ["default/p"]
    assert [each.key for each in harness.controller.view().queue if each.key == odd] == ([odd] if odd else [])
    harness.controller.check_invariants()


def test_a_request_that_no_dialect_reads_is_not_read_back() -> None:
    """A tenant may write the annotation; it must not result in anything larger than what admission writes."""
    for amount, readable in ((MOST_MEMORY, True), (MOST_MEMORY + 1, False)):
        text = codec.request_to_text(PodRequest("native", (FractionRequest("main", memory=amount),)))
        odd = pod("p").asks(names.GPU_MEMORY, amount).annotated(names.REQUEST, text)
        assert (pods.admitted(odd.json()) is not None) is readable


def test_a_card_of_more_memory_than_is_counted_is_malformed() -> None:
    gpu = {"uuid": "GPU-x", "index": 0, "memoryBytes": MOST_MEMORY + 1, "health": "Healthy"}
    with pytest.raises(Malformed, match=r"memoryBytes: found .*; give a whole number from 0 to"):
        inventory_from_object({"metadata": {"name": "t4"}, "status": {"gpus": [gpu]}})


def test_of_very_many_taints_the_first_are_read_and_the_rest_keep_pods_off() -> None:
    taints = [{"key": f"k{at}", "effect": "NoSchedule"} for at in range(5_000)]
    made = {"metadata": {"name": "n"}, "spec": {"taints": taints}}
    found = facts(trim(made))
    assert len(found.taints) == MOST_TAINTS + 1
    known = tuple(Toleration(f"k{at}", "Exists") for at in range(5_000))
    assert untolerated(NodeState("n", taints=found.taints), known) == TOO_MANY
    assert untolerated(NodeState("n", taints=found.taints), (Toleration("", "Exists"),)) is None
