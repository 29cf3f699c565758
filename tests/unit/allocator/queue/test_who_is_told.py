"""Which pods get the condition `Allocated` and an Event with their share: those that were told something else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from allocator.cache.podinfo import pod_event
from allocator.queue.records import StatusUpdate
from allocator.scheduler.events import BindSucceeded, PodDeleted
from contract import names
from contract.encoding.protocol import Placed
from contract.reasons.pods import PodReason
from tests.unit.allocator.chosen import chosen
from tests.unit.allocator.harness import SchedulerHarness, admitted, question
from tests.unit.allocator.one_gpu import ONE_GPU, occupied, running, waiting, worker

JSON = dict[str, Any]
TEXT = "10000 MiB of GPU 0 (Tesla T4) on t4"


def told(*, event: bool = True, name: str = "p") -> StatusUpdate:
    return StatusUpdate(f"default/{name}", f"uid-{name}", True, PodReason.ALLOCATED, TEXT, event=event)


def with_condition(made: JSON, status: str) -> JSON:
    condition = {"type": str(names.ALLOCATED_CONDITION), "status": status, "reason": "Memory", "message": "full"}
    return {**made, "status": {"conditions": [condition]}}


@dataclass(frozen=True)
class Case:
    """
    A pod that is seen with its share. bound: whether `spec.nodeName` is set. shows: the status of its condition.
    writes: what it gets, by the setting `placement.condition`.
    """

    bound: bool
    shows: str
    waited: list[StatusUpdate]
    always: list[StatusUpdate]


CASES = {
    "placed at its creation, by nodeName": Case(True, "", [], [told()]),
    "placed at its creation, by affinity": Case(False, "", [], [told(event=False)]),
    "waited, and is bound": Case(True, "False", [told()], [told()]),
    "waited, and kube-scheduler has yet to bind it": Case(False, "False", [told(event=False)], [told(event=False)]),
    "waited, and was told of its share": Case(True, "True", [], []),
}


@pytest.mark.parametrize("condition", ["waited", "always"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_who_gets_the_condition(case: Case, condition: str) -> None:
    harness = SchedulerHarness([ONE_GPU], options=chosen(condition=condition))
    answer = harness.controller.reserve(question(worker("p")))
    assert isinstance(answer, Placed)
    allocation = answer.allocation
    made = running(worker("p"), allocation) if case.bound else admitted(worker("p"), allocation=allocation)
    seen = with_condition(made, case.shows) if case.shows else made
    harness.controller.handle(pod_event(seen))
    wanted = case.waited if condition == "waited" else case.always
    assert harness.controller.schedule_pending() == ([], wanted)
    bound = running(worker("p"), allocation)
    harness.controller.handle(pod_event(with_condition(bound, "True") if wanted or case.shows else bound))
    assert harness.controller.schedule_pending() == ([], []), "one pod is told once"
    assert harness.controller.look().confirmed == 1
    harness.controller.check_invariants()


def test_a_gated_pod_that_gets_its_share_in_the_first_cycle_is_told_nothing() -> None:
    harness = SchedulerHarness([ONE_GPU])
    harness.controller.handle(pod_event(waiting(worker("p"))))
    [binding], reports = harness.controller.schedule_pending()
    harness.controller.handle(BindSucceeded(binding, pod_event(admitted(worker("p"), allocation=binding.allocation))))
    assert (reports, harness.controller.schedule_pending()) == ([], ([], []))


def test_a_pod_is_told_of_its_share_before_the_watch_shows_that_it_waits() -> None:
    harness, _ = occupied()
    harness.controller.handle(pod_event(waiting(worker("second"))))
    [waits] = harness.controller.schedule_pending()[1]
    assert isinstance(waits, StatusUpdate)
    assert not waits.allocated
    harness.controller.handle(PodDeleted("uid-first"))
    [binding], _ = harness.controller.schedule_pending()
    placed = admitted(worker("second"), allocation=binding.allocation)
    harness.controller.handle(BindSucceeded(binding, pod_event(placed)))
    assert harness.controller.schedule_pending()[1] == [told(event=False, name="second")]


def test_a_pod_that_was_placed_at_once_is_told_when_somebody_says_that_it_waits() -> None:
    harness, allocation = occupied()
    stale = with_condition(running(worker("first"), allocation), "False")
    harness.controller.handle(pod_event(stale))
    assert harness.controller.schedule_pending()[1] == [told(name="first")]
