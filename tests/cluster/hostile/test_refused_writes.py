"""C3: a condition reports what the API server refuses to store, in its own words, and no other pod waits for it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from contract import names
from playground import scenarios
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import KubeError
from tests.builders import PodBuilder, pod
from tests.cluster.hostile.attack import TENANT, Hostile

pytestmark = pytest.mark.hostile
JSON = dict[str, Any]
HOLD = "example.com/hold"
"""Another system's gate: the pod waits until it is removed, and then a write places it."""
POLICY_MESSAGE = "no placements of these, says somebody else"
NAME = "example-refuses"


@contextlib.contextmanager
def policy(hostile: Hostile, resources: list[str], refused: str) -> Iterator[None]:
    """Another user's policy on updates of pods that have its label: `refused` says in CEL what it refuses."""
    path = paths.validatingadmissionpolicies()
    bindings = path.replace("policies", "policybindings")
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": resources}
    hostile.kube.create(
        path,
        {
            "metadata": {"name": NAME},
            "spec": {
                "failurePolicy": "Fail",
                "matchConstraints": {
                    "resourceRules": [rule],
                    "objectSelector": {"matchLabels": {"refused": "yes"}},
                },
                "validations": [
                    {
                        "expression": f"!('probe' in object.metadata.labels) && !({refused})",
                        "message": POLICY_MESSAGE,
                        "reason": "Forbidden",
                    }
                ],
            },
        },
    )
    bound = {"policyName": NAME, "validationActions": ["Deny"]}
    hostile.kube.create(bindings, {"metadata": {"name": NAME}, "spec": bound})
    try:
        wait_for(lambda: is_refused(hostile), "the policy does not count yet")
        yield
    finally:
        hostile.kube.delete(f"{bindings}/{NAME}")
        hostile.kube.delete(f"{path}/{NAME}")


def is_refused(hostile: Hostile) -> bool:
    """Whether the policy is in effect. The test request is not carried out."""
    try:
        probe = {"metadata": {"labels": {"probe": "yes"}}}
        hostile.kube.patch_merge(paths.pods(TENANT, "held"), probe, {"dryRun": "All"})
    except KubeError as error:
        return POLICY_MESSAGE in str(error)
    return False


def held() -> PodBuilder:
    made = pod("held").labelled("refused", "yes").asks("gpufraction.io/gpu-memory", "1Gi")
    return made.gated(HOLD)


def let_go(hostile: Hostile) -> None:
    path = paths.pods(TENANT, "held")
    gates = [gate["name"] for gate in hostile.kube.get(path)["spec"]["schedulingGates"]]
    hostile.kube.patch_json(path, [{"op": "remove", "path": f"/spec/schedulingGates/{gates.index(HOLD)}"}])


def condition(hostile: Hostile) -> JSON:
    return scenarios.condition(hostile.kube.get(paths.pods(TENANT, "held")))


def warnings(hostile: Hostile) -> list[str]:
    """What Warning Events say about the pod, with their reasons."""
    found = hostile.kube.list(paths.events(TENANT)).items
    ours = [each for each in found if each["involvedObject"].get("name") == "held" and each["type"] == "Warning"]
    return [f"{each['reason']}: {each['message']}" for each in ours]


def is_placed(hostile: Hostile) -> bool:
    return bool(hostile.kube.get(paths.pods(TENANT, "held"))["spec"].get("nodeName"))


PLACED = f"has(object.metadata.annotations) && '{names.ALLOCATION}' in object.metadata.annotations"
CONDITION_MESSAGE = (
    "has(object.status.conditions) && "
    "object.status.conditions.exists(c, has(c.reason) && c.reason == 'PlacementRefused')"
)
OF_STATUS = "has(request.subResource) && request.subResource == 'status'"


def test_a_placement_that_a_policy_refuses_is_reported_in_its_words(hostile: Hostile) -> None:
    hostile.create(held())
    with policy(hostile, ["pods"], PLACED):
        let_go(hostile)
        wait_for(lambda: condition(hostile).get("reason") == "PlacementRefused", lambda: f"told {condition(hostile)}")
        assert POLICY_MESSAGE in condition(hostile)["message"]
        wait_for(lambda: bool(warnings(hostile)), "there is no Event")
        assert [POLICY_MESSAGE in each for each in warnings(hostile)] == [True]
        assert warnings(hostile)[0].startswith("PlacementRefused: waiting: node ")
        hostile.neighbour_is_served()
    wait_for(lambda: is_placed(hostile), lambda: f"not placed: {condition(hostile)}", 120)


def test_where_the_condition_is_refused_too_there_is_an_event(hostile: Hostile) -> None:
    hostile.create(held())
    with policy(hostile, ["pods", "pods/status"], f"{OF_STATUS} ? {CONDITION_MESSAGE} : {PLACED}"):
        let_go(hostile)
        wait_for(lambda: bool(warnings(hostile)), lambda: f"no Event, and told {condition(hostile)}")
        assert POLICY_MESSAGE in warnings(hostile)[0]
        hostile.neighbour_is_served()
    wait_for(lambda: is_placed(hostile), lambda: f"not placed: {condition(hostile)}", 120)
