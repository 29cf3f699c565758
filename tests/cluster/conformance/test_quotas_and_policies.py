"""Restrictions by administrators: quotas over our resources, validating policies over our names, RBAC."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from playground.api.kinds.values import User
from playground.waiting import wait_for
from tests.cluster.conformance.asking import JSON, Api, Ask, create, gated, get, merge, op, patch, pod
from tests.cluster.conformance.conftest import Server
from tests.cluster.conformance.hooks import Hook, allowed, registered

MEMORY, CORES = "gpufraction.io/gpu-memory", "gpufraction.io/gpu-cores"
HARD = {f"requests.{MEMORY}": "10Gi", f"requests.{CORES}": "100"}


@contextmanager
def quota(api: Api, hard: JSON) -> Iterator[None]:
    """A quota that is in effect; its status comes a moment after its creation."""
    api.done(Ask("POST", "resourcequotas", {"metadata": {"name": "gpu"}, "spec": {"hard": hard}}))
    wait_for(lambda: status(api).get("hard") == hard and "used" in status(api), "the quota has no status")
    yield


def status(api: Api) -> JSON:
    found: JSON = api.done(Ask("GET", "resourcequotas/gpu")).get("status", {})
    return found


def test_a_quota_counts_and_refuses(api: Api) -> None:
    with quota(api, HARD):
        api.done(create(gated("none")))
        api.done(create(pod("fits", {MEMORY: "8Gi"})))
        used = status(api)["used"]
        beyond = api.ask(create(pod("beyond", {MEMORY: "4Gi"})))
        both = api.ask(create(pod("both", {MEMORY: "4Gi", CORES: "101"})))
        dry = api.ask(create(pod("dry", {MEMORY: "4Gi"}), dryRun="All"))
        api.done(create(pod("dry", {MEMORY: "2Gi"}), dryRun="All"))
    assert used == {f"requests.{MEMORY}": "8Gi", f"requests.{CORES}": "0"}
    assert (beyond.code, beyond.body["reason"], beyond.message) == (
        403,
        "Forbidden",
        f'pods "beyond" is forbidden: exceeded quota: gpu, requested: requests.{MEMORY}=4Gi, '
        f"used: requests.{MEMORY}=8Gi, limited: requests.{MEMORY}=10Gi",
    )
    assert both.message == (
        f'pods "both" is forbidden: exceeded quota: gpu, requested: requests.{CORES}=101,requests.{MEMORY}=4Gi, '
        f"used: requests.{CORES}=0,requests.{MEMORY}=8Gi, limited: requests.{CORES}=100,requests.{MEMORY}=10Gi"
    )
    assert dry.code == 403
    assert status(api)["used"] == used


def test_a_deleted_pod_is_counted_out(api: Api) -> None:
    with quota(api, HARD):
        api.done(create(pod("p", {MEMORY: "8Gi"})))
        api.done(Ask("DELETE", "pods/p"))
        wait_for(lambda: status(api)["used"][f"requests.{MEMORY}"] == "0", "still counted")
        api.done(create(pod("q", {MEMORY: "8Gi"})))


def test_a_quota_counts_what_a_webhook_adds(api: Api) -> None:
    hook = Hook()
    hook.answers["a"] = lambda _: allowed(op("add", "/spec/containers/0/resources", {"limits": {MEMORY: "11Gi"}}))
    try:
        with quota(api, HARD), registered(api, hook, a={}):
            answer = api.ask(create(pod("p")))
    finally:
        hook.stop()
    assert (answer.code, len(hook.calls())) == (403, 1)
    assert f"exceeded quota: gpu, requested: requests.{MEMORY}=11Gi" in answer.message


def test_a_quota_of_pods(api: Api) -> None:
    with quota(api, {"pods": "1"}):
        api.done(create(gated("p")))
        answer = api.ask(create(gated("q")))
    assert (
        answer.message == 'pods "q" is forbidden: exceeded quota: gpu, requested: pods=1, used: pods=1, limited: pods=1'
    )


# -- policies -----------------------------------------------------------------------------------------------------

_GROUP = "/apis/admissionregistration.k8s.io/v1/"
KEEP_THE_GATE = (
    "!has(oldObject.spec.schedulingGates) || has(object.spec.schedulingGates) "
    "&& object.spec.schedulingGates.exists(g, g.name == 'gpufraction.io/allocation')"
)


@contextmanager
def policy(api: Api, operation: str, *validations: JSON, probe: Ask, **spec: object) -> Iterator[str]:
    """A policy for this namespace's pods, once it denies the probe."""
    name = api.namespace
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": [operation], "resources": ["pods"]}
    body = {
        "metadata": {"name": name},
        "spec": {"matchConstraints": {"resourceRules": [rule]}, "validations": list(validations), **spec},
    }
    binding = {
        "metadata": {"name": name},
        "spec": {
            "policyName": name,
            "validationActions": ["Deny"],
            "matchResources": {"namespaceSelector": {"matchLabels": {"test": name}}},
        },
    }
    api.done(Ask("POST", f"{_GROUP}validatingadmissionpolicies", body))
    api.done(Ask("POST", f"{_GROUP}validatingadmissionpolicybindings", binding))
    try:
        wait_for(lambda: api.ask(probe).code >= 400, "the policy does not deny")
        yield name
    finally:
        api.done(Ask("DELETE", f"{_GROUP}validatingadmissionpolicybindings/{name}"))
        api.done(Ask("DELETE", f"{_GROUP}validatingadmissionpolicies/{name}"))


def test_a_policy_keeps_the_gate(api: Api) -> None:
    api.done(create(gated("p")))
    take = {"spec": {"schedulingGates": None}}
    keep = {"expression": KEEP_THE_GATE, "message": "only the allocator removes the gate", "reason": "Forbidden"}
    with policy(api, "UPDATE", keep, probe=merge("p", take, dryRun="All")) as name:
        answer = api.ask(merge("p", take))
        api.done(merge("p", {"metadata": {"labels": {"a": "b"}}}))
        assert api.ask(patch("p", op("remove", "/spec/schedulingGates/0"))).code == 403
    assert (answer.code, answer.body["reason"], answer.message) == (
        403,
        "Forbidden",
        f"pods \"p\" is forbidden: ValidatingAdmissionPolicy '{name}' with binding '{name}' denied request: "
        "only the allocator removes the gate",
    )


def test_a_policy_of_deletes_says_nothing_of_evictions(api: Api) -> None:
    api.done(create(gated("p")))
    probe = Ask("DELETE", "pods/p", query={"dryRun": "All"})
    evicts = Ask("POST", "pods/p/eviction", {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}})
    with policy(api, "DELETE", {"expression": "false", "message": "nobody deletes"}, probe=probe):
        assert api.ask(Ask("DELETE", "pods/p")).code == 422
        assert api.ask(evicts).code == 201


POLICIES = {
    "without a message": (
        {"expression": "object.metadata.name != 'no'"},
        "failed expression: object.metadata.name != 'no'",
    ),
    "with a message that is computed": (
        {"expression": "object.metadata.name != 'no'", "messageExpression": "'name is ' + object.metadata.name"},
        "name is no",
    ),
    "that cannot be told": (
        {"expression": "object.metadata.labels['x'] == 'y'", "message": "label"},
        "expression 'object.metadata.labels['x'] == 'y'' resulted in error: no such key: labels",
    ),
}


@pytest.mark.parametrize("case", POLICIES.values(), ids=POLICIES.keys())
def test_a_policy(api: Api, case: tuple[JSON, str]) -> None:
    validation, message = case
    conditions = [{"name": "named", "expression": "object.metadata.name.startsWith('no')"}]
    dry = create(pod("no"), dryRun="All")
    with policy(api, "CREATE", validation, probe=dry, matchConditions=conditions) as name:
        answer = api.ask(create(pod("no")))
        api.done(create(pod("yes")))
    assert (answer.code, answer.body["reason"], answer.message) == (
        422,
        "Invalid",
        f"pods \"no\" is forbidden: ValidatingAdmissionPolicy '{name}' with binding '{name}' denied request: {message}",
    )


# -- RBAC ---------------------------------------------------------------------------------------------------------


def test_a_user_without_rights_learns_which_one_is_missing(server: Server, api: Api) -> None:
    api.done(create(gated("p")))
    tenant = Api(server.transport(User("tenant", ("tenants",))), api.namespace)
    listed, patched = tenant.ask(Ask("GET", "pods")), tenant.ask(merge("p", {}))
    cannot = f'in API group "" in the namespace "{api.namespace}"'
    assert (listed.code, listed.message) == (
        403,
        f'pods is forbidden: User "tenant" cannot list resource "pods" {cannot}',
    )
    assert (patched.code, patched.message) == (
        403,
        f'pods "p" is forbidden: User "tenant" cannot patch resource "pods" {cannot}',
    )
    assert api.ask(get("p")).code == 200


def test_who_may_list_one_object_may_do_so_by_its_name_alone(server: Server, api: Api) -> None:
    root = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{api.namespace}"
    rules = [{"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["one"], "verbs": ["list", "watch"]}]
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "one"}
    user = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "reader"}
    api.done(Ask("POST", f"{root}/roles", {"metadata": {"name": "one"}, "rules": rules}))
    api.done(Ask("POST", f"{root}/rolebindings", {"metadata": {"name": "one"}, "roleRef": role, "subjects": [user]}))
    reader = Api(server.transport(User("reader", ())), api.namespace)

    def codes(**query: str) -> list[int]:
        watched = {**query, "watch": "1", "timeoutSeconds": "1"}
        return [reader.ask(Ask("GET", "configmaps", query=each)).code for each in (query, watched)]

    # A real API server learns its roles through a watch.
    wait_for(lambda: codes(fieldSelector="metadata.name=one") == [200, 200], "the role does not work")
    selectors = ("metadata.name=two", "metadata.name!=one", "metadata.namespace=one")
    assert [codes(fieldSelector=each) for each in selectors] == [[403, 403]] * 3
    assert codes() == [403, 403]
