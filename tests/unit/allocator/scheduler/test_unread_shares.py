"""
A share that cannot be read, such as one that a later version wrote: its cards take no other pods, and it is reported.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from allocator.cache.podinfo import pod_event
from allocator.features.elasticgpuclaims import objects
from allocator.features.elasticgpuclaims.changes import ClaimsListed
from allocator.queue.records import EventRecord
from allocator.scheduler.consistency import listed
from allocator.scheduler.events import PodDeleted, pods_listed
from contract import names, pods
from contract.encoding.protocol import Placed, Wait
from contract.options import NO_OPTIONS
from contract.reasons.pods import PodReason
from tests.builders import node, pod
from tests.unit.allocator.harness import SchedulerHarness, admitted, question, relists

JSON = dict[str, Any]
NODES = (node("n").gpus(2, mib=16_000), node("other").gpu(mib=4_000))
ASKS = pod("p").uid("u1").asks("gpufraction.io/gpu-memory", "8Gi")


def running(harness: SchedulerHarness) -> JSON:
    """A running pod with a share of a card of `n`."""
    answer = harness.controller.reserve(question(ASKS))
    assert isinstance(answer, Placed)
    return admitted(ASKS.on("n").phase("Running"), allocation=answer.allocation)


def rewritten(made: JSON, name: str, change: dict[str, object]) -> JSON:
    """The pod with changed fields in one of its annotations."""
    annotations = made["metadata"]["annotations"]
    text = json.dumps(json.loads(annotations[name]) | change)
    return {**made, "metadata": {**made["metadata"], "annotations": {**annotations, name: text}}}


def closed(harness: SchedulerHarness) -> dict[str, list[int]]:
    """By node, the cards that take no pods."""
    return {
        state.name: [gpu.index for gpu in state.gpus if not gpu.healthy]
        for state in harness.controller.nodes()
        if any(not gpu.healthy for gpu in state.gpus)
    }


ALLOCATION, REQUEST = str(names.ALLOCATION), str(names.REQUEST)
LATER: dict[str, tuple[str, dict[str, object], list[int]]] = {
    "an allocation of a later version": (ALLOCATION, {"v": 2}, [0]),
    "a request of a later version": (REQUEST, {"v": 3}, [0]),
    "cards under another name": (ALLOCATION, {"v": 2, "containers": [], "slices": [{"of": ["GPU-n-0"]}]}, [0]),
    "no card that is known": (ALLOCATION, {"v": 2, "containers": "elsewhere"}, [0, 1]),
    "a version that is no number": (ALLOCATION, {"v": "1.1"}, [0]),
    "fields that are damaged": (ALLOCATION, {"containers": {"main": 1}}, [0, 1]),
}


@pytest.mark.parametrize(("name", "change", "cards"), LATER.values(), ids=LATER.keys())
def test_cards_of_a_share_that_cannot_be_read_take_no_pods(
    name: str, change: dict[str, object], cards: list[int]
) -> None:
    harness = SchedulerHarness(NODES)
    made = rewritten(running(harness), name, change)
    harness.controller.handle(pod_event(made))
    harness.now += 1_000
    harness.controller.schedule_pending()
    assert closed(harness) == {"n": cards}
    assert harness.controller.look().unread == 1
    answer = harness.controller.reserve(question(ASKS.uid("u2"), uid="review-2"))
    assert isinstance(answer, Wait if len(cards) == 2 else Placed)
    harness.controller.handle(PodDeleted("u1"))
    assert (closed(harness), harness.controller.look().unread) == ({}, 0)


def test_a_pod_whose_share_can_be_read_again_is_counted_as_before() -> None:
    harness = SchedulerHarness(NODES)
    made = running(harness)
    harness.controller.handle(pods_listed([pods.trim(rewritten(made, ALLOCATION, {"v": 2}))]))
    assert closed(harness) == {"n": [0]}
    harness.controller.handle(pods_listed([pods.trim(made)]))
    assert (closed(harness), harness.controller.look().confirmed) == ({}, 1)
    harness.controller.handle(pods_listed([pods.trim(rewritten(made, ALLOCATION, {"v": 2}))]))
    harness.controller.handle(pods_listed([]))
    assert (closed(harness), harness.controller.look().confirmed) == ({}, 0)


def test_a_share_that_cannot_be_read_is_reported_once() -> None:
    harness = SchedulerHarness(NODES)
    made = rewritten(running(harness), ALLOCATION, {"v": 2})
    for _ in range(3):
        harness.controller.handle(pod_event(made))
    _, news = harness.controller.schedule_pending()
    text = (
        "its GPU share cannot be counted, so its GPUs accept no other pods: allocation has version 2, this program "
        "reads 1. Run the version of gpufraction that placed the pod, or a later one. Otherwise, delete the pod"
    )
    assert [each for each in news if isinstance(each, EventRecord)] == [
        EventRecord("Pod", "default/p", "u1", PodReason.SHARE_UNREAD, text)
    ]


def test_who_leads_next_reports_it_once_more() -> None:
    """Its watch may have delivered the pod while the previous leader led, or after that leader had ended."""
    made = rewritten(running(SchedulerHarness(NODES)), ALLOCATION, {"v": 2})
    harness = SchedulerHarness(NODES, elected=True, leads=False)
    harness.controller.handle(pod_event(made))
    assert told(harness) == []
    harness.leads, harness.term = True, 3
    harness.controller.handle(ClaimsListed(objects.SHARES, (), term=3))
    for _ in range(2):
        harness.controller.handle(pods_listed([pods.trim(made)], term=3))
    assert told(harness) == ["default/p"]


def told(harness: SchedulerHarness) -> list[str]:
    """The pods that an Event is about."""
    relists(harness.controller)  # no pod needs to be fenced
    _, news = harness.controller.schedule_pending()
    return [each.key for each in news if isinstance(each, EventRecord)]


HARMLESS = {
    "a finished pod": lambda made: {**made, "status": {"phase": "Succeeded"}},
    "a pod behind our gate": lambda made: {
        **made,
        "spec": {**made["spec"], "schedulingGates": [{"name": str(names.GATE)}]},
    },
    "a kubelet's mirror of a static pod": lambda made: {
        **made,
        "metadata": {
            **made["metadata"],
            "annotations": {**made["metadata"]["annotations"], "kubernetes.io/config.mirror": "x"},
        },
    },
    "one that never passed admission": lambda made: {
        **made,
        "metadata": {**made["metadata"], "annotations": {ALLOCATION: '{"v": 2, "node": "n"}'}},
    },
}


@pytest.mark.parametrize("change", HARMLESS.values(), ids=HARMLESS.keys())
def test_pods_that_hold_nothing_close_no_card(change: Any) -> None:
    harness = SchedulerHarness(NODES)
    harness.controller.handle(pod_event(change(rewritten(running(harness), ALLOCATION, {"v": 2}))))
    assert closed(harness) == {}


def test_many_unread_shares_on_many_nodes_cost_no_look_at_each_other() -> None:
    nodes = [node(f"n{number}").gpus(1, mib=16_000) for number in range(50)]
    harness = SchedulerHarness(nodes)
    made = running(SchedulerHarness(NODES))
    for number in range(50):
        moved = rewritten(made, ALLOCATION, {"v": 2, "node": f"n{number}"})
        moved["metadata"] = {**moved["metadata"], "uid": f"u{number}", "name": f"p{number}"}
        moved["spec"] = {**moved["spec"], "nodeName": f"n{number}"}
        harness.controller.handle(pod_event(moved))
    assert closed(harness) == {f"n{number}": [0] for number in range(50)}
    assert harness.controller.look().unread == 50


def test_a_share_that_cannot_be_read_is_not_taken_for_one_that_admission_missed() -> None:
    made = rewritten(running(SchedulerHarness(NODES)), ALLOCATION, {"v": 2})
    assert not listed(made, NO_OPTIONS, {"default"}).uncounted
    made["metadata"]["annotations"].pop(ALLOCATION)
    assert listed(made, NO_OPTIONS, {"default"}).uncounted
