"""A node is reserved for one pod only for a while, and what the pod's own namespace holds never closes it to others."""

from __future__ import annotations

import pytest

from allocator.cache import reserved
from allocator.cache.podinfo import pod_event
from allocator.cache.reserved import HeldNode, Requester
from allocator.queue import reservation
from allocator.scheduler.events import PodDeleted, TickPhase
from contract import pods
from contract.encoding.protocol import Placed
from contract.encoding.quantity import GIB
from contract.model import Usage
from contract.scheduling.filters import Limits
from tests.builders import NodeBuilder, node, pod
from tests.unit.allocator.chosen import chosen
from tests.unit.allocator.harness import SchedulerHarness, admitted, question
from tests.unit.allocator.queue.test_starvation import ask, gpus

AFTER, FOR = 30.0, 100.0
TENANT, NEIGHBOUR = "default", "neighbour"


def spent(*kept: tuple[str, float], most: float = FOR) -> tuple[reservation.HoldingBudget, float]:
    """
    A budget after a node was reserved for each of these namespaces for this long; an empty name means no reservation.
    """
    budget, now = reservation.HoldingBudget(most), 0.0
    for namespace, seconds in kept:
        budget.passes(namespace, now)
        now += seconds
    budget.passes("", now)
    return budget, now


PAUSES: dict[str, tuple[list[tuple[str, int]], int]] = {
    "nothing was kept": ([], 0),
    "less than the bound": ([("a", 99)], 0),
    "the bound": ([("a", 100)], 100),
    "in parts": ([("a", 60), ("", 10), ("a", 40)], 100),
    "beside another namespace": ([("a", 60), ("b", 60), ("a", 40)], 100),
    "by another namespace": ([("b", 100)], 0),
    "a second time": ([("a", 100), ("", 100), ("a", 100)], 200),
    "a third time": ([("a", 100), ("", 100), ("a", 100), ("", 200), ("a", 100)], 400),
    "again and again": ([("a", 100), ("", 800)] * 6 + [("a", 100)], 800),
    "a long time ago": ([("a", 60), ("", 1601), ("a", 60)], 0),
}


@pytest.mark.parametrize(("kept", "pause"), PAUSES.values(), ids=PAUSES.keys())
def test_the_pause_of_a_namespace(kept: list[tuple[str, int]], pause: int) -> None:
    budget, now = spent(*kept)
    assert (budget.allows("a", now + pause), budget.allows("a", now + pause - 1)) == (True, pause == 0)


def test_a_placed_pod_resets_the_budget() -> None:
    budget, now = spent(("a", 100), ("", 100), ("a", 99))
    budget.served("a")
    budget.passes("a", now)
    budget.passes("", now + 99)
    assert budget.allows("a", now + 99)


def test_without_a_bound_there_is_no_pause() -> None:
    budget, now = spent(("a", 1e9), most=0)
    assert budget.allows("a", now)


KEPT = (
    HeldNode("a", "uid-a", 5, namespace=TENANT),
    HeldNode("b", "uid-b", 0, against=TENANT, namespace=TENANT),
)
ENTITLED = {
    "the pod itself": (Requester("uid-b", 0, TENANT), (KEPT[1],)),
    "another of its namespace": (Requester("", 0, TENANT), ()),
    "another namespace": (Requester("", 0, NEIGHBOUR), (HeldNode("b", ""),)),
    "a higher priority of its namespace": (Requester("", 1, TENANT), (HeldNode("b", ""),)),
    "the highest priority": (Requester("", 6, NEIGHBOUR), (HeldNode("a", ""), HeldNode("b", ""))),
}


@pytest.mark.parametrize(("who", "want"), ENTITLED.values(), ids=ENTITLED.keys())
def test_who_may_go_to_a_kept_node(who: Requester, want: tuple[HeldNode, ...]) -> None:
    assert reserved.entitled(KEPT, who) == want


def test_a_node_that_is_held_against_all_and_against_a_namespace_is_closed() -> None:
    both = (HeldNode("a", "uid-a"), HeldNode("a", "uid-b", against=TENANT))
    assert reserved.entitled(both, Requester("", 0, NEIGHBOUR)) == ()


HALF = Usage(memory=8 * GIB, sharers=1)
STAYING: dict[str, tuple[tuple[NodeBuilder, ...], reservation.Staying, str | None]] = {
    "others hold what is missing": ((gpus("a", 8), gpus("b", 8)), {}, "a"),
    "its own hold it": ((gpus("a", 8),), {"a": {"GPU-a-0": HALF}}, None),
    "its own on one, others on the other": ((gpus("a", 8), gpus("b", 8)), {"a": {"GPU-a-0": HALF}}, "b"),
    "its own on a card that it need not have": ((gpus("a", 8, 8),), {"a": {"GPU-a-0": HALF}}, "a"),
}


@pytest.mark.parametrize(("builders", "staying", "want"), STAYING.values(), ids=STAYING.keys())
def test_what_its_own_namespace_holds_does_not_come_free(
    builders: tuple[NodeBuilder, ...], staying: reservation.Staying, want: str | None
) -> None:
    assert reservation.soonest((b.state() for b in builders), ask(16), Limits(), "", staying) == want


# -- all together -----------------------------------------------------------------------------------------------------


def world(holder: str) -> SchedulerHarness:
    """One node of two cards, with a small pod of this namespace on each; a pod of TENANT requests both whole."""
    harness = SchedulerHarness(
        [node("n").gpus(2, mib=16384)],
        options=chosen(starvation_timeout=AFTER, starvation_reservation_limit=FOR),
    )
    for number in (0, 1):
        made = pod(f"small-{number}", holder).asks("gpufraction.io/gpu-memory", "10Gi")
        answer = harness.controller.reserve(question(made))
        assert isinstance(answer, Placed)
        harness.controller.handle(
            pod_event(admitted(made.uid(f"uid-{holder}-{number}").on("n"), allocation=answer.allocation))
        )
    large = pod("large").asks("gpufraction.io/gpu-memory", "16Gi").asks("gpufraction.io/gpu-count", 2)
    harness.controller.handle(pod_event(pods.trim(admitted(large.uid("uid-large"), gated=True))))
    harness.controller.schedule_pending()
    passes(harness, AFTER + 5)  # it is checked every five seconds
    return harness


def passes(harness: SchedulerHarness, seconds: float) -> None:
    for _ in range(int(seconds)):
        harness.now += 1
        harness.controller.tick(TickPhase.UPKEEP)
        harness.controller.schedule_pending()


def is_placed(harness: SchedulerHarness, namespace: str) -> bool:
    asked = question(pod("more", namespace).asks("gpufraction.io/gpu-memory", "1Gi"), dry_run=True)
    return isinstance(harness.controller.reserve(asked), Placed)


def test_what_a_tenant_holds_closes_no_node_to_others() -> None:
    harness = world(TENANT)
    assert [kept.against for kept in harness.controller.view().reserved] == [TENANT]
    assert (is_placed(harness, TENANT), is_placed(harness, NEIGHBOUR)) == (False, True)


def test_a_node_whose_room_depends_on_others_is_held_with_longer_pauses() -> None:
    harness, history = world(NEIGHBOUR), list[bool]()
    passes(harness, 20)
    for _ in range(20):
        history.append(bool(harness.controller.view().reserved))
        assert is_placed(harness, NEIGHBOUR) != history[-1]
        passes(harness, 50)
    assert history == [True] * 2 + [False] * 2 + [True] * 2 + [False] * 4 + [True] * 2 + [False] * 8


def test_a_recreated_pod_does_not_reset_the_budget() -> None:
    harness = world(NEIGHBOUR)
    passes(harness, 60)
    harness.controller.handle(PodDeleted("uid-large"))
    again = pod("again").asks("gpufraction.io/gpu-memory", "16Gi").asks("gpufraction.io/gpu-count", 2)
    harness.controller.handle(pod_event(pods.trim(admitted(again.uid("uid-again"), gated=True))))
    harness.controller.schedule_pending()
    passes(harness, AFTER + 6)
    assert harness.controller.view().reserved
    passes(harness, 45)
    assert not harness.controller.view().reserved


def test_it_is_placed_when_the_others_go() -> None:
    harness = world(NEIGHBOUR)
    for number in (0, 1):
        harness.controller.handle(PodDeleted(f"uid-{NEIGHBOUR}-{number}"))
    bindings, _ = harness.controller.schedule_pending()
    assert [binding.pod.uid for binding in bindings] == ["uid-large"]
    harness.controller.tick(TickPhase.UPKEEP)
    assert not harness.controller.view().reserved
