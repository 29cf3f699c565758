"""A list of pods in parts: what may be decided between the parts, and when nodes' states are computed."""

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
    harness, whole = SchedulerHarness(NODES, synced=False), SchedulerHarness(NODES)
    harness.controller.handle(pods_listed([worker("plain").on("a").json()]))
    harness.controller.handle(NodesListed(tuple(facts(trim(each.json())) for each in NODES)))
    assert harness.controller.nodes() == ()
    harness.controller.check_invariants()
    harness.no_claims()
    harness.controller.handle(InventoriesListed(tuple(each.inventory() for each in NODES)))
    whole.controller.handle(pod_event(worker("plain").on("a").json()))
    assert {state.name: state for state in harness.controller.nodes()} == {
        state.name: state for state in whole.controller.nodes()
    }
    harness.controller.check_invariants()


def test_what_no_part_named_counts_as_deleted_and_only_after_the_last() -> None:
    harness = SchedulerHarness(NODES, synced=False)
    held = []
    harness.sync()
    for name in ("one", "two"):
        answer = harness.controller.reserve(question(worker(name)))
        assert isinstance(answer, Placed)
        held.append(pods.trim(admitted(worker(name).on(answer.allocation.node), allocation=answer.allocation)))
        harness.controller.handle(pod_event(held[-1]))
    harness.controller.handle(pods_listed(held[:1], last=False))
    assert harness.controller.look().confirmed == 2, "the second may be in a later part"
    harness.controller.handle(pods_listed(held[1:], first=True, last=False))
    assert harness.controller.look().confirmed == 2, "the list has started again, so the first may still come"
    harness.controller.handle(pods_listed([], first=False))
    assert harness.controller.look().confirmed == 1
    harness.controller.check_invariants()


def test_a_share_that_comes_back_between_parts_is_for_who_waits() -> None:
    harness = SchedulerHarness(NODES[:1])
    answer = harness.controller.reserve(question(worker("first")))
    assert isinstance(answer, Placed)
    running = pods.trim(admitted(worker("first").on("a"), allocation=answer.allocation))
    waits = pods.trim(admitted(worker("second"), gated=True))
    harness.controller.handle(pod_event(running))
    harness.controller.handle(pod_event(waits))
    assert harness.controller.schedule_pending()[0] == []
    harness.controller.handle(pods_listed([{**running, "status": {"phase": "Succeeded"}}], last=False))
    assert isinstance(harness.controller.reserve(question(worker("third"))), Wait), "the second was there before"
    harness.controller.handle(pods_listed([waits], first=False))
    assert [binding.pod.key for binding in harness.controller.schedule_pending()[0]] == ["default/second"]
