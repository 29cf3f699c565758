"""Which users may act as another user, with what rights, and which may not: kubectl's `--as`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from playground.api.kinds.values import User
from tests.cluster.conformance.asking import JSON, Api, Ask
from tests.cluster.conformance.conftest import Server
from tests.versions import Worded, unsaid

RBAC = "/apis/rbac.authorization.k8s.io/v1"
WHO = Ask(
    "POST",
    "/apis/authentication.k8s.io/v1/selfsubjectreviews",
    {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"},
)
PODS = Ask("GET", "pods")
JANE = {"Impersonate-User": "jane"}
TEAM = {**JANE, "Impersonate-Group": "team"}


def acting(ask: Ask, headers: JSON) -> Ask:
    return replace(ask, headers=headers)


IDENTITIES: dict[str, tuple[JSON, JSON]] = {
    "a user": (JANE, {"username": "jane", "groups": ["system:authenticated"]}),
    "a user of a group": (TEAM, {"username": "jane", "groups": ["team", "system:authenticated"]}),
    "a user with a field": (
        {**JANE, "Impersonate-Extra-example.io%2fscopes": "view"},
        {"username": "jane", "groups": ["system:authenticated"], "extra": {"example.io/scopes": ["view"]}},
    ),
    "a service account": (
        {"Impersonate-User": "system:serviceaccount:team-a:robot"},
        {
            "username": "system:serviceaccount:team-a:robot",
            "groups": ["system:serviceaccounts", "system:serviceaccounts:team-a", "system:authenticated"],
        },
    ),
}


@pytest.mark.parametrize(("headers", "info"), IDENTITIES.values(), ids=IDENTITIES.keys())
def test_who_the_request_is_of(headers: JSON, info: JSON, api: Api) -> None:
    found = api.done(acting(WHO, headers))["status"]["userInfo"]
    seen = {**found, "groups": sorted(found["groups"])}
    assert {key: seen.get(key) for key in info} == {**info, "groups": sorted(info["groups"])}


def granted(api: Api, rules: list[JSON], subject: JSON) -> None:
    """A role in the test's namespace, bound to a user."""
    role = {"metadata": {"name": "some"}, "rules": rules}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "some"}
    binding = {"metadata": {"name": "some"}, "roleRef": reference, "subjects": [subject]}
    for plural, body in (("roles", role), ("rolebindings", binding)):
        api.done(Ask("POST", f"{RBAC}/namespaces/{api.namespace}/{plural}", body))


READS = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}]
RIGHTS: dict[str, tuple[JSON, JSON, int]] = {
    "the user's own": ({"kind": "User", "name": "jane"}, JANE, 200),
    "the group's": ({"kind": "Group", "name": "team"}, TEAM, 200),
    "another group's": ({"kind": "Group", "name": "team"}, JANE, 403),
    "another user's": ({"kind": "User", "name": "joe"}, JANE, 403),
}


@pytest.mark.parametrize(("subject", "headers", "code"), RIGHTS.values(), ids=RIGHTS.keys())
def test_the_rights_are_those_of_the_other(subject: JSON, headers: JSON, code: int, api: Api) -> None:
    granted(api, READS, {"apiGroup": "rbac.authorization.k8s.io", **subject})
    answer = api.ask(acting(PODS, headers))
    denied = (
        f'pods is forbidden: User "jane" cannot list resource "pods" in API group "" in the namespace "{api.namespace}"'
    )
    assert (answer.code, answer.message) == (code, denied if code == 403 else "")


REFUSED: dict[str, tuple[JSON, Worded]] = {
    "a user": (
        JANE,
        Worded(
            (1, 36),
            now='User "nobody" cannot impersonate-on:user-info:list resource "pods"',
            before='users "jane" is forbidden: User "nobody" cannot impersonate resource "users" in API group "" '
            "at the cluster scope",
        ),
    ),
    "a service account": (
        {"Impersonate-User": "system:serviceaccount:team-a:robot"},
        Worded(
            (1, 36),
            now='User "nobody" cannot impersonate-on:serviceaccount:list resource "pods"',
            before='serviceaccounts "robot" is forbidden: User "nobody" cannot impersonate resource "serviceaccounts" '
            'in API group "" in the namespace "team-a"',
        ),
    ),
}


@pytest.mark.parametrize(("headers", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_who_may_not_act_as_another(headers: JSON, message: Worded, server: Server, api: Api) -> None:
    nobody = Api(server.transport(User("nobody")), api.namespace)
    answer = nobody.ask(acting(PODS, headers))
    seen = (answer.code, answer.body.get("reason"), unsaid(answer.message, (message,), api.version))
    assert seen == (403, "Forbidden", []), answer.message


def test_a_group_without_a_user_is_an_error(api: Api) -> None:
    code = 400 if api.version >= (1, 36) else 500
    answer = api.ask(acting(PODS, {"Impersonate-Group": "team"}))
    assert (answer.code, "without impersonating a user" in answer.message) == (code, True)


def test_a_user_may_be_allowed_to_act_as_one_other(server: Server, api: Api) -> None:
    name = f"deputy-{api.namespace}"
    rules = [{"apiGroups": [""], "resources": ["users"], "resourceNames": ["jane"], "verbs": ["impersonate"]}]
    api.done(Ask("POST", f"{RBAC}/clusterroles", {"metadata": {"name": name}, "rules": rules}))
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name}
    binding = {"metadata": {"name": name}, "roleRef": reference, "subjects": [subject]}
    api.done(Ask("POST", f"{RBAC}/clusterrolebindings", binding))
    deputy = Api(server.transport(User(name)), api.namespace)
    found = {who: deputy.ask(acting(WHO, {"Impersonate-User": who})).code for who in ("jane", "joe")}
    assert found == {"jane": 201, "joe": 403}
