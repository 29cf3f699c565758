"""How decoding treats unknown fields, nulls and values of another type."""

from typing import Any

import pytest

from playground.api.api import Api, ApiError, User
from playground.api.kinds import kinds
from playground.api.rules import fields
from playground.api.verbs.patches import merge
from tests.unit.playground.api.manifests import PODS, create_pod, ok, pod, refusal

STRICT = {"fieldValidation": "Strict"}


def typo() -> dict[str, Any]:
    body = pod(nodeSelecter={"a": "b"})
    body["spec"]["containers"][0]["limit"] = {}
    return body


def test_a_field_nobody_knows_is_dropped_with_a_warning(api: Api) -> None:
    admin = User("u", ("system:masters",))
    answer = api.handle("POST", PODS, query={}, body=typo(), content_type="application/json", user=admin)
    assert (answer.code, sorted(answer.warnings)) == (
        201,
        ['unknown field "spec.containers[0].limit"', 'unknown field "spec.nodeSelecter"'],
    )
    assert "nodeSelecter" not in answer.body["spec"]


def test_strict_validation_refuses_it(api: Api) -> None:
    code, reason, message = refusal(api.call("POST", PODS, query=STRICT, body=typo()))
    assert (code, reason) == (400, "BadRequest")
    assert message.startswith('Pod in version "v1" cannot be handled as a Pod: strict decoding error: unknown field "')


def test_a_null_is_the_same_as_nothing(api: Api) -> None:
    body = pod(nodeSelector=None, tolerations=None, initContainers=None)
    body["metadata"]["labels"] = None
    made = ok(api.call("POST", PODS, body=body))
    assert ("labels" in made["metadata"], "nodeSelector" in made["spec"]) == (False, False)


TYPES: dict[str, tuple[dict[str, Any], str]] = {
    "a number for a text": (
        {"env": [{"name": "A", "value": 1}]},
        "json: cannot unmarshal number into Go struct field EnvVar.spec.containers.env.value of type string",
    ),
    "a text for a number": (
        {"ports": [{"containerPort": "80"}]},
        "json: cannot unmarshal string into Go struct field ContainerPort.spec.containers.ports.containerPort "
        "of type int32",
    ),
    "an object for a list": (
        {"env": {"A": "1"}},
        "json: cannot unmarshal object into Go struct field Container.spec.containers.env of type []EnvVar",
    ),
}


@pytest.mark.parametrize(("fields", "complaint"), TYPES.values(), ids=TYPES.keys())
def test_a_value_of_another_type_is_400(api: Api, fields: dict[str, Any], complaint: str) -> None:
    body = pod()
    body["spec"]["containers"][0].update(fields)
    message = f'Pod in version "v1" cannot be handled as a Pod: {complaint}'
    assert refusal(api.call("POST", PODS, body=body)) == (400, "BadRequest", message)


def test_quantities_may_be_numbers_and_are_stored_in_their_canonical_form(api: Api) -> None:
    limits = {"cpu": 0.5, "memory": "2048Mi", "example.com/memory": 10000}
    made = create_pod(api, resources={"limits": limits})
    assert made["spec"]["containers"][0]["resources"]["limits"] == {
        "cpu": "500m",
        "memory": "2Gi",
        "example.com/memory": "10k",
    }


PATCHES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "a label": {"metadata": {"labels": {"a": "b"}}},
    "a null": {"metadata": {"labels": None}},
    "an unknown field": {"spec": {"nodeSelecter": {"a": "b"}}},
    "a shorter list": {"spec": {"tolerations": []}},
    "a longer list": {"spec": {"tolerations": [{"key": str(i), "operator": "Exists"} for i in range(9)]}},
    "a list with a null": {"spec": {"tolerations": [{"key": "a", "operator": None}]}},
    "a whole part": {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True", "typo": 1}]}},
}


@pytest.mark.parametrize("patch", PATCHES.values(), ids=PATCHES.keys())
def test_what_was_decoded_before_need_not_be_again(api: Api, patch: dict[str, Any]) -> None:
    old = create_pod(api, resources={"limits": {"cpu": "1"}}, tolerations=[{"key": "a", "operator": "Exists"}])
    patched = merge(old, patch)
    assert fields.decode(kinds.PODS, patched, old) == fields.decode(kinds.PODS, patched)


@pytest.mark.parametrize(
    "patch", [{"spec": {"tolerations": [None]}}, {"spec": {"priority": "a"}}, {"metadata": {"labels": {"a": 1}}}]
)
def test_what_is_new_is_decoded(api: Api, patch: dict[str, Any]) -> None:
    old = create_pod(api)
    with pytest.raises(ApiError):
        fields.decode(kinds.PODS, merge(old, patch), old)
