"""Each goal of a cluster at rest can fail."""

from __future__ import annotations

from typing import Any

from contract import names
from contract.encoding.protocol import Placed
from tests.builders import node, pod
from tests.simulation.features import leftovers, rest
from tests.unit.allocator.harness import SchedulerHarness, admitted, question
from tests.unit.simulation_features.fakes import FakeStore, run

JSON = dict[str, Any]
NODE = node("n").gpus(1)
ASKING = pod("waits").asks("gpufraction.io/gpu-memory", "40Gi").uid("u-waits")


def waiting(reason: str = "", message: str = "") -> JSON:
    found = admitted(ASKING, gated=True)
    if reason:
        told = {"type": names.ALLOCATED_CONDITION, "status": "False", "reason": reason, "message": message}
        found["status"] = {"conditions": [told]}
    return found


def synced(*existing: JSON) -> SchedulerHarness:
    harness = SchedulerHarness([NODE], synced=False)
    harness.sync(existing)
    return harness


def true_reason() -> tuple[str, str]:
    found = run(FakeStore(pods=[waiting()]), leader=synced(waiting()).controller)
    return rest.line(found)["u-waits"]


def test_a_reason_that_is_not_so_is_found() -> None:
    code, sentence = true_reason()
    assert rest.untrue(waiting(code, sentence), (code, sentence)) is None
    assert "and says" in (rest.untrue(waiting("Cordoned", sentence), (code, sentence)) or "")
    assert "and says" in (rest.untrue(waiting(code, "an old figure"), (code, sentence)) or "")


def test_a_pod_that_a_replica_does_not_have_in_its_queue_is_found() -> None:
    store = FakeStore(pods=[waiting()], nodes=[NODE.json()], gpunodes__gpufraction__io=[NODE.gpunode()])
    goal = goals()["caches equal the API server"]
    assert goal(run(store, leader=synced(waiting()).controller)) == []
    assert "lacks ['u-waits']" in goal(run(store, leader=synced().controller))[0]
    store.objects["pods"] = []
    assert "['u-waits'] in its queue too much" in goal(run(store, leader=synced(waiting()).controller))[0]


def test_a_node_of_which_a_replica_knows_something_else_is_found() -> None:
    goal, controller = goals()["caches equal the API server"], synced().controller
    cordoned, other = NODE.json(), node("n").gpus(2)
    cordoned["spec"]["unschedulable"] = True
    gpunodes = [NODE.gpunode()]
    found = goal(run(FakeStore(nodes=[cordoned], gpunodes__gpufraction__io=gpunodes), leader=controller))
    assert found == ["leader: node n is cordoned: True"]
    found = goal(run(FakeStore(nodes=[NODE.json()], gpunodes__gpufraction__io=[other.gpunode()]), leader=controller))
    assert "knows the cards" in found[0]
    tainted = synced_with(NODE.tainted("a", "b"))
    found = goal(run(FakeStore(nodes=[NODE.json()], gpunodes__gpufraction__io=gpunodes), leader=tainted))
    assert "has no taints [('a', 'b', 'NoSchedule')]" in found[0]


def synced_with(built: Any) -> Any:
    harness = SchedulerHarness([built], synced=False)
    harness.sync(())
    return harness.controller


def test_a_pod_with_a_share_that_says_that_it_waits_is_found() -> None:
    goal = goals()["no pod with a share says otherwise"]
    harness = synced(waiting())
    assert goal(run(FakeStore(pods=[waiting()]), leader=harness.controller)) == []
    small = pod("small").asks("gpufraction.io/gpu-memory", "1Gi")
    answer = SchedulerHarness([NODE]).controller.reserve(question(small))
    assert isinstance(answer, Placed)
    running = admitted(small.on("n"), allocation=answer.allocation)
    running["status"] = {"phase": "Running"}
    assert goal(run(FakeStore(pods=[running]))) == [], "it never waited"
    running["status"] |= waiting("Memory", "full")["status"]
    assert "runs with a share" in goal(run(FakeStore(pods=[running])))[0]


def test_what_a_fresh_allocator_sees_otherwise_is_named() -> None:
    assert rest.differences({"a": [1, 2], "b": 3}, {"a": [1, 2], "b": 3}) == []
    assert rest.differences({"a": [1, 2]}, {"a": [1, 4]}) == ["a[1] as 2, and a fresh one 4"]
    assert rest.differences({"a": [1]}, {"a": []}) == ["a as [1], and a fresh one []"]


def test_of_a_view_neither_what_was_learnt_nor_the_order_of_one_second_counts() -> None:
    first, second = ({"uid": uid, "priority": 1, "created": "x", "busy": uid} for uid in "ab")
    one = {"queue": [first, second], "demand": [1], "nodes": [{"name": "m"}, {"name": "n"}]}
    other = {"queue": [second, first], "demand": [2], "nodes": [{"name": "n"}, {"name": "m"}]}
    assert rest.seen(one) == rest.seen(other)
    later = {**second, "created": "y"}
    assert rest.seen({"queue": [first, later]}) != rest.seen({"queue": [later, first]})


def test_what_is_left_of_a_pod_that_is_gone_is_found_wherever_it_is() -> None:
    harness = synced(waiting())
    found = run(FakeStore(pods=[waiting()]), leader=harness.controller)
    found.uids.add("u-waits")
    assert leftovers.of(found, [("leader", harness.controller)]) == []
    found.world.api.store.objects["pods"] = []
    assert any("queue" in each for each in leftovers.of(found, [("leader", harness.controller)]))


def goals() -> dict[str, Any]:
    return {goal.name: goal.missing for goal in rest.FEATURE.goals}
