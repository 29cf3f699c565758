"""
A2: a stranger who reaches the port of a replica's webhook POSTs reviews that no API server sends. They are answered
with 400 or refused. No program ends, nothing stays reserved, and no log grows with what was sent.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.builders import pod
from tests.cluster.hostile.attack import ASSUME_TTL, TENANT, Hostile
from tests.cluster.hostile.replicas import post

JSON = dict[str, Any]
pytestmark = pytest.mark.hostile
LONG = "n" * 1_200_000
MOST_LOGGED = 64 << 10
"""Bytes that all attacks together may add to one program's logs; a single attack is over a megabyte."""


def review(made: JSON, **request: Any) -> JSON:
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "namespace": TENANT,
            "operation": "CREATE",
            "object": made,
            **request,
        },
    }


def share(**metadata: Any) -> JSON:
    made = pod("stranger").asks("gpufraction.io/gpu-memory", "1Gi").json()
    made["metadata"] = {"name": "stranger", "annotations": {}, **metadata}
    return made


def deep(levels: int) -> Any:
    value: Any = "x"
    for _ in range(levels):
        value = {"f:a": value}
    return value


def bound(made: JSON, node: str) -> JSON:
    return {**made, "spec": {**made["spec"], "nodeName": node}}


REVIEWS: dict[str, Callable[[], JSON]] = {
    "no namespace": lambda: review(share(), namespace=None),
    "an empty namespace": lambda: review(share(), namespace=""),
    "a namespace that is a path": lambda: review(share(), namespace=".."),
    "a namespace that leads elsewhere": lambda: review(share(), namespace="../nodes"),
    "a namespace with a question": lambda: review(share(), namespace="default?x=1"),
    "a namespace with a line break": lambda: review(share(), namespace="a\nERROR forged: line"),
    "a namespace with half a character": lambda: review(share(), namespace="\ud800"),
    "a namespace without end": lambda: review(share(), namespace=LONG),
    "a uid without end": lambda: review(share(), uid=LONG),
    "a name without end": lambda: review(share(name=LONG)),
    "a name that is a path": lambda: review(share(name="../../nodes/t4")),
    "half a name without end": lambda: review(share(name=None, generateName=LONG)),
    "another namespace in the pod": lambda: review(share(namespace="kube-system")),
    "a node without end": lambda: review(bound(share(), LONG)),
    "a container without end": lambda: review(
        pod("stranger").container(LONG).asks("gpufraction.io/gpu-memory", "1Gi").json()
    ),
    "an operation without end": lambda: review(share(), operation=LONG),
    "nested deeply": lambda: review(share(managedFields=[{"fieldsV1": deep(900)}])),
    "nested as deep as goes": lambda: review(share(managedFields=[{"fieldsV1": deep(300)}])),
    "a gate without end": lambda: review(pod("stranger").asks("nvidia.com/gpumem", "9").gated(LONG).json()),
    "an annotation without end": lambda: review(share(annotations={"gpufraction.io/allocation": LONG})),
    "a request without end": lambda: review(share(annotations={"gpufraction.io/request": "[" * 1_000_000})),
    "no name at all": lambda: review(share(name=None)),
    "well formed, of a namespace that is not there": lambda: review(share(), namespace="nowhere"),
    "well formed, of a pod that never comes": lambda: review(share()),
}


def logged(hostile: Hostile) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in hostile.cluster.directory.glob("**/*.log")}


def test_strangers_reviews_end_nothing_and_leave_nothing(hostile: Hostile) -> None:
    before = logged(hostile)
    assert {"webhook.log", "webhook-1.log", "allocator.log", "allocator-1.log"} <= before.keys()
    answers = {
        (name, replica.number): post(hostile, replica.number, json.dumps(make()).encode())
        for name, make in REVIEWS.items()
        for replica in hostile.cluster.replicas
    }
    assert {status for status, _ in answers.values()} <= {200, 400, 413}
    lengths = {key: len(json.dumps(body)) for key, (_, body) in answers.items()}
    uids = {key: size for key, size in lengths.items() if size > 20_000}
    assert uids == {}, "an answer never repeats what was sent at length"
    time.sleep(2 * ASSUME_TTL + 1)  # by now the reservations are overdue, and the allocator looks for their pods
    grown = {name: size - before.get(name, 0) for name, size in logged(hostile).items()}
    assert {name: size for name, size in grown.items() if size > MOST_LOGGED} == {}
    for replica in hostile.cluster.replicas:
        assert hostile.figures(replica.number)['gpufraction_reservations{state="assumed"}'] == 0


@pytest.mark.parametrize("name", [name for name in REVIEWS if "namespace" in name and "well" not in name])
def test_an_invalid_namespace_is_reported(hostile: Hostile, name: str) -> None:
    status, body = post(hostile, 0, json.dumps(REVIEWS[name]()).encode())
    assert status == 400
    assert body["message"].startswith(("request.namespace: found ", "request.object.metadata.namespace: found "))
    assert len(body["message"]) < 200
