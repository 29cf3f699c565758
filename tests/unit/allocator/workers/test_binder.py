"""
What happens to a commit: it is written, refused or overtaken, or its result is unknown and the same commit finds out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from allocator.cache.podinfo import pod_event
from allocator.queue.records import Binding
from allocator.scheduler.events import BindFailed, BindSucceeded, BindUnknown
from allocator.workers import binder
from contract import names, pods
from runtime.kubernetes.client import Kube
from tests.builders import node, pod
from tests.unit.allocator.apiserver import ApiServer
from tests.unit.allocator.harness import SchedulerHarness, admitted

JSON = dict[str, Any]


def decided(**annotations: str) -> tuple[ApiServer, Kube, Binding]:
    """
    A waiting pod on the API server, and the commit that was decided for it. `annotations`: further ones of the pod.
    """
    api, harness = ApiServer(), SchedulerHarness([node("n").gpus(1)])
    made = admitted(pod("p").asks("gpufraction.io/gpu-memory", "1Gi"), gated=True)
    made["metadata"]["annotations"].update(annotations)
    stored = api.create(made)
    harness.controller.handle(pod_event(pods.trim(stored)))
    ((binding,), _) = harness.controller.schedule_pending()
    return api, Kube(api.wire), binding


def test_a_commit_takes_the_gate_away_and_pins_the_pod() -> None:
    api, kube, binding = decided()
    outcome = binder.write(kube, binding, 0)
    assert outcome == BindSucceeded(binding, pod_event(pods.trim(api.pods["default/p"])))
    assert pods.gates(api.pods["default/p"]) == ()
    assert pods.allocation_id(api.pods["default/p"]) == binding.allocation.id


AUTOSCALER, KARPENTER = "cluster-autoscaler.kubernetes.io/safe-to-evict", "karpenter.sh/do-not-disrupt"


def test_a_commit_keeps_autoscalers_from_the_node_where_that_is_wanted() -> None:
    api, kube, binding = decided()
    assert isinstance(binder.write(kube, binding, 0, protects=True), BindSucceeded)
    found = pods.annotations_of(api.pods["default/p"])
    assert (found[AUTOSCALER], found[KARPENTER], found[names.PROTECTED]) == (
        "false",
        "true",
        f"{AUTOSCALER},{KARPENTER}",
    )


def test_a_commit_leaves_what_the_author_wrote_about_evictions() -> None:
    api, kube, binding = decided(**{AUTOSCALER: "true"})
    assert isinstance(binder.write(kube, binding, 0, protects=True), BindSucceeded)
    found = pods.annotations_of(api.pods["default/p"])
    assert (found[AUTOSCALER], found[KARPENTER], found[names.PROTECTED]) == ("true", "true", KARPENTER)


def test_a_commit_writes_nothing_about_evictions_by_default() -> None:
    api, kube, binding = decided()
    binder.write(kube, binding, 0)
    assert not {AUTOSCALER, KARPENTER, names.PROTECTED} & pods.annotations_of(api.pods["default/p"]).keys()


def test_a_lost_answer_is_found_out_by_reading_back() -> None:
    api, kube, binding = decided()
    api.wire.fates = ["lost-and-done"]
    assert isinstance(binder.write(kube, binding, 0), BindSucceeded)


def test_a_lost_write_may_still_be_carried_out_until_the_same_commit_settles_it() -> None:
    api, kube, binding = decided()
    api.wire.fates = ["lost"]
    assert isinstance(binder.write(kube, binding, 0), BindUnknown)
    assert isinstance(binder.write(kube, binding, 0), BindSucceeded)
    written = api.pods["default/p"]["metadata"]["resourceVersion"]
    api.wire.carry_out_late()
    assert api.pods["default/p"]["metadata"]["resourceVersion"] == written, "the late write finds another version"


def test_the_late_write_may_win_and_the_second_finds_it() -> None:
    api, kube, binding = decided()
    api.wire.fates = ["lost"]
    binder.write(kube, binding, 0)
    api.wire.carry_out_late()
    assert isinstance(binder.write(kube, binding, 0), BindSucceeded)


def test_a_refusal_and_an_overtaken_version_are_not_done() -> None:
    api, kube, binding = decided()
    api.wire.fates = ["refused"]
    refused = binder.write(kube, binding, 0)
    api.change("default/p", touched="by somebody")
    overtaken = binder.write(kube, binding, 0)
    assert [(type(o), o.refused) for o in (refused, overtaken) if isinstance(o, BindFailed)] == [
        (BindFailed, True),
        (BindFailed, False),
    ]
    assert names.GATE in pods.gates(api.pods["default/p"])


def test_a_commit_that_cannot_be_repeated_is_not_carried_out_late() -> None:
    """Its room is about to be given to another pod."""
    api, kube, binding = decided()
    again = replace(binding, again=True)
    api.wire.fates = ["lost"]
    assert isinstance(binder.write(kube, binding, 0), BindUnknown)
    api.wire.fates = ["refused", "lost"]
    assert isinstance(binder.write(kube, again, 0), BindUnknown), "refused, and a late write may still find its version"
    api.wire.fates = ["refused"]
    assert isinstance(binder.write(kube, again, 0), BindFailed)
    api.wire.carry_out_late()
    assert pods.allocation_id(api.pods["default/p"]) == ""


def test_a_pod_that_is_deleted_or_replaced_by_now_is_not_done() -> None:
    api, kube, binding = decided()
    api.delete("default/p")
    deleted = binder.write(kube, binding, 0)
    api.create(admitted(pod("p").asks("gpufraction.io/gpu-memory", "1Gi"), gated=True))
    another = binder.write(kube, binding, 0)
    assert [getattr(o, "pod", "?") for o in (deleted, another)] == [None, None]


def test_an_api_server_that_is_away_leaves_it_unknown() -> None:
    api, kube, binding = decided()
    api.wire.down = "dropped"
    assert isinstance(binder.write(kube, binding, 0), BindUnknown)
