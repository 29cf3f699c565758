"""Deletion: grace, finalizers, preconditions, dependents, namespaces."""

from typing import Any

import pytest

from playground.api.api import Api
from tests.unit.playground.api.conftest import Clock
from tests.unit.playground.api.manifests import EVERY_POD, MERGE, PODS, create_pod, deployment, names, ok, pod, refusal

MAPS = "/api/v1/namespaces/default/configmaps"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"


def patch(api: Api, path: str, body: Any) -> dict[str, Any]:
    return ok(api.call("PATCH", path, body=body, content_type=MERGE))


def test_a_pod_without_a_node_goes_at_once(api: Api) -> None:
    create_pod(api)
    ok(api.call("DELETE", f"{PODS}/web"))
    assert refusal(api.call("GET", f"{PODS}/web"))[0] == 404


def test_a_pod_on_a_node_waits_for_its_kubelet(api: Api, clock: Clock) -> None:
    create_pod(api, nodeName="n1", terminationGracePeriodSeconds=20)
    going = ok(api.call("DELETE", f"{PODS}/web"))
    assert going["metadata"]["deletionTimestamp"] == "2023-11-14T22:13:40Z"
    assert going["metadata"]["deletionGracePeriodSeconds"] == 20
    assert names(ok(api.call("GET", PODS))) == ["web"]
    clock.now += 5
    sooner = ok(api.call("DELETE", f"{PODS}/web", body={"gracePeriodSeconds": 2}))
    assert sooner["metadata"]["deletionGracePeriodSeconds"] == 2
    ok(api.call("DELETE", f"{PODS}/web", body={"gracePeriodSeconds": 0}))
    assert names(ok(api.call("GET", PODS))) == []


def test_a_finished_pod_goes_at_once(api: Api) -> None:
    create_pod(api, nodeName="n1")
    patch(api, f"{PODS}/web/status", {"status": {"phase": "Succeeded"}})
    ok(api.call("DELETE", f"{PODS}/web"))
    assert names(ok(api.call("GET", PODS))) == []


def test_a_finalizer_holds_an_object_until_it_is_removed(api: Api) -> None:
    ok(api.call("POST", MAPS, body={"metadata": {"name": "m", "finalizers": ["example.com/hold"]}}))
    ok(api.call("DELETE", f"{MAPS}/m"))
    assert ok(api.call("GET", f"{MAPS}/m"))["metadata"]["deletionTimestamp"]
    more = {"metadata": {"finalizers": ["example.com/hold", "example.com/more"]}}
    code, _, message = refusal(api.call("PATCH", f"{MAPS}/m", body=more, content_type=MERGE))
    assert code == 422
    assert "no new finalizers can be added if the object is being deleted" in message
    patch(api, f"{MAPS}/m", {"metadata": {"finalizers": None}})
    assert refusal(api.call("GET", f"{MAPS}/m"))[0] == 404


def test_a_finalizer_holds_a_pod_beyond_its_grace_period(api: Api) -> None:
    body = pod(nodeName="n1")
    body["metadata"]["finalizers"] = ["example.com/hold"]
    ok(api.call("POST", PODS, body=body))
    ok(api.call("DELETE", f"{PODS}/web", body={"gracePeriodSeconds": 0}))
    assert names(ok(api.call("GET", PODS))) == ["web"]
    patch(api, f"{PODS}/web", {"metadata": {"finalizers": None}})
    assert names(ok(api.call("GET", PODS))) == []


@pytest.mark.parametrize("precondition", [{"uid": "other"}, {"resourceVersion": "1"}])
def test_a_precondition_that_fails_is_409(api: Api, precondition: dict[str, str]) -> None:
    create_pod(api)
    answer = refusal(api.call("DELETE", f"{PODS}/web", body={"preconditions": precondition}))
    assert answer[:2] == (409, "Conflict")
    assert names(ok(api.call("GET", PODS))) == ["web"]


def owned(api: Api, owner: dict[str, Any], name: str) -> None:
    reference = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "blockOwnerDeletion": True}
    body = pod(name)
    body["metadata"]["ownerReferences"] = [
        {**reference, "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"]}
    ]
    ok(api.call("POST", PODS, body=body))


def test_dependents_go_with_their_owner(api: Api) -> None:
    owner = ok(api.call("POST", DEPLOYMENTS, body=deployment()))
    owned(api, owner, "a")
    create_pod(api, name="free")
    ok(api.call("DELETE", f"{DEPLOYMENTS}/web"))
    assert names(ok(api.call("GET", PODS))) == ["free"]


def test_orphaned_dependents_stay(api: Api) -> None:
    owner = ok(api.call("POST", DEPLOYMENTS, body=deployment()))
    owned(api, owner, "a")
    ok(api.call("DELETE", f"{DEPLOYMENTS}/web", body={"propagationPolicy": "Orphan"}))
    assert "ownerReferences" not in ok(api.call("GET", f"{PODS}/a"))["metadata"]
    assert refusal(api.call("GET", f"{DEPLOYMENTS}/web"))[0] == 404


def test_a_foreground_deletion_waits_for_its_dependents(api: Api) -> None:
    owner = ok(api.call("POST", DEPLOYMENTS, body=deployment()))
    owned(api, owner, "a")
    patch(api, f"{PODS}/a", {"metadata": {"finalizers": ["example.com/hold"]}})
    ok(api.call("DELETE", f"{DEPLOYMENTS}/web", body={"propagationPolicy": "Foreground"}))
    assert ok(api.call("GET", f"{DEPLOYMENTS}/web"))["metadata"]["finalizers"] == ["foregroundDeletion"]
    patch(api, f"{PODS}/a", {"metadata": {"finalizers": None}})
    assert refusal(api.call("GET", f"{DEPLOYMENTS}/web"))[0] == 404


def test_an_object_whose_owner_is_deleted_is_collected(api: Api) -> None:
    owner = ok(api.call("POST", DEPLOYMENTS, body=deployment()))
    ok(api.call("DELETE", f"{DEPLOYMENTS}/web"))
    owned(api, owner, "late")
    assert names(ok(api.call("GET", PODS))) == []


def test_a_namespace_takes_its_content_along_and_waits_for_it(api: Api) -> None:
    ok(api.call("POST", "/api/v1/namespaces", body={"metadata": {"name": "team"}}))
    ok(api.call("POST", "/api/v1/namespaces/team/pods", body=pod("free")))
    ok(api.call("POST", "/api/v1/namespaces/team/pods", body=pod("running", nodeName="n1")))
    ok(api.call("DELETE", "/api/v1/namespaces/team"))
    assert ok(api.call("GET", "/api/v1/namespaces/team"))["status"]["phase"] == "Terminating"
    answer = refusal(api.call("POST", "/api/v1/namespaces/team/pods", body=pod("late")))
    assert answer[:2] == (403, "Forbidden")
    assert "unable to create new content in namespace team because it is being terminated" in answer[2]
    assert names(ok(api.call("GET", EVERY_POD))) == ["running"]
    ok(api.call("DELETE", "/api/v1/namespaces/team/pods/running", query={"gracePeriodSeconds": "0"}))
    assert refusal(api.call("GET", "/api/v1/namespaces/team"))[0] == 404


def test_the_systems_namespaces_stay(api: Api) -> None:
    answer = refusal(api.call("DELETE", "/api/v1/namespaces/default"))
    assert answer == (403, "Forbidden", 'namespaces "default" is forbidden: this namespace may not be deleted')
