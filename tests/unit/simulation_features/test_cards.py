"""A card that is allocated twice is found at its commit, or at rest if a pod came late."""

from __future__ import annotations

from typing import Any

from contract.encoding.protocol import Placed
from tests.builders import node, pod
from tests.simulation.features import cards
from tests.unit.allocator.harness import SchedulerHarness, admitted, question
from tests.unit.simulation_features.fakes import change, run

JSON = dict[str, Any]
NODE = node("n").gpus(1)


def large(name: str) -> JSON:
    asking = pod(name).asks("gpufraction.io/gpu-memory", "10Gi").uid(f"u-{name}")
    answer = SchedulerHarness([NODE]).controller.reserve(question(asking))
    assert isinstance(answer, Placed)
    return admitted(asking.on("n"), allocation=answer.allocation)


def invariant(found: Any) -> Any:
    holds = next(each for each in cards.FEATURE.invariants if each.name == cards.BOOKED_ONCE).make(found)
    assert holds(change("gpunodes.gpufraction.io", NODE.gpunode(), "ADDED")) is None
    assert holds(change("pods", large("first"), "ADDED")) is None
    return holds


def at_rest(found: Any) -> list[str]:
    (goal,) = (each for each in cards.FEATURE.goals if each.name == "no card stays booked twice")
    return goal.missing(found)


def test_a_card_that_is_booked_twice_is_found() -> None:
    found = run()
    holds = invariant(found)
    assert at_rest(found) == []
    assert "hold 20480 MiB of ('n', 'GPU-n-0')" in holds(change("pods", large("second"), "ADDED"))
    assert len(at_rest(found)) == 1


def test_a_pod_that_was_stored_late_may_hold_a_card_twice_until_it_is_failed() -> None:
    found = run()
    holds, now = invariant(found), [100.0]
    found.kernel.seconds = lambda: now[0]
    (reviewed,) = found.world.reviewed
    reviewed({"request": {"namespace": "default", "name": "second"}})
    now[0] += cards.RESERVED + 1
    assert holds(change("pods", large("second"), "ADDED")) is None
    assert len(at_rest(found)) == 1
    failed = {**large("second"), "status": {"phase": "Failed"}}
    assert holds(change("pods", failed)) is None
    assert at_rest(found) == []


def test_a_pod_that_was_stored_at_once_may_not() -> None:
    found = run()
    holds = invariant(found)
    (reviewed,) = found.world.reviewed
    reviewed({"request": {"namespace": "default", "name": "second"}})
    assert holds(change("pods", large("second"), "ADDED"))
