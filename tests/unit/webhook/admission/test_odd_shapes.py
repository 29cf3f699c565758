"""
Every field of a pod that we read, with another type than in Kubernetes: it is refused by its name, or ignored.

An API server sends no such pod, but any client of the port can. A fault would be logged with its traceback each time.
"""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks.admission.families import review
from contract.encoding.protocol import Answer, Question, Wait, question_from_json, question_to_json
from contract.encoding.quantity import BadQuantity
from contract.scheduling import needs
from contract.scheduling.clusterfilters.objects import read_rules
from webhook.admission.admit import Configuration, admit
from webhook.admission.review import decode

JSON = dict[str, Any]
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
SELECTOR: JSON = {"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "k", "operator": "In", "values": ["v"]}]}
TERM: JSON = {
    "topologyKey": "zone",
    "labelSelector": SELECTOR,
    "namespaces": ["other"],
    "namespaceSelector": SELECTOR,
    "matchLabelKeys": ["a"],
    "mismatchLabelKeys": ["b"],
}
SPREAD: JSON = {
    "maxSkew": 1,
    "minDomains": 1,
    "topologyKey": "zone",
    "whenUnsatisfiable": "DoNotSchedule",
    "labelSelector": SELECTOR,
    "nodeAffinityPolicy": "Honor",
    "nodeTaintsPolicy": "Ignore",
    "matchLabelKeys": ["a"],
}
SHARE = {"limits": {"gpufraction.io/gpu-memory": "1Gi"}, "requests": {"cpu": "1"}}
CONTAINER: JSON = {
    "name": "main",
    "restartPolicy": "Always",
    "resources": SHARE,
    "env": [{"name": "A", "value": "x"}],
    "ports": [{"hostPort": 80, "containerPort": 80, "hostIP": "10.0.0.1", "protocol": "TCP"}],
    "volumeMounts": [{"name": "a", "mountPath": "/a"}],
}
VOLUMES: list[JSON] = [
    {"name": "a", "persistentVolumeClaim": {"claimName": "a"}},
    {"name": "b", "ephemeral": {"volumeClaimTemplate": {}}},
    {"name": "c", "gcePersistentDisk": {"pdName": "a"}},
    {"name": "d", "awsElasticBlockStore": {"volumeID": "a"}},
    {"name": "e", "iscsi": {"iqn": "a"}},
    {"name": "f", "rbd": {"monitors": ["a"], "pool": "p", "image": "i"}},
]
POD: JSON = {
    "metadata": {
        "name": "odd",
        "namespace": "default",
        "labels": {"a": "b"},
        "annotations": {"a": "b"},
        "ownerReferences": [
            {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "a", "uid": "b", "controller": True}
        ],
    },
    "spec": {
        "containers": [CONTAINER],
        "volumes": VOLUMES,
        "affinity": {
            "nodeAffinity": {
                REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": SELECTOR["matchExpressions"]}]},
                PREFERRED: [{"weight": 1, "preference": {"matchExpressions": SELECTOR["matchExpressions"]}}],
            },
            "podAffinity": {REQUIRED: [TERM], PREFERRED: [{"weight": 1, "podAffinityTerm": TERM}]},
            "podAntiAffinity": {REQUIRED: [{"topologyKey": "zone"}]},
        },
        "topologySpreadConstraints": [SPREAD],
        "resourceClaims": [{"name": "a", "resourceClaimName": "b"}],
        "tolerations": [{"key": "k", "operator": "Exists", "value": "", "effect": "NoSchedule"}],
        "nodeSelector": {"a": "b"},
        "schedulingGates": [{"name": "example.com/gate"}],
        "overhead": {"cpu": "1"},
        "resources": {"limits": {"cpu": "1"}},
        "runtimeClassName": "a",
        "priority": 1,
        "preemptionPolicy": "Never",
        "schedulerName": "default-scheduler",
        "hostNetwork": False,
        "os": {"name": "linux"},
    },
    "status": {"phase": "Pending", "conditions": [{"type": "a"}]},
}
ODD: tuple[Any, ...] = (7, "odd", [7], {"odd": 7})


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of each part of a value."""
    if at:
        yield at
    for step in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from places(value[step], (*at, step))


def odd(at: tuple[Any, ...], found: Any) -> JSON:
    """The pod with another value there."""
    made = copy.deepcopy(POD)
    *before, last = at
    parent: Any = made
    for step in before:
        parent = parent[step]
    parent[last] = found
    return made


def ask(question: Question) -> Answer:
    """Read a question as the allocator does before it decides; it refuses invalid amounts."""
    read = question_from_json(json.loads(json.dumps(question_to_json(question))))
    with contextlib.suppress(BadQuantity):
        needs.needs_of(read.pod)
    hash(read_rules(read.pod))
    return Wait("NoRoom", "full", {})


CONFIGURATIONS = {"": Configuration(), "GPUs are hidden": Configuration(hide_gpus=True)}


@pytest.mark.parametrize("part", [*POD["spec"], "metadata", "status"])
def test_no_odd_part_of_a_pod_is_a_fault(part: str) -> None:
    where = (part,) if part in POD else ("spec", part)
    outcomes = {
        admit(decode(review(odd(at, found))), configuration, ask, lambda node: frozenset(), now_ns=0).outcome
        for at in places(POD)
        if at[: len(where)] == where and at[:2] != ("metadata", "namespace")
        for found in ODD
        for configuration in CONFIGURATIONS.values()
    }
    assert "denied" in outcomes


def test_the_pod_itself_is_served() -> None:
    for configuration in CONFIGURATIONS.values():
        reviewed = admit(decode(review(POD)), configuration, ask, lambda node: frozenset(), now_ns=0)
        assert reviewed.outcome == "gated"
