"""Binding, eviction, scale, log."""

from typing import Any

import pytest

from playground.api.api import Api
from tests.unit.playground.api.manifests import MERGE, PODS, create_pod, deployment, ok, pod, refusal

DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
BINDING = {"target": {"kind": "Node", "name": "n1"}, "metadata": {"annotations": {"example.com/by": "test"}}}
READY = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}


def test_a_binding_gives_a_pod_its_node(api: Api) -> None:
    create_pod(api)
    code, _ = api.call("POST", f"{PODS}/web/binding", body=BINDING)
    bound = ok(api.call("GET", f"{PODS}/web"))
    assert (code, bound["spec"]["nodeName"], bound["metadata"]["annotations"]) == (
        201,
        "n1",
        {"example.com/by": "test"},
    )
    (condition,) = bound["status"]["conditions"]
    assert (condition["type"], condition["status"]) == ("PodScheduled", "True")


UNBINDABLE: dict[str, tuple[dict[str, Any], str]] = {
    "one that has a node": ({"nodeName": "n0"}, 'pod web is already assigned to node "n0"'),
    "a gated one": ({"schedulingGates": [{"name": "example.com/g"}]}, "pod web has non-empty .spec.schedulingGates"),
}


@pytest.mark.parametrize(("spec", "why"), UNBINDABLE.values(), ids=UNBINDABLE.keys())
def test_a_pod_that_cannot_be_bound(api: Api, spec: dict[str, Any], why: str) -> None:
    create_pod(api, **spec)
    assert refusal(api.call("POST", f"{PODS}/web/binding", body=BINDING)) == (
        409,
        "Conflict",
        f'Operation cannot be fulfilled on pods/binding "web": {why}',
    )


def test_a_scale_is_read_and_written(api: Api) -> None:
    ok(api.call("POST", DEPLOYMENTS, body=deployment()))
    scale = ok(api.call("GET", f"{DEPLOYMENTS}/web/scale"))
    assert (scale["kind"], scale["spec"], scale["status"]) == (
        "Scale",
        {"replicas": 2},
        {"replicas": 0, "selector": "app=web"},
    )
    ok(api.call("PUT", f"{DEPLOYMENTS}/web/scale", body={**scale, "spec": {"replicas": 5}}))
    assert ok(api.call("GET", f"{DEPLOYMENTS}/web"))["spec"]["replicas"] == 5
    ok(api.call("PATCH", f"{DEPLOYMENTS}/web/scale", body={"spec": {"replicas": 1}}, content_type=MERGE))
    assert ok(api.call("GET", f"{DEPLOYMENTS}/web"))["spec"]["replicas"] == 1
    assert refusal(api.call("PUT", f"{DEPLOYMENTS}/web/scale", body=scale))[:2] == (409, "Conflict")


def guard(api: Api, **spec: Any) -> None:
    body = {"metadata": {"name": "guard"}, "spec": {"selector": {"matchLabels": {"app": "web"}}, **spec}}
    ok(api.call("POST", "/apis/policy/v1/namespaces/default/poddisruptionbudgets", body=body))


def test_an_eviction_respects_disruption_budgets(api: Api) -> None:
    for name in ("a", "b"):
        create_pod(api, name=name, labels={"app": "web"})
        ok(api.call("PATCH", f"{PODS}/{name}/status", body=READY, content_type=MERGE))
    guard(api, minAvailable=1)
    assert api.call("POST", f"{PODS}/a/eviction", body={})[0] == 201
    answer = refusal(api.call("POST", f"{PODS}/b/eviction", body={}))
    assert answer == (
        429,
        "TooManyRequests",
        "Cannot evict pod as it would violate the pod's disruption budget.",
    )


def test_logs_come_from_the_provider(api: Api) -> None:
    api.log_provider = lambda namespace, name, container: f"{namespace}/{name}/{container}\nsecond\n"
    create_pod(api, nodeName="n1")
    whole, last = (ok(api.call("GET", f"{PODS}/web/log", query=query)) for query in ({}, {"tailLines": "1"}))
    assert (str(whole), str(last)) == ("default/web/main\nsecond\n", "second\n")
    answer = refusal(api.call("GET", f"{PODS}/web/log", query={"container": "x"}))
    assert answer == (400, "BadRequest", "container x is not valid for pod web")


def test_a_pod_with_many_containers_needs_a_container_name(api: Api) -> None:
    containers = [{"name": name, "image": "i"} for name in ("a", "b")]
    ok(api.call("POST", PODS, body=pod(containers=containers, nodeName="n1")))
    assert refusal(api.call("GET", f"{PODS}/web/log"))[2] == (
        "a container name must be specified for pod web, choose one of: [a b]"
    )
