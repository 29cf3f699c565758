"""What a pod must be, and which changes to it are allowed."""

from typing import Any

import pytest

from playground.api.api import Api
from tests.unit.playground.api.manifests import JSON_PATCH, MERGE, PODS, create_pod, ok, pod, refusal

GATE = {"schedulingGates": [{"name": "example.com/wait"}]}
TERMS = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"


def container(**fields: Any) -> dict[str, Any]:
    return {"containers": [{"name": "main", "image": "i", **fields}]}


def limits(**amounts: Any) -> dict[str, Any]:
    return container(resources={"limits": {name.replace("_", "/"): amount for name, amount in amounts.items()}})


def term(key: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": "Exists"}]}


def affinity(*terms: dict[str, Any]) -> dict[str, Any]:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    return {"affinity": {"nodeAffinity": required}}


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a gate and a node": (
        {**GATE, "nodeName": "n1"},
        "spec.nodeName: Forbidden: cannot be set until all schedulingGates have been cleared",
    ),
    "no container": ({"containers": []}, "spec.containers: Required value"),
    "two containers of one name": (
        {"containers": [{"name": "a", "image": "i"}, {"name": "a", "image": "i"}]},
        'spec.containers[1].name: Duplicate value: "a"',
    ),
    "no image": ({"containers": [{"name": "a"}]}, "spec.containers[0].image: Required value"),
    "a share that is no integer": (
        limits(**{"example.com_gpu": "1.5"}),
        '[spec.containers[0].resources.limits[example.com/gpu]: Invalid value: "1500m": must be an integer, '
        'spec.containers[0].resources.requests[example.com/gpu]: Invalid value: "1500m": must be an integer]',
    ),
    "a request that is not the limit": (
        container(resources={"limits": {"example.com/gpu": "2"}, "requests": {"example.com/gpu": "1"}}),
        'spec.containers[0].resources.requests: Invalid value: "1": must be equal to example.com/gpu limit of 2',
    ),
    "a request without a limit": (
        container(resources={"requests": {"example.com/gpu": "1"}}),
        "spec.containers[0].resources.limits: Required value: Limit must be set for non overcommitable resources",
    ),
    "a request above the limit": (
        container(resources={"limits": {"cpu": "1"}, "requests": {"cpu": "2"}}),
        'spec.containers[0].resources.requests: Invalid value: "2": must be less than or equal to cpu limit of 1',
    ),
    "a mount of no volume": (
        container(volumeMounts=[{"name": "none", "mountPath": "/x"}]),
        'spec.containers[0].volumeMounts[0].name: Not found: "none"',
    ),
    "a field that cannot be referred to": (
        container(env=[{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "spec.priority"}}}]),
        "spec.containers[0].env[0].valueFrom.fieldRef.fieldPath: "
        'Invalid value: "spec.priority": error converting fieldPath: field label not supported: spec.priority',
    ),
    "a toleration that says two things": (
        {"tolerations": [{"key": "a", "operator": "Exists", "value": "x", "effect": "NoSchedule"}]},
        'spec.tolerations[0].operator: Invalid value: {"key":"a","operator":"Exists","value":"x",'
        '"effect":"NoSchedule"}: value must be empty when `operator` is \'Exists\'',
    ),
    "a restart policy that is none": (
        {"restartPolicy": "Maybe"},
        'spec.restartPolicy: Unsupported value: "Maybe": supported values: "Always", "OnFailure", "Never"',
    ),
}


@pytest.mark.parametrize(("spec", "complaint"), REFUSED.values(), ids=REFUSED.keys())
def test_a_pod_that_is_refused(api: Api, spec: dict[str, Any], complaint: str) -> None:
    assert refusal(api.call("POST", PODS, body=pod(**spec))) == (422, "Invalid", f'Pod "web" is invalid: {complaint}')


METADATA: dict[str, tuple[dict[str, Any], str]] = {
    "a name in capitals": ({"name": "Web"}, 'metadata.name: Invalid value: "Web": a lowercase RFC 1123 subdomain'),
    "a label key with a long name": (
        {"labels": {f"example.com/{'a' * 64}": "x"}},
        "name part must be no more than 63 characters",
    ),
    "a label value with a blank": ({"labels": {"a": "b c"}}, "a valid label must be an empty string or consist of"),
    "annotations beyond 256 KiB": (
        {"annotations": {"a": "x" * 262144}},
        "metadata.annotations: Too long: may not be more than 262144 bytes",
    ),
}


@pytest.mark.parametrize(("metadata", "complaint"), METADATA.values(), ids=METADATA.keys())
def test_metadata_that_is_refused(api: Api, metadata: dict[str, Any], complaint: str) -> None:
    body = pod()
    body["metadata"].update(metadata)
    code, reason, message = refusal(api.call("POST", PODS, body=body))
    assert (code, reason, complaint in message) == (422, "Invalid", True)


def test_all_errors_are_reported_together(api: Api) -> None:
    code, body = api.call("POST", PODS, body=pod(containers=[{"name": "A"}]))
    assert code == 422
    assert [cause["field"] for cause in body["details"]["causes"]] == [
        "spec.containers[0].name",
        "spec.containers[0].image",
    ]


ACCEPTED_WHILE_GATED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "one more node label": ({"nodeSelector": {"a": "1"}}, {"nodeSelector": {"a": "1", "b": "2"}}),
    "a first required node affinity": ({}, affinity(term("a"))),
    "one more expression in a term": (
        affinity(term("a")),
        affinity({"matchExpressions": [*term("a")["matchExpressions"], *term("b")["matchExpressions"]]}),
    ),
    "the gate removed": ({}, {"schedulingGates": None}),
    "the gate removed and the node pinned in one step": (
        {},
        {"schedulingGates": None, **affinity(term("a"))},
    ),
}
REFUSED_WHILE_GATED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "another gate": (
        {},
        {"schedulingGates": [{"name": "example.com/wait"}, {"name": "example.com/more"}]},
        "spec.schedulingGates[1].name: Forbidden: only deletion is allowed, but found new scheduling gate "
        "'example.com/more'",
    ),
    "a node label changed": (
        {"nodeSelector": {"a": "1"}},
        {"nodeSelector": {"a": "2"}},
        'spec.nodeSelector: Invalid value: {"a":"2"}: only additions to spec.nodeSelector are allowed '
        "(no mutations or deletions)",
    ),
    "another term": (
        affinity(term("a")),
        affinity(term("a"), term("b")),
        "no additions/deletions to non-empty NodeSelectorTerms list are allowed",
    ),
    "a term changed": (
        affinity(term("a")),
        affinity(term("b")),
        "only additions are allowed (no mutations or deletions)",
    ),
    "the node's name": ({}, {"nodeName": "n1"}, "spec: Forbidden: pod updates may not change fields other than"),
    "another node's name once the gate goes": (
        {},
        {"schedulingGates": None, "nodeName": "n1"},
        "spec: Forbidden: pod updates may not change fields other than",
    ),
}


@pytest.mark.parametrize(("before", "change"), ACCEPTED_WHILE_GATED.values(), ids=ACCEPTED_WHILE_GATED.keys())
def test_what_may_change_on_a_gated_pod(api: Api, before: dict[str, Any], change: dict[str, Any]) -> None:
    create_pod(api, **{**GATE, **before})
    ok(api.call("PATCH", f"{PODS}/web", body={"spec": change}, content_type=MERGE))


@pytest.mark.parametrize(("before", "change", "text"), REFUSED_WHILE_GATED.values(), ids=REFUSED_WHILE_GATED.keys())
def test_what_may_not_change_on_a_gated_pod(
    api: Api, before: dict[str, Any], change: dict[str, Any], text: str
) -> None:
    create_pod(api, **{**GATE, **before})
    code, _, message = refusal(api.call("PATCH", f"{PODS}/web", body={"spec": change}, content_type=MERGE))
    assert (code, text in message) == (422, True)


CHANGES: dict[str, tuple[dict[str, Any], bool]] = {
    "an image": ({"op": "replace", "path": "/spec/containers/0/image", "value": "new"}, True),
    "a first deadline": ({"op": "add", "path": "/spec/activeDeadlineSeconds", "value": 5}, True),
    "one more toleration": (
        {"op": "add", "path": "/spec/tolerations/-", "value": {"key": "a", "operator": "Exists"}},
        True,
    ),
    "a toleration removed": ({"op": "remove", "path": "/spec/tolerations/0"}, False),
    "a toleration removed that every pod gets": ({"op": "remove", "path": "/spec/tolerations/1"}, True),
    "a node label": ({"op": "add", "path": "/spec/nodeSelector", "value": {"a": "1"}}, False),
    "a resource": ({"op": "add", "path": "/spec/containers/0/resources/limits", "value": {"cpu": "1"}}, False),
    "an environment": ({"op": "add", "path": "/spec/containers/0/env", "value": [{"name": "A"}]}, False),
    "a container": ({"op": "add", "path": "/spec/containers/-", "value": {"name": "b", "image": "i"}}, False),
    "a gate": ({"op": "add", "path": "/spec/schedulingGates", "value": [{"name": "example.com/g"}]}, False),
    "an annotation": ({"op": "add", "path": "/metadata/annotations", "value": {"a": "1"}}, True),
}


@pytest.mark.parametrize(("operation", "accepted"), CHANGES.values(), ids=CHANGES.keys())
def test_what_may_change_on_any_pod(api: Api, operation: dict[str, Any], accepted: bool) -> None:
    create_pod(api, tolerations=[{"key": "own", "operator": "Exists"}])
    code, _ = api.call("PATCH", f"{PODS}/web", body=[operation], content_type=JSON_PATCH)
    assert code == (200 if accepted else 422)


def test_a_gated_pod_says_so(api: Api) -> None:
    (condition,) = create_pod(api, **GATE)["status"]["conditions"]
    assert (condition["type"], condition["status"], condition["reason"]) == ("PodScheduled", "False", "SchedulingGated")


def test_what_admission_adds_to_a_pod(api: Api) -> None:
    spec = create_pod(api, automountServiceAccountToken=True)["spec"]
    (mount,) = spec["containers"][0]["volumeMounts"]
    assert mount["mountPath"] == "/var/run/secrets/kubernetes.io/serviceaccount"
    assert [volume["name"] for volume in spec["volumes"]] == [mount["name"]]
    assert [toleration["key"] for toleration in spec["tolerations"]] == [
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
    ]
    assert (spec["priority"], spec["preemptionPolicy"]) == (0, "PreemptLowerPriority")


def test_what_a_pod_refers_to_must_be_there(api: Api) -> None:
    assert refusal(api.call("POST", PODS, body=pod(serviceAccountName="none")))[2] == (
        'pods "web" is forbidden: error looking up service account default/none: serviceaccount "none" not found'
    )
    assert refusal(api.call("POST", PODS, body=pod(priorityClassName="none")))[0] == 403
    assert refusal(api.call("POST", PODS, body=pod(runtimeClassName="none")))[0] == 403
    ok(api.call("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", body={"metadata": {"name": "high"}, "value": 9}))
    assert create_pod(api, priorityClassName="high")["spec"]["priority"] == 9
