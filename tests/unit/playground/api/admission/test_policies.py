"""ValidatingAdmissionPolicies and their bindings."""

from typing import Any

import pytest

from playground.api.api import Api, User
from tests.unit.playground.api.manifests import MERGE, PODS, create_pod, ok, pod, refusal

ROOT = "/apis/admissionregistration.k8s.io/v1"
RULE = {"operations": ["CREATE", "UPDATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}
DENY = {"validationActions": ["Deny"]}


def policy(api: Api, *validations: dict[str, Any], binding: dict[str, Any] = DENY, **spec: Any) -> None:
    body = {"matchConstraints": {"resourceRules": [RULE]}, "validations": list(validations), **spec}
    ok(api.call("POST", f"{ROOT}/validatingadmissionpolicies", body={"metadata": {"name": "p"}, "spec": body}))
    bound = {"metadata": {"name": "b"}, "spec": {"policyName": "p", **binding}}
    ok(api.call("POST", f"{ROOT}/validatingadmissionpolicybindings", body=bound))


HEAD = "pods \"web\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: "
REFUSED: dict[str, tuple[dict[str, Any], tuple[int, str, str]]] = {
    "with its message": (
        {"expression": "false", "message": "not today"},
        (422, "Invalid", f"{HEAD}not today"),
    ),
    "with a computed message": (
        {"expression": "false", "messageExpression": "'not ' + object.metadata.name"},
        (422, "Invalid", f"{HEAD}not web"),
    ),
    "with a reason": ({"expression": "false", "reason": "Forbidden", "message": "m"}, (403, "Forbidden", f"{HEAD}m")),
    "without any message": ({"expression": "1 == 2"}, (422, "Invalid", f"{HEAD}failed expression: 1 == 2")),
    "because it has no value": (
        {"expression": "object.spec.none == 1"},
        (422, "Invalid", f"{HEAD}expression 'object.spec.none == 1' resulted in error: no such key: none"),
    ),
}


@pytest.mark.parametrize(("validation", "expected"), REFUSED.values(), ids=REFUSED.keys())
def test_a_validation_that_does_not_hold_denies(
    api: Api, validation: dict[str, Any], expected: tuple[int, str, str]
) -> None:
    policy(api, validation)
    assert refusal(api.call("POST", PODS, body=pod())) == expected


def test_a_validation_that_holds_lets_pass(api: Api) -> None:
    policy(api, {"expression": "object.spec.containers.all(c, c.image.startsWith('example.com/'))"})
    create_pod(api)


def test_warn_warns_only(api: Api) -> None:
    policy(api, {"expression": "false", "message": "mind"}, binding={"validationActions": ["Warn"]})
    admin = User("u", ("system:masters",))
    answer = api.handle("POST", PODS, query={}, body=pod(), content_type="application/json", user=admin)
    assert (answer.code, answer.warnings) == (
        201,
        ["Validation failed for ValidatingAdmissionPolicy 'p' with binding 'b': mind"],
    )


def test_an_update_is_compared_with_the_old_object(api: Api) -> None:
    same = "object.metadata.?labels == oldObject.metadata.?labels"
    with pytest.raises(AssertionError, match="compilation failed"):
        policy(api, {"expression": same})
    keep = "oldObject == null || has(object.metadata.annotations) == has(oldObject.metadata.annotations)"
    policy(api, {"expression": keep, "message": "leave annotations alone"})
    create_pod(api)
    patch = {"metadata": {"annotations": {"a": "b"}}}
    assert refusal(api.call("PATCH", f"{PODS}/web", body=patch, content_type=MERGE))[0] == 422
    ok(api.call("PATCH", f"{PODS}/web", body={"metadata": {"labels": {"a": "b"}}}, content_type=MERGE))


def test_variables_build_on_each_other(api: Api) -> None:
    variables = [
        {"name": "images", "expression": "object.spec.containers.map(c, c.image)"},
        {"name": "count", "expression": "size(variables.images)"},
    ]
    policy(api, {"expression": "variables.count > 1", "message": "two at least"}, variables=variables)
    assert refusal(api.call("POST", PODS, body=pod()))[2] == f"{HEAD}two at least"


def test_conditions_and_bindings_narrow_a_policy(api: Api) -> None:
    condition = [{"name": "c", "expression": "request.userInfo.username == 'jane'"}]
    narrowed = {**DENY, "matchResources": {"objectSelector": {"matchLabels": {"app": "web"}}}}
    policy(api, {"expression": "false"}, matchConditions=condition, binding=narrowed)
    jane = User("jane", ("system:masters",))
    create_pod(api, name="a", labels={"app": "web"})
    ok(api.call("POST", PODS, body=pod("b"), user=jane))
    assert refusal(api.call("POST", PODS, body=pod("c", labels={"app": "web"}), user=jane))[0] == 422


def test_a_users_extra_is_visible(api: Api) -> None:
    key = "authentication.kubernetes.io/node-name"
    policy(api, {"expression": f"request.userInfo.extra['{key}'][0] == 'n1'"})
    user = User("agent", ("system:masters",), {key: ("n1",)})
    ok(api.call("POST", PODS, body=pod(), user=user))
    assert refusal(api.call("POST", PODS, body=pod("other")))[0] == 422


def test_a_failing_expression_may_be_ignored(api: Api) -> None:
    policy(api, {"expression": "object.spec.none == 1"}, failurePolicy="Ignore")
    create_pod(api)


def test_params_are_found_by_name(api: Api) -> None:
    reference = {**DENY, "paramRef": {"name": "limits", "namespace": "default"}}
    kind = {"apiVersion": "v1", "kind": "ConfigMap"}
    policy(api, {"expression": "params.data.allowed == 'yes'"}, paramKind=kind, binding=reference)
    assert "no params found for policy binding" in refusal(api.call("POST", PODS, body=pod()))[2]
    maps = "/api/v1/namespaces/default/configmaps"
    ok(api.call("POST", maps, body={"metadata": {"name": "limits"}, "data": {"allowed": "yes"}}))
    create_pod(api)


def test_a_policy_counts_as_it_is_now(api: Api) -> None:
    policy(api, {"expression": "false"})
    assert refusal(api.call("POST", PODS, body=pod()))[0] == 422
    path = f"{ROOT}/validatingadmissionpolicies/p"
    ok(api.call("PATCH", path, body={"spec": {"validations": [{"expression": "true"}]}}, content_type=MERGE))
    create_pod(api, name="a")
    constraints = {"resourceRules": [{**RULE, "resources": ["services"]}]}
    body = {"spec": {"matchConstraints": constraints, "validations": [{"expression": "false"}]}}
    ok(api.call("PATCH", path, body=body, content_type=MERGE))
    create_pod(api, name="b")
    ok(api.call("PATCH", path, body={"spec": {"matchConstraints": {"resourceRules": [RULE]}}}, content_type=MERGE))
    assert refusal(api.call("POST", PODS, body=pod()))[0] == 422
    ok(api.call("DELETE", f"{ROOT}/validatingadmissionpolicybindings/b"))
    create_pod(api)


def test_an_eviction_is_no_delete_for_admission(api: Api) -> None:
    create_pod(api)
    rule = {**RULE, "operations": ["DELETE"]}
    policy(api, {"expression": "false"}, matchConstraints={"resourceRules": [rule]})
    assert refusal(api.call("DELETE", f"{PODS}/web"))[0] == 422
    assert api.call("POST", f"{PODS}/web/eviction", body={})[0] == 201
