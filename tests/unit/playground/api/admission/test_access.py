"""RBAC: which users may do what, and the requests that ask about it."""

from typing import Any

import pytest

from playground.api.api import Api, ApiError, User
from tests.unit.playground.api.manifests import EVERY_POD, MERGE, PODS, names, ok, pod, refusal

ROOT = "/apis/rbac.authorization.k8s.io/v1"
ROBOT = User("system:serviceaccount:default:robot")


def grant(api: Api, *rules: dict[str, Any], namespace: str = "") -> None:
    """Allow the service account default/robot something, in a namespace or everywhere."""
    root = f"{ROOT}/namespaces/{namespace}" if namespace else ROOT
    prefix, kind = ("", "Role") if namespace else ("cluster", "ClusterRole")
    ok(api.call("POST", f"{root}/{prefix}roles", body={"metadata": {"name": "r"}, "rules": list(rules)}))
    body = {
        "metadata": {"name": "r"},
        "subjects": [{"kind": "ServiceAccount", "name": "robot", "namespace": "default"}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": "r"},
    }
    ok(api.call("POST", f"{root}/{prefix}rolebindings", body=body))


def rule(*verbs: str, resources: tuple[str, ...] = ("pods",), **more: Any) -> dict[str, Any]:
    return {"apiGroups": [""], "resources": list(resources), "verbs": list(verbs), **more}


def test_nobody_may_do_anything_without_a_rule(api: Api) -> None:
    head = 'User "system:serviceaccount:default:robot" cannot'
    assert refusal(api.call("GET", EVERY_POD, user=ROBOT)) == (
        403,
        "Forbidden",
        f'pods is forbidden: {head} list resource "pods" in API group "" at the cluster scope',
    )
    assert refusal(api.call("GET", f"{PODS}/web", user=ROBOT))[2] == (
        f'pods "web" is forbidden: {head} get resource "pods" in API group "" in the namespace "default"'
    )
    with pytest.raises(ApiError) as refused:
        api.watch(EVERY_POD, user=ROBOT)
    assert refused.value.code == 403


def test_a_cluster_role_reaches_everywhere_and_a_role_its_namespace(api: Api) -> None:
    grant(api, rule("list"))
    grant(api, rule("create"), namespace="default")
    assert names(ok(api.call("GET", EVERY_POD, user=ROBOT))) == []
    ok(api.call("POST", PODS, body=pod(), user=ROBOT))
    assert refusal(api.call("POST", "/api/v1/namespaces/kube-system/pods", body=pod(), user=ROBOT))[0] == 403


RULES: dict[str, tuple[dict[str, Any], str, bool]] = {
    "a subresource of its own": (rule("update", resources=("pods/status",)), "PUT status", True),
    "a resource is not its subresources": (rule("update"), "PUT status", False),
    "all resources and subresources": (rule("*", resources=("*",)), "PUT status", True),
    "one name": (rule("get", resourceNames=["web"]), "GET", True),
    "another name": (rule("get", resourceNames=["db"]), "GET", False),
}


@pytest.mark.parametrize(("granted", "request_", "allowed"), RULES.values(), ids=RULES.keys())
def test_what_a_rule_covers(api: Api, granted: dict[str, Any], request_: str, allowed: bool) -> None:
    made = ok(api.call("POST", PODS, body=pod()))
    grant(api, granted)
    method, _, subresource = request_.partition(" ")
    path = f"{PODS}/web" + (f"/{subresource}" if subresource else "")
    code, _ = api.call(method, path, body=made if method == "PUT" else None, user=ROBOT)
    assert code == (200 if allowed else 403)


def test_groups_of_service_accounts_are_implied(api: Api) -> None:
    body = {
        "metadata": {"name": "all"},
        "subjects": [{"kind": "Group", "name": "system:serviceaccounts:default"}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
    }
    ok(api.call("POST", f"{ROOT}/clusterrolebindings", body=body))
    assert names(ok(api.call("GET", PODS, user=ROBOT))) == []


def test_a_user_can_review_its_own_rights(api: Api) -> None:
    grant(api, rule("list"), namespace="default")
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"

    def may(verb: str, resource: str) -> bool:
        attributes = {"verb": verb, "resource": resource, "namespace": "default"}
        body = {"spec": {"resourceAttributes": attributes}}
        return bool(ok(api.call("POST", path, body=body, user=ROBOT))["status"]["allowed"])

    assert (may("list", "pods"), may("create", "pods"), may("list", "nodes")) == (True, False, False)


def test_discovery_is_for_everyone_with_a_name(api: Api) -> None:
    assert ok(api.call("GET", "/version", user=ROBOT))["gitVersion"] == "v1.34.0"
    anonymous = User("system:anonymous", ("system:unauthenticated",))
    assert refusal(api.call("GET", "/apis", user=anonymous)) == (
        403,
        "Forbidden",
        'forbidden: User "system:anonymous" cannot get path "/apis"',
    )


def test_who_am_i(api: Api) -> None:
    body = ok(api.call("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", body={}, user=ROBOT))
    assert body["status"]["userInfo"] == {
        "username": "system:serviceaccount:default:robot",
        "groups": ["system:serviceaccounts", "system:serviceaccounts:default", "system:authenticated"],
    }


def test_what_is_taken_away_counts_from_the_next_request_on(api: Api) -> None:
    path = f"{ROOT}/clusterrolebindings/r"
    grant(api, rule("list"))
    with_rights = api.store.snapshot()
    assert api.call("GET", EVERY_POD, user=ROBOT)[0] == 200
    ok(api.call("DELETE", path))
    assert api.call("GET", EVERY_POD, user=ROBOT)[0] == 403
    api.store.restore(with_rights)
    assert api.call("GET", EVERY_POD, user=ROBOT)[0] == 200
    ok(api.call("PATCH", f"{ROOT}/clusterroles/r", body={"rules": [rule("get")]}, content_type=MERGE))
    assert api.call("GET", EVERY_POD, user=ROBOT)[0] == 403
