"""Containers for debugging: what the subresource of pods adds, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cluster.conformance.asking import STRATEGIC, WAITING, Api, Ask, Case, check, create, pod

JSON = dict[str, Any]
PATH = "pods/p/ephemeralcontainers"
DEBUGGER: JSON = {"name": "debugger", "image": "tools:1"}
POD = create(pod("p"))


def put(*containers: JSON) -> Ask:
    return Ask("PATCH", PATH, {"spec": {"ephemeralContainers": list(containers)}}, STRATEGIC)


CASES = {
    "one is added, with the defaults of a container": Case(
        put(DEBUGGER),
        200,
        shows={
            "spec": {
                "ephemeralContainers": [
                    {
                        **DEBUGGER,
                        "resources": {},
                        "terminationMessagePath": "/dev/termination-log",
                        "terminationMessagePolicy": "File",
                        "imagePullPolicy": "IfNotPresent",
                    }
                ]
            }
        },
        given=(POD,),
    ),
    "a second one joins the first": Case(put({**DEBUGGER, "name": "other"}), 200, given=(POD, put(DEBUGGER))),
    "a pod behind a gate takes one too": Case(put(DEBUGGER), 200, given=(WAITING,)),
    "one that is there is not changed": Case(
        put({**DEBUGGER, "image": "tools:2"}),
        422,
        "Invalid",
        ('spec.ephemeralContainers: Forbidden: existing ephemeral containers "debugger" may not be changed',),
        given=(POD, put(DEBUGGER)),
    ),
    "one that is there is not removed": Case(
        Ask(
            "PATCH",
            PATH,
            [{"op": "remove", "path": "/spec/ephemeralContainers"}],
            "application/json-patch+json",
        ),
        422,
        "Invalid",
        ('existing ephemeral containers "debugger" may not be removed',),
        given=(POD, put(DEBUGGER)),
    ),
    "it asks for no resources": Case(
        put({**DEBUGGER, "resources": {"limits": {"gpufraction.io/gpu-memory": "1Gi"}}}),
        422,
        "Invalid",
        ("spec.ephemeralContainers[0].resources: Forbidden: cannot be set for an Ephemeral Container",),
        given=(POD,),
    ),
    "it has a name of its own": Case(
        put({**DEBUGGER, "name": "c"}),
        422,
        "Invalid",
        ('spec.ephemeralContainers[0].name: Duplicate value: "c"',),
        given=(POD,),
    ),
    "it has an image": Case(
        put({"name": "debugger"}),
        422,
        "Invalid",
        ("spec.ephemeralContainers[0].image: Required value",),
        given=(POD,),
    ),
    "an ordinary patch adds none": Case(
        Ask("PATCH", "pods/p", {"spec": {"ephemeralContainers": [DEBUGGER]}}, STRATEGIC), 422, "Invalid", given=(POD,)
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_containers_for_debugging(api: Api, case: Case) -> None:
    check(api, case)
