"""The messages of queued pods over time: new figures, other reasons, and a new leader's messages."""

from __future__ import annotations

import pytest

from allocator.cache.podinfo import pod_event
from allocator.queue.records import StatusUpdate
from allocator.scheduler.events import NodeChanged, NodeDeleted, TickPhase
from contract import names
from contract.encoding.protocol import Placed
from contract.nodes.attributes import facts, trim
from contract.reasons.nodes import Code
from tests.unit.allocator.harness import SchedulerHarness, question
from tests.unit.allocator.one_gpu import FULL, ONE_GPU, occupied, running, waiting, worker

LESS = "waiting: 0 of 1 GPU nodes fit: 1 short of memory (largest free 2037 MiB, wanted 10000)"
MINUTE = 60.0
SAME = {"type": str(names.ALLOCATED_CONDITION), "status": "False", "reason": "Memory", "message": FULL}


def shrunken() -> SchedulerHarness:
    """A harness whose pod `second` has a message of 5109 MiB free, of which another pod has taken 3072 since."""
    harness, _ = occupied()
    harness.controller.handle(pod_event(waiting(worker("second"))))
    harness.controller.schedule_pending()
    answer = harness.controller.reserve(question(worker("third", mib=3072)))
    assert isinstance(answer, Placed)
    harness.controller.handle(pod_event(running(worker("third", mib=3072), answer.allocation)))
    return harness


def about(harness: SchedulerHarness, name: str) -> list[object]:
    """The pod's messages from one pass."""
    return [
        update
        for update in harness.controller.schedule_pending()[1]
        if isinstance(update, StatusUpdate) and update.key.endswith(name)
    ]


def test_new_figures_are_reported_after_a_minute_without_an_event() -> None:
    harness = shrunken()
    assert about(harness, "second") == [], "the old ones are a moment old"
    harness.now += MINUTE
    want = StatusUpdate("default/second", "uid-second", False, Code.MEMORY.word, LESS, turned=False, event=False)
    assert (about(harness, "second"), about(harness, "second")) == ([want], [])


def test_figures_that_were_too_new_are_reported_by_a_later_pass() -> None:
    harness = shrunken()
    assert about(harness, "second") == []
    for _ in range(4):
        harness.now += MINUTE / 4
        woken = harness.woken
        harness.controller.tick(TickPhase.UPKEEP)
        assert harness.woken == woken + 1
        last = about(harness, "second")
    assert last == [
        StatusUpdate("default/second", "uid-second", False, Code.MEMORY.word, LESS, turned=False, event=False)
    ]


def test_what_helps_no_pod_is_reported_by_a_pass_some_seconds_later() -> None:
    harness, _ = occupied()
    harness.controller.handle(pod_event(waiting(worker("second"))))
    harness.controller.schedule_pending()
    harness.now += MINUTE
    harness.controller.tick(TickPhase.UPKEEP)
    woken = harness.woken
    harness.controller.handle(NodeDeleted("elsewhere"))
    assert harness.woken == woken, "nobody is helped by a node that goes"
    harness.controller.tick(TickPhase.UPKEEP)
    assert harness.woken == woken + 1
    harness.controller.schedule_pending()
    for _ in range(2):
        harness.controller.tick(TickPhase.UPKEEP)
    assert harness.woken == woken + 1, "once it was passed, nothing is left to tell"


def test_who_does_not_lead_is_not_woken_to_tell() -> None:
    """It makes no pass, so it would be woken forever."""
    harness = shrunken()
    harness.leads = False
    harness.now += MINUTE
    woken = harness.woken
    for _ in range(3):
        harness.controller.tick(TickPhase.UPKEEP)
    assert harness.woken == woken
    harness.leads = True
    harness.controller.tick(TickPhase.UPKEEP)
    assert harness.woken == woken + 1


def test_new_figures_are_written_to_so_many_pods_at_once() -> None:
    harness = shrunken()
    for number in range(60):
        harness.controller.handle(pod_event(waiting(worker(f"w{number}"))))
    harness.controller.schedule_pending()
    harness.now += MINUTE
    answer = harness.controller.reserve(question(worker("fourth", mib=1024)))
    assert isinstance(answer, Placed)
    fresh = [
        update
        for update in harness.controller.schedule_pending()[1]
        if isinstance(update, StatusUpdate) and not update.event
    ]
    assert len(fresh) == 50


STOOD: dict[str, tuple[dict[str, str], list[StatusUpdate]]] = {
    "the same": (SAME, []),
    "other figures": (
        SAME | {"message": LESS},
        [StatusUpdate("default/second", "uid-second", False, Code.MEMORY.word, FULL, turned=False, event=False)],
    ),
    "another reason": (
        SAME | {"reason": "Cores", "message": "waiting"},
        [StatusUpdate("default/second", "uid-second", False, Code.MEMORY.word, FULL, turned=False)],
    ),
    "that it has a share": (
        SAME | {"status": "True", "reason": "Allocated"},
        [StatusUpdate("default/second", "uid-second", False, Code.MEMORY.word, FULL)],
    ),
}


@pytest.mark.parametrize(("condition", "want"), STOOD.values(), ids=STOOD.keys())
def test_a_new_leader_goes_on_from_the_pods_condition(condition: dict[str, str], want: list[StatusUpdate]) -> None:
    """Otherwise every change of leader would be an Event on each waiting pod."""
    harness, _ = occupied()
    stood = waiting(worker("second")) | {"status": {"phase": "Pending", "conditions": [condition]}}
    harness.controller.handle(pod_event(stood))
    assert about(harness, "second") == want


def test_the_time_of_transition_is_that_of_the_status() -> None:
    harness, _ = occupied()
    harness.controller.handle(pod_event(waiting(worker("second"))))
    (first,) = about(harness, "second")
    assert first == StatusUpdate("default/second", "uid-second", False, Code.MEMORY.word, FULL)
    harness.controller.handle(NodeChanged(facts(trim(ONE_GPU.cordoned().json()))))
    assert about(harness, "second") == [], "it helps no pod, so it is told with the next refresh"
    harness.now += 15.0
    (second,) = about(harness, "second")
    assert isinstance(second, StatusUpdate)
    assert (second.code, second.turned, second.event) == ("Cordoned", False, True)
