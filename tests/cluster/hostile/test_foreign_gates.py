"""
Other systems' scheduling gates, as a queueing system adds them: pods get no share before the gates are removed, in any
order of the webhooks, with each pin and dialect.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from contract import names, pods
from playground import scenarios
from playground.waiting import wait_for
from runtime.kubernetes import paths
from tests.builders import PodBuilder, pod
from tests.cluster.hostile.attack import TENANT, Hostile
from tests.cluster.hostile.replicas import asking
from tests.cluster.queueing.played import GATES, gating
from tests.cluster.system import another

pytestmark = pytest.mark.hostile
JSON = dict[str, Any]
LABEL = "queued"
MEMBERS = 3
V100 = {"gpu": "on"}
"""The selector of the flavor that the queueing system chooses. Pods are created without it."""
HOOK = paths.mutatingwebhookconfigurations("zz-gpufraction-webhook")
ASKS = {
    "our own words": pod("m").asks("gpufraction.io/gpu-memory", "2Gi"),
    "Aliyun's": pod("m").asks("aliyun.com/gpu-mem", 2),
    "HAMi's": pod("m").asks("nvidia.com/gpu", 1).asks("nvidia.com/gpumem", 2000),
}


@contextlib.contextmanager
def queueing(hostile: Hostile, order: str) -> Iterator[None]:
    """A queueing system's webhook, called before or after ours."""
    probe = pod("probe").labelled(LABEL, "yes")
    with another.registered(hostile.kube, gating, label=LABEL, name=order):
        wait_for(lambda: GATES[0] in pods.gates(hostile.create(probe, dry_run=True)), "its webhook is not called")
        yield


def shown(found: JSON) -> JSON:
    """A pod's spec without the fields that the API server generates for each pod."""
    spec = {key: value for key, value in found["spec"].items() if key != "volumes"}
    return {**spec, "containers": [{**each, "volumeMounts": None} for each in spec["containers"]]}


def reserved(hostile: Hostile) -> float:
    states = ("assumed", "confirmed")
    figures = [hostile.figures(replica) for replica in (0, 1)]
    return sum(each.get(f'gpufraction_reservations{{state="{state}"}}', 0) for each in figures for state in states)


@pytest.mark.parametrize("order", [another.BEFORE, another.AFTER])
@pytest.mark.parametrize("pin", ["auto", pytest.param("affinity", marks=pytest.mark.long)])
@pytest.mark.parametrize("asks", ASKS.values(), ids=ASKS.keys())
def test_no_share_is_given_before_the_gates_are_removed(
    hostile: Hostile, asks: PodBuilder, pin: str, order: str
) -> None:
    with queueing(hostile, order):
        for _ in range(MEMBERS):
            hostile.create(asks.generated("m-").labelled(LABEL, "yes").annotated(names.PLACEMENT, pin))
    waiting = hostile.pods()
    assert [set(pods.gates(each)) for each in waiting] == [{*GATES, names.GATE}] * MEMBERS
    assert all(shown(each) == shown(waiting[0]) for each in waiting), "members of a group are of one role"
    assert not any(names.ALLOCATION in pods.annotations_of(each) for each in waiting)
    assert not any(each["spec"].get("nodeName") or each["spec"].get("affinity") for each in waiting)
    wait_for(lambda: all(scenarios.waits(each) == "ForeignGate" for each in hostile.pods()), "they do not learn it")
    assert reserved(hostile) == 0
    for each in waiting:  # as Kueue does: it adds the flavor's selector first, then removes its gates
        path = paths.pods(TENANT, each["metadata"]["name"])
        ours = [{"name": str(names.GATE)}]
        hostile.kube.patch_merge(path, {"spec": {"nodeSelector": V100, "schedulingGates": ours}})
    found = scenarios.settled(hostile.kube, MEMBERS, TENANT, running=MEMBERS)
    assert {each["spec"]["nodeName"] for each in found} == {"v100"}, "the selector that came meanwhile counts"


def test_a_gate_that_comes_after_our_last_pass_takes_the_share_back(hostile: Hostile) -> None:
    """If our webhook is not called again, the pod is stored with a share behind the gate; the watch reports it."""
    (before,) = (hook["reinvocationPolicy"] for hook in hostile.kube.get(HOOK)["webhooks"][:1])
    made = ASKS["our own words"].generated("m-").labelled(LABEL, "yes").annotated(names.PLACEMENT, "affinity")
    replace = {"op": "replace", "path": "/webhooks/0/reinvocationPolicy"}
    hostile.kube.patch_json(HOOK, [{**replace, "value": "Never"}])
    try:
        with asking(hostile, leads=True), queueing(hostile, another.AFTER):
            # Another attack on this cluster may have put the namespace on probation; its pods are then stored first.
            wait_for(lambda: names.GATE not in pods.gates(hostile.create(made)), "none is given a share", 90, every=1.0)
    finally:
        hostile.kube.patch_json(HOOK, [{**replace, "value": before}])
    without = [each for each in hostile.pods() if names.GATE not in pods.gates(each)]
    wait_for(
        lambda: not any(names.ALLOCATION in pods.annotations_of(each) for each in hostile.pods()), "the shares stay"
    )
    wait_for(lambda: reserved(hostile) == 0, "the shares are still counted")
    events = paths.path("v1", "events", TENANT)
    learnt = {each["metadata"]["name"] for each in without}
    wait_for(
        lambda: (
            learnt
            == {
                each["involvedObject"]["name"]
                for each in hostile.kube.list(events).items
                if each["reason"] == "GPUShareReturned"
            }
        ),
        "no Event says so",
    )
    for each in without:  # as the Event says
        hostile.kube.delete(paths.pods(TENANT, each["metadata"]["name"]), {"gracePeriodSeconds": 0})
