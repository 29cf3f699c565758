"""A list of pods in parts: what may be decided between them, and when nodes' states are made."""

from __future__ import annotations

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
    desk.controller.replace_pods([worker("plain").on("a").json()])
    desk.controller.replace_nodes(facts(trim(each.json())) for each in NODES)
    assert desk.controller.nodes() == ()
    desk.controller.check_invariants()
    desk.no_claims()
    desk.controller.replace_inventories(each.inventory() for each in NODES)
    whole.controller.put_pod(worker("plain").on("a").json())
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
        desk.controller.put_pod(held[-1])
    desk.controller.replace_pods(held[:1], last=False)
    assert desk.controller.look().confirmed == 2, "the second may be in a later part"
    desk.controller.replace_pods(held[1:], first=True, last=False)
    assert desk.controller.look().confirmed == 2, "the list began anew, so the first may still come"
    desk.controller.replace_pods([], first=False)
    assert desk.controller.look().confirmed == 1
    desk.controller.check_invariants()


def test_a_share_that_comes_back_between_parts_is_for_who_waits() -> None:
    desk = SchedulerHarness(NODES[:1])
    answer = desk.controller.reserve(question(worker("first")))
    assert isinstance(answer, Placed)
    running = pods.trim(admitted(worker("first").on("a"), allocation=answer.allocation))
    waits = pods.trim(admitted(worker("second"), gated=True))
    desk.controller.put_pod(running)
    desk.controller.put_pod(waits)
    assert desk.controller.schedule_pending()[0] == []
    desk.controller.replace_pods([{**running, "status": {"phase": "Succeeded"}}], last=False)
    assert isinstance(desk.controller.reserve(question(worker("third"))), Wait), "the second was there before"
    desk.controller.replace_pods([waits], first=False)
    assert [binding.pod.key for binding in desk.controller.schedule_pending()[0]] == ["default/second"]
