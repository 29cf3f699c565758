"""Two engines that start on one card at the same time are found."""

from __future__ import annotations

from typing import Any

from contract import names
from contract.encoding.protocol import Placed
from playground.api.store.store import Change
from tests.builders import node, pod
from tests.simulation.features import starts
from tests.unit.allocator.harness import SchedulerHarness, admitted, question
from tests.unit.simulation_features.fakes import run

JSON = dict[str, Any]
READY = {"conditions": [{"type": "Ready", "status": "True"}]}


def engine(name: str, *, alone: bool = True) -> JSON:
    """An engine with its share on the only card."""
    made = pod(name).uid(f"uid-{name}").asks("gpufraction.io/gpu-memory", "1Gi")
    made = made.annotated(names.START, names.ALONE) if alone else made
    answer = SchedulerHarness([node("n").gpus(1)]).controller.reserve(question(made))
    assert isinstance(answer, Placed)
    return admitted(made, allocation=answer.allocation)


def change(kind: str, pod: JSON) -> Change:
    return Change(kind, "pods", 1, pod)


def test_two_that_are_starting_on_one_card_are_found() -> None:
    holds = starts.OneAtATime(run()).holds
    assert holds(change("ADDED", engine("a"))) is None
    assert holds(change("MODIFIED", engine("a"))) is None
    assert holds(change("MODIFIED", engine("b"))) == "default/b starts on a card on which default/a is starting"


def test_one_after_the_other_may_start_and_others_alongside() -> None:
    holds = starts.OneAtATime(run()).holds
    changes = [
        change("ADDED", engine("a")),
        change("ADDED", engine("o", alone=False)),
        change("MODIFIED", {**engine("a"), "status": READY}),
        change("MODIFIED", engine("b")),
        change("DELETED", engine("b")),
        change("MODIFIED", engine("c")),
    ]
    assert [holds(each) for each in changes] == [None] * 6
