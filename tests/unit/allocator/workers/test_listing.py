"""A list of pods in parts: what may be decided between them, and when nodes' states are made."""

from __future__ import annotations

from allocator.cache.podinfo import pod_event
from allocator.scheduler.events import InventoriesListed, NodesListed, pods_listed
from contract import pods
from contract.encoding.protocol import Placed, Wait
from contract.nodes.attributes import facts, trim
from tests.builders import PodBuilder, node, pod
from tests.unit.allocator.harness import SchedulerHarness, admitted, question

NODES = [node("a").gpus(1), node("b").gpus(1)]


def worker(name: str) -> PodBuilder:
    return pod(name).uid(f"uid-{name}").asks("gpufraction.io/gpu-memory", "10000Mi")


def test_nodes_states_are_made_when_everything_has_been_seen() -> None:
    desk, whole = SchedulerHarness(NODES, synced=False), SchedulerHarness(NODES)
    desk.controller.handle(pods_listed([worker("plain").on("a").json()]))
    desk.controller.handle(NodesListed(tuple(facts(trim(each.json())) for each in NODES)))
    assert desk.controller.nodes() == ()
    desk.controller.check_invariants()
    desk.no_claims()
    desk.controller.handle(InventoriesListed(tuple(each.inventory() for each in NODES)))
    whole.controller.handle(pod_event(worker("plain").on("a").json()))
    assert {state.name: state for state in desk.controller.nodes()} == {
        state.name: state for state in whole.controller.nodes()
    }
    desk.controller.check_invariants()


def test_what_no_part_named_is_gone_and_only_after_the_last() -> None:
    desk = SchedulerHarness(NODES, synced=False)
    held = []
    desk.sync()
    for name in ("one", "two"):
        answer = desk.controller.reserve(question(worker(name)))
        assert isinstance(answer, Placed)
        held.append(pods.trim(admitted(worker(name).on(answer.allocation.node), allocation=answer.allocation)))
        desk.controller.handle(pod_event(held[-1]))
    desk.controller.handle(pods_listed(held[:1], last=False))
    assert desk.controller.look().confirmed == 2, "the second may be in a later part"
    desk.controller.handle(pods_listed(held[1:], first=True, last=False))
    assert desk.controller.look().confirmed == 2, "the list began anew, so the first may still come"
    desk.controller.handle(pods_listed([], first=False))
    assert desk.controller.look().confirmed == 1
    desk.controller.check_invariants()


def test_a_share_that_comes_back_between_parts_is_for_who_waits() -> None:
    desk = SchedulerHarness(NODES[:1])
    answer = desk.controller.reserve(question(worker("first")))
    assert isinstance(answer, Placed)
    running = pods.trim(admitted(worker("first").on("a"), allocation=answer.allocation))
    waits = pods.trim(admitted(worker("second"), gated=True))
    desk.controller.handle(pod_event(running))
    desk.controller.handle(pod_event(waits))
    assert desk.controller.schedule_pending()[0] == []
    desk.controller.handle(pods_listed([{**running, "status": {"phase": "Succeeded"}}], last=False))
    assert isinstance(desk.controller.reserve(question(worker("third"))), Wait), "the second was there before"
    desk.controller.handle(pods_listed([waits], first=False))
    assert [binding.pod.key for binding in desk.controller.schedule_pending()[0]] == ["default/second"]
