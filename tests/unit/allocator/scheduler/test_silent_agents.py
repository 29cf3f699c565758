"""A node with a silent agent takes no new pods, running pods stay, and waiting pods are placed when it writes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from allocator.queue.records import Binding, EventRecord, StatusUpdate
from allocator.scheduler.events import AgentsHeard, InventoryChanged, TickPhase, pods_listed
from allocator.settings import Settings
from contract import pods
from contract.encoding.protocol import Placed, Wait
from contract.nodes.heartbeat import UNHEARD, Heartbeat
from contract.reasons.gpunodes import NodeEventReason
from contract.reasons.nodes import Code, Reason
from contract.scheduling.filters import node_reason
from contract.scheduling.needs import PodNeeds
from tests.builders import node, pod
from tests.unit.allocator.harness import SchedulerHarness, admitted, question

SILENT = "0 of 1 GPU nodes fit: 1 whose agent has not reported for too long, so GPU faults would go unnoticed"


NODE = node("a").gpu(mib=15_000)


def harness(patience: float = 300.0) -> SchedulerHarness:
    """A node whose agent writes every 120 s, and last wrote at 100."""
    made = SchedulerHarness([NODE], options=replace(Settings(), agent_silence=patience))
    made.controller.handle(AgentsHeard({"a": Heartbeat(1, 120)}, listed=True))
    made.controller.tick(TickPhase.UPKEEP)
    return made


def writes(made: SchedulerHarness, number: int) -> None:
    """The agent writes, and the watch delivers it."""
    made.controller.handle(AgentsHeard({"a": Heartbeat(number, 120)}))
    made.controller.handle(InventoryChanged(NODE.inventory()))


def later(made: SchedulerHarness, seconds: float) -> list[EventRecord]:
    """The Events of this time. Time moves second by second, and the Events are read only at the end."""
    made.now += seconds
    made.controller.tick(TickPhase.UPKEEP)
    return [each for each in made.controller.schedule_pending()[1] if isinstance(each, EventRecord)]


def closed(made: SchedulerHarness) -> int:
    """How many nodes are closed."""
    return sum(each.silent for each in made.controller.nodes())


def answer(made: SchedulerHarness) -> str:
    """The answer to a new pod: its node, or why it waits."""
    found = made.controller.reserve(question(pod("new").asks("gpufraction.io/gpu-memory", "2Gi"), dry_run=True))
    assert isinstance(found, Placed | Wait)
    return found.allocation.node if isinstance(found, Placed) else found.reason


def test_after_five_minutes_a_node_takes_no_new_pods_and_an_event_says_so() -> None:
    made = harness()
    assert (later(made, 299.0), answer(made)) == ([], "a")
    [event] = later(made, 1.0)
    assert (event.kind, event.key, event.code) == ("Node", "a", NodeEventReason.AGENT_SILENT)
    assert event.reason.startswith("its agent has not reported for 300 s: the node accepts no new pods until it does")
    assert (answer(made), closed(made)) == (SILENT, 1)
    assert later(made, 600.0) == [], "once for each silence"


def test_a_waiting_pod_learns_why_and_is_placed_when_the_agent_writes() -> None:
    made = harness()
    later(made, 300.0)
    waiting = admitted(pod("waits").asks("gpufraction.io/gpu-memory", "2Gi"), gated=True)
    made.controller.handle(pods_listed([pods.trim(waiting)]))
    [told] = [each for each in made.controller.schedule_pending()[1] if isinstance(each, StatusUpdate)]
    assert told.reason.startswith(f"waiting: {SILENT}")
    woken = made.woken
    writes(made, 2)
    assert (made.woken > woken, closed(made)) == (True, 0)
    [binding] = [each for each in made.controller.schedule_pending()[0] if isinstance(each, Binding)]
    assert binding.allocation.node == "a"


def test_pods_that_run_on_a_silent_node_keep_their_shares() -> None:
    made = harness()
    found = made.controller.reserve(question(pod("runs").asks("gpufraction.io/gpu-memory", "2Gi")))
    assert isinstance(found, Placed)
    runs = admitted(pod("runs").asks("gpufraction.io/gpu-memory", "2Gi"), allocation=found.allocation)
    made.controller.handle(pods_listed([pods.trim(runs)]))
    later(made, 300.0)
    assert (made.controller.look().confirmed, closed(made)) == (1, 1)


def test_a_roll_out_of_four_minutes_and_a_half_closes_no_node() -> None:
    made = harness()
    assert later(made, 270.0) == []
    writes(made, 2)
    assert (later(made, 299.0), answer(made)) == ([], "a")


STAYS_OPEN = {
    "an agent of an older version promises nothing": (300.0, Heartbeat(1)),
    "an agent writes more seldom": (300.0, Heartbeat(1, 400)),
    "the administrator wants no such thing": (0.0, Heartbeat(1, 120)),
    "the administrator is more patient": (3_600.0, Heartbeat(1, 120)),
}


@pytest.mark.parametrize(("patience", "beat"), STAYS_OPEN.values(), ids=STAYS_OPEN.keys())
def test_a_node_stays_open_where(patience: float, beat: Heartbeat) -> None:
    made = harness(patience)
    made.controller.handle(AgentsHeard({"a": beat}))
    assert (later(made, 301.0), later(made, 598.0), answer(made)) == ([], [], "a")


def test_a_replica_counts_from_when_it_began_to_decide() -> None:
    made = harness()
    made.leads = False
    assert later(made, 1_000.0) == []
    made.leads = True
    assert later(made, 1.0) == [], "it was cut off, as the agents may have been"
    assert later(made, 299.0) == []
    assert len(later(made, 1.0)) == 1


def test_a_gpunode_that_comes_again_has_an_agent_that_speaks() -> None:
    made = harness()
    later(made, 300.0)
    made.controller.handle(AgentsHeard({"a": UNHEARD}))
    assert answer(made) == "a"
    made = harness()
    later(made, 300.0)
    made.controller.handle(AgentsHeard({}, listed=True))
    assert closed(made) == 0


def test_heartbeats_wake_nobody_and_bring_no_scheduling_cycle() -> None:
    made = harness()
    later(made, 60.0)
    woken = made.woken
    for number in range(2, 100):
        writes(made, number)
    assert made.woken == woken


def test_a_silent_agent_comes_after_what_an_administrator_did() -> None:
    silent, ready = node("a").gpu().silent(), node("a").gpu()
    found = [node_reason(each.state(), PodNeeds()) for each in (silent, silent.not_ready(), silent.cordoned(), ready)]
    assert found == [Reason(Code.AGENT_SILENT), Reason(Code.NOT_READY), Reason(Code.CORDONED), None]
