"""A forgotten pod is found."""

from __future__ import annotations

from typing import Any

from contract import names
from contract.encoding.protocol import Placed
from tests.builders import node, pod
from tests.simulation.features import workload
from tests.unit.allocator.harness import SchedulerHarness, admitted, question

JSON = dict[str, Any]
SMALL = pod("small").asks("gpufraction.io/gpu-memory", "1Gi")
NODE = node("n").gpus(1)
CARDS = frozenset(gpu.uuid for gpu in NODE.inventory().gpus)


def with_condition(found: JSON, status: str, reason: str = "Waiting") -> JSON:
    told = {"type": names.ALLOCATED_CONDITION, "status": status, "reason": reason}
    return {**found, "status": {"conditions": [told]}}


def placed(phase: str) -> JSON:
    answer = SchedulerHarness([NODE]).controller.reserve(question(SMALL))
    assert isinstance(answer, Placed)
    return {**admitted(SMALL.on("n"), allocation=answer.allocation), "status": {"phase": phase}}


def test_a_pod_that_waits_without_a_reason_is_forgotten() -> None:
    waits = admitted(SMALL, gated=True)
    assert workload.problem_of(waits, CARDS) == "waits, and its condition is {}"
    assert "waits" in workload.problem_of(with_condition(waits, "False", ""), CARDS)
    assert workload.problem_of(with_condition(waits, "False"), CARDS) == ""


def test_a_pod_that_neither_waits_nor_has_a_share_is_forgotten() -> None:
    assert workload.problem_of(admitted(SMALL), CARDS) == "asked for a share, and neither has one nor waits"


def test_a_pod_whose_share_was_taken_back_says_so() -> None:
    withdrawn = admitted(SMALL.annotated(str(names.WITHDRAWN), "n"))
    assert "lost its share" in workload.problem_of(withdrawn, CARDS)
    assert workload.problem_of(with_condition(withdrawn, "False"), CARDS) == ""


def test_a_pod_with_a_share_of_a_card_that_is_there_runs() -> None:
    assert workload.problem_of(placed("Running"), CARDS) == ""
    assert workload.problem_of(placed("Pending"), CARDS) == "has a share, and is Pending"
    assert workload.problem_of(placed("Pending"), frozenset()) == ""
