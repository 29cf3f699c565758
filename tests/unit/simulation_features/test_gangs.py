"""A gang that starts in part or at admission, or that stays incomplete, is found."""

from __future__ import annotations

from typing import Any

from contract import names
from contract.encoding.protocol import Placed
from contract.reasons.pods import PodReason
from playground.api.store.store import Change
from tests.builders import PodBuilder, node, pod
from tests.simulation.features import gangs
from tests.unit.allocator.harness import SchedulerHarness, admitted, question
from tests.unit.simulation_features.fakes import FakeStore, run

JSON = dict[str, Any]


def member(name: str) -> PodBuilder:
    made = pod(name).uid(f"uid-{name}").asks("gpufraction.io/gpu-memory", "1Gi")
    return made.annotated(names.GANG, "g").annotated(names.GANG_MINIMUM, "2")


def waits(name: str, reason: str = "") -> JSON:
    told = {"type": names.ALLOCATED_CONDITION, "status": "False", "reason": reason}
    return {**admitted(member(name), gated=True), "status": {"conditions": [told] if reason else []}}


def placed(name: str) -> JSON:
    alone = member(name).annotated(names.GANG, "none")
    answer = SchedulerHarness([node("n").gpus(1)]).controller.reserve(question(alone))
    assert isinstance(answer, Placed)
    return admitted(member(name), allocation=answer.allocation)


def change(kind: str, pod: JSON) -> Change:
    return Change(kind, "pods", 1, pod)


def test_a_gang_that_starts_in_part_is_found() -> None:
    holds = gangs.Starts(run()).holds
    assert holds(change("ADDED", waits("a"))) is None
    assert holds(change("MODIFIED", placed("a"))) == (
        "default/a is placed, and gang g (annotation) has had 1 of 2 pods"
    )


def test_a_gang_of_which_all_pods_were_there_may_start() -> None:
    holds = gangs.Starts(run()).holds
    changes = [("ADDED", waits("a")), ("ADDED", waits("b")), ("MODIFIED", placed("a")), ("MODIFIED", placed("b"))]
    assert [holds(change(kind, found)) for kind, found in changes] == [None] * 4


def test_a_pod_of_a_gang_that_is_placed_at_admission_is_found() -> None:
    found = gangs.Starts(run()).holds(change("ADDED", placed("a")))
    assert found == "default/a of gang g (annotation) is placed at its admission"


def test_a_gang_in_halves_is_found() -> None:
    (goal,) = gangs.FEATURE.goals
    store = FakeStore(pods=[placed("a"), waits("b", PodReason.GANG_INCOMPLETE)])
    assert goal.missing(run(store)) == ["default/b waits for its gang, and default/a of it has its share"]
    fits_nowhere = FakeStore(pods=[placed("a"), waits("b", "Memory")])
    assert goal.missing(run(fits_nowhere)) == []
