"""
Pods that never start, nodes that disappear, pods that vanish: what each reports, and that its share is returned once.
"""

from __future__ import annotations

from typing import Any

import pytest

from allocator.cache.podinfo import pod_event
from allocator.queue.records import Eviction, StatusUpdate
from allocator.scheduler.events import (
    InventoryChanged,
    InventoryDeleted,
    NodeChanged,
    NodeDeleted,
    PodDeleted,
    TickPhase,
    pods_listed,
)
from allocator.workers import binder
from contract import names, pods
from contract.encoding.protocol import Placed, Wait
from contract.nodes.attributes import facts
from contract.reasons.pods import PodEventReason, PodReason
from runtime.kubernetes.client import Kube
from tests.builders import PodBuilder, node, pod
from tests.unit.allocator.chosen import chosen
from tests.unit.allocator.harness import SchedulerHarness, admitted, question
from tests.wires import Answer, Script, status_body

JSON = dict[str, Any]
ONE_GPU = node("t4").gpus(1)
REFUSAL = "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims."


def worker(name: str) -> PodBuilder:
    asks = pod(name).uid(f"uid-{name}").asks("gpufraction.io/gpu-memory", "10000Mi")
    return asks.annotated(names.PLACEMENT, "affinity")


def placed(harness: SchedulerHarness, *, owned: bool = False) -> JSON:
    """A pod on the API server that is pinned by affinity and not bound yet."""
    answer = harness.controller.reserve(question(worker("p")))
    assert isinstance(answer, Placed)
    assert answer.pin == "affinity"
    made = admitted(worker("p"), allocation=answer.allocation)
    made["metadata"]["resourceVersion"] = "7"
    if owned:
        made["metadata"]["ownerReferences"] = [{"kind": "Job", "name": "j", "uid": "u", "controller": True}]
    return made


def conditions(made: JSON, *, scheduled: str = "False", reason: str = "Unschedulable", said: str = REFUSAL) -> JSON:
    scheduling = {"type": "PodScheduled", "status": scheduled, "reason": reason, "message": said}
    allocated = {"type": str(names.ALLOCATED_CONDITION), "status": "True"}
    return {**made, "status": {"phase": "Pending", "conditions": [scheduling, allocated]}}


TEXT = (
    f"holds its GPU share on node t4 unused: kube-scheduler does not bind the pod there ({REFUSAL}). Resolve the "
    f"cause, or delete the pod: after 5 min the share is released"
)
KEPT = (
    f"holds its GPU share on node t4 unused: kube-scheduler does not bind the pod there ({REFUSAL}). Resolve the "
    f"cause, or delete the pod to release the share"
)


@pytest.mark.parametrize(("unbound", "text"), [("release", TEXT), ("keep", KEPT)])
def test_a_pod_that_is_not_bound_gets_a_condition_soon_and_once(unbound: str, text: str) -> None:
    harness = SchedulerHarness([ONE_GPU], options=chosen(unbound=unbound))
    made = conditions(placed(harness))
    harness.controller.handle(pod_event(made))
    assert harness.controller.schedule_pending() == ([], [])
    harness.now += 9
    harness.controller.handle(pod_event(made))
    harness.controller.tick(TickPhase.UPKEEP)
    assert harness.controller.schedule_pending() == ([], [])
    harness.now += 1
    harness.controller.tick(TickPhase.UPKEEP)
    want = StatusUpdate("default/p", "uid-p", True, PodReason.NOT_SCHEDULED, text, warning=PodEventReason.SHARE_UNUSED)
    assert harness.controller.schedule_pending() == ([], [want])
    harness.controller.tick(TickPhase.UPKEEP)
    assert harness.controller.schedule_pending() == ([], [])
    assert (harness.controller.look().confirmed, harness.controller.look().unbound) == (1, 0)
    assert harness.controller.tick(TickPhase.EVICTIONS) == []


def test_when_the_pod_is_bound_after_all_its_condition_says_so() -> None:
    harness = SchedulerHarness([ONE_GPU])
    made = placed(harness)
    harness.controller.handle(pod_event(conditions(made)))
    harness.now += 300
    harness.controller.tick(TickPhase.UPKEEP)
    harness.controller.schedule_pending()
    bound = {**conditions(made, scheduled="True", reason=""), "spec": {**made["spec"], "nodeName": "t4"}}
    harness.controller.handle(pod_event(bound))
    assert [t.code for t in harness.controller.schedule_pending()[1]] == ["Allocated"]
    assert harness.controller.look().unbound == 0


NOT_STUCK = {
    "kube-scheduler has not judged it yet": lambda made: made,
    "kube-scheduler waits for something else": lambda made: conditions(made, reason="SchedulerError"),
    "it is bound": lambda made: {**conditions(made), "spec": {**made["spec"], "nodeName": "t4"}},
    "it is being deleted": lambda made: {
        **conditions(made),
        "metadata": {**made["metadata"], "deletionTimestamp": "2030-01-01T00:00:00Z"},
    },
}


@pytest.mark.parametrize("change", NOT_STUCK.values(), ids=NOT_STUCK.keys())
def test_not_stuck(change: Any) -> None:
    harness = SchedulerHarness([ONE_GPU], options=chosen(unbound="delete"))
    made = placed(harness, owned=True)
    harness.controller.handle(pod_event(conditions(made)))
    harness.now += 200
    harness.controller.handle(pod_event(change(made)))
    harness.now += 1000
    harness.controller.tick(TickPhase.UPKEEP)
    assert (harness.controller.tick(TickPhase.UNBOUND_PODS), harness.controller.look().unbound) == ([], 0)


def test_an_error_of_the_node_that_stays_is_an_answer_too() -> None:
    harness = SchedulerHarness([ONE_GPU])
    failed = 'running PreBind plugin "VolumeBinding": binding volumes: provisioning failed for PVC "data"'
    made = conditions(placed(harness), reason="SchedulerError", said=failed)
    harness.controller.handle(pod_event(made))
    harness.now += 300
    harness.controller.tick(TickPhase.UPKEEP)
    (update,) = harness.controller.schedule_pending()[1]
    assert (update.code, failed in update.reason) == (PodReason.NOT_SCHEDULED, True)
    assert len(harness.controller.tick(TickPhase.UNBOUND_PODS)) == 1


def test_a_break_restarts_the_time() -> None:
    harness = SchedulerHarness([ONE_GPU])
    made = placed(harness)
    for state in (conditions(made), made, conditions(made)):
        harness.now += 200
        harness.controller.handle(pod_event(state))
    harness.now += 200
    harness.controller.tick(TickPhase.UPKEEP)
    assert harness.controller.look().unbound == 0
    assert harness.controller.tick(TickPhase.UNBOUND_PODS) == []


EVICTIONS = {
    "done": (Answer(201, {}), "evicted"),
    "a disruption budget says no": (Answer(429, status_body(429, "TooManyRequests")), "budget"),
    "it is gone": (Answer(404, status_body(404, "NotFound")), "gone"),
    "it is another by now": (Answer(409, status_body(409, "Conflict")), "gone"),
    "the right is missing": (Answer(403, status_body(403, "Forbidden")), "failed"),
}


@pytest.mark.parametrize("case", EVICTIONS.values(), ids=EVICTIONS.keys())
def test_an_eviction_names_the_very_pod_that_was_judged(case: tuple[Answer, str]) -> None:
    answer, want = case
    script = Script(answer)
    assert binder.evict(Kube(script), Eviction("ns/p", "u", 7, "unbound", "why")) == want
    (sent,) = script.sent
    assert (sent.method, sent.path) == ("POST", "/api/v1/namespaces/ns/pods/p/eviction")
    assert sent.body == {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": "p", "namespace": "ns", "annotations": {names.EVICTION_REASON: "unbound: why"}},
        "deleteOptions": {"preconditions": {"uid": "u", "resourceVersion": "7"}},
    }


def test_pods_of_a_deleted_node_hold_their_shares_until_they_are_deleted() -> None:
    harness = SchedulerHarness([ONE_GPU])
    made = placed(harness)
    made["spec"]["nodeName"] = "t4"
    harness.controller.handle(pod_event(made))
    harness.controller.handle(NodeDeleted("t4"))
    harness.controller.handle(InventoryDeleted("t4"))
    assert harness.controller.look().confirmed == 1
    harness.controller.handle(pod_event(admitted(worker("next"), gated=True)))
    harness.controller.handle(NodeChanged(facts(ONE_GPU.json())))
    harness.controller.handle(InventoryChanged(ONE_GPU.inventory()))
    assert harness.controller.schedule_pending()[0] == [], "the node came back, and the pod still runs there"
    harness.controller.handle(PodDeleted("uid-p"))
    assert [c.pod.key for c in harness.controller.schedule_pending()[0]] == ["default/next"]
    harness.controller.check_invariants()


ENDS: dict[str, list[str]] = {
    "finished, then deleted": ["Succeeded", "gone"],
    "refused by its kubelet, then deleted": ["Failed", "gone"],
    "terminating, then force-deleted": ["terminating", "gone"],
    "force-deleted": ["gone"],
    "seen to finish twice": ["Succeeded", "Succeeded"],
    "missing in a new list, then told gone": ["relist", "gone"],
}


@pytest.mark.parametrize("ends", ENDS.values(), ids=ENDS.keys())
def test_however_a_pod_ends_its_share_comes_back_once(ends: list[str]) -> None:
    harness = SchedulerHarness([ONE_GPU])
    made = placed(harness)
    made["spec"]["nodeName"] = "t4"
    harness.controller.handle(pod_event(made))
    for end in ends:
        match end:
            case "gone":
                harness.controller.handle(PodDeleted(pods.uid(made)))
            case "relist":
                harness.controller.handle(pods_listed([]))
            case "terminating":
                ending = {**made, "metadata": {**made["metadata"], "deletionTimestamp": "2030-01-01T00:00:00Z"}}
                harness.controller.handle(pod_event(ending))
                assert harness.controller.look().confirmed == 1
            case phase:
                harness.controller.handle(pod_event({**made, "status": {"phase": phase}}))
        harness.controller.check_invariants()
    assert harness.controller.look().confirmed == 0
    assert [n.usage[0].sharers for n in harness.controller.nodes()] == [0]


def neighbour(cpu: int) -> JSON:
    """A pod without a share on the same node, of which only CPU matters."""
    return pod("web").uid("uid-web").needs(cpu=cpu).on("t4").phase("Running").json()


def test_a_pod_that_is_resized_on_its_node_gives_back_what_it_gave_up() -> None:
    harness = SchedulerHarness([node("t4").gpus(1).allocatable(cpu=4000, memory=8 << 30, pods=10)])
    harness.controller.handle(pod_event(neighbour(cpu=3)))
    harness.controller.handle(pod_event(admitted(worker("p").needs(cpu=2), gated=True)))
    bindings, [update] = harness.controller.schedule_pending()
    assert (bindings, update.reason) == (
        [],
        "waiting: 0 of 1 GPU nodes fit: 1 short of CPU (most free 1, wanted 2)",
    )
    before = harness.woken
    harness.controller.handle(pod_event(neighbour(cpu=2)))
    assert harness.woken > before
    bindings, _ = harness.controller.schedule_pending()
    assert [binding.allocation.node for binding in bindings] == ["t4"]
    harness.controller.check_invariants()


def test_a_pod_that_grew_on_its_node_takes_what_it_says_now() -> None:
    harness = SchedulerHarness([node("t4").gpus(1).allocatable(cpu=4000, memory=8 << 30, pods=10)])
    harness.controller.handle(pod_event(neighbour(cpu=1)))
    harness.controller.handle(pod_event(neighbour(cpu=3)))
    answer = harness.controller.reserve(question(worker("p").needs(cpu=2)))
    assert isinstance(answer, Wait)
    assert answer.code == "CPU"
    harness.controller.check_invariants()
