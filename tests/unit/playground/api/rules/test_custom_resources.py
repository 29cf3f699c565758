"""CustomResourceDefinitions and the kinds that they add."""

from typing import Any

import pytest

from playground.api.api import Api, User
from playground.api.rules.crds import preference
from tests.unit.playground.api.manifests import MERGE, STRATEGIC, names, ok, refusal

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
THINGS = "/apis/example.com/v1/things"
SCHEMA = {
    "type": "object",
    "properties": {
        "spec": {
            "type": "object",
            "required": ["size"],
            "properties": {
                "size": {"type": "integer", "minimum": 1},
                "color": {"type": "string", "enum": ["red", "blue"], "default": "red"},
                "parts": {"type": "array", "items": {"type": "object", "properties": {"id": {"type": "string"}}}},
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            },
            "x-kubernetes-validations": [{"rule": "self.size < 100", "message": "too large"}],
        },
        "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
    },
}
VERSION = {
    "name": "v1",
    "served": True,
    "storage": True,
    "schema": {"openAPIV3Schema": SCHEMA},
    "subresources": {"status": {}},
}
NAMES = {"plural": "things", "kind": "Thing", "shortNames": ["th"]}


def define(api: Api, *versions: dict[str, Any]) -> dict[str, Any]:
    spec = {"group": "example.com", "scope": "Cluster", "names": NAMES, "versions": list(versions or [VERSION])}
    return ok(api.call("POST", DEFINITIONS, body={"metadata": {"name": "things.example.com"}, "spec": spec}))


def thing(**spec: Any) -> dict[str, Any]:
    return {"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "t"}, "spec": {"size": 1, **spec}}


def test_a_definition_is_established_and_served(api: Api) -> None:
    assert refusal(api.call("GET", THINGS))[0] == 404
    define(api)
    status = ok(api.call("GET", f"{DEFINITIONS}/things.example.com"))["status"]
    assert [(c["type"], c["status"]) for c in status["conditions"]] == [
        ("NamesAccepted", "True"),
        ("Established", "True"),
    ]
    assert status["storedVersions"] == ["v1"]
    (resource, *_) = ok(api.call("GET", "/apis/example.com/v1"))["resources"]
    assert (resource["name"], resource["singularName"], resource["shortNames"]) == ("things", "thing", ["th"])
    assert ok(api.call("GET", THINGS))["kind"] == "ThingList"


def test_unknown_fields_are_pruned_and_defaults_filled_in(api: Api) -> None:
    define(api)
    body = thing(extra=1, parts=[{"id": "a", "extra": 2}], free={"any": 1}, labels={"a": "b"})
    admin = User("u", ("system:masters",))
    answer = api.handle("POST", THINGS, query={}, body=body, content_type="application/json", user=admin)
    assert answer.body["spec"] == {
        "size": 1,
        "parts": [{"id": "a"}],
        "free": {"any": 1},
        "labels": {"a": "b"},
        "color": "red",
    }
    assert answer.warnings == ['unknown field "spec.extra"', 'unknown field "spec.parts[0].extra"']


def test_strict_validation_refuses_unknown_fields(api: Api) -> None:
    define(api)
    answer = refusal(api.call("POST", THINGS, query={"fieldValidation": "Strict"}, body=thing(extra=1)))
    assert answer[0] == 400
    assert answer[2].endswith('strict decoding error: unknown field "spec.extra"')


UNCHECKED = (
    "<nil>: Invalid value: null: some validation rules were not checked because the object was invalid; correct the "
    "existing errors to complete validation"
)
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "too small": (
        {"size": 0},
        f"[spec.size: Invalid value: 0: spec.size in body should be greater than or equal to 1, {UNCHECKED}]",
    ),
    "another type": (
        {"size": "one"},
        f'[spec.size: Invalid value: "string": spec.size in body must be of type integer: "string", {UNCHECKED}]',
    ),
    "no choice": (
        {"color": "green"},
        f'[spec.color: Unsupported value: "green": supported values: "red", "blue", {UNCHECKED}]',
    ),
    "a rule": ({"size": 100}, 'spec: Invalid value: "object": too large'),
}


@pytest.mark.parametrize(("spec", "complaint"), REFUSED.values(), ids=REFUSED.keys())
def test_what_does_not_fit_the_schema(api: Api, spec: dict[str, Any], complaint: str) -> None:
    define(api)
    answer = refusal(api.call("POST", THINGS, body=thing(**spec)))
    assert answer == (422, "Invalid", f'Thing.example.com "t" is invalid: {complaint}')


def test_a_missing_field(api: Api) -> None:
    define(api)
    body = {**thing(), "spec": {}}
    answer = refusal(api.call("POST", THINGS, body=body))
    assert "spec.size: Required value" in answer[2]


def test_status_is_apart_and_generation_counts_the_spec(api: Api) -> None:
    define(api)
    made = ok(api.call("POST", THINGS, body={**thing(), "status": {"ready": True}}))
    assert ("status" in made, made["metadata"]["generation"]) == (False, 1)
    body = {**made, "spec": {"size": 9}, "status": {"ready": True}}
    by_status = ok(api.call("PUT", f"{THINGS}/t/status", body=body))
    assert (by_status["status"], by_status["spec"]["size"], by_status["metadata"]["generation"]) == (
        {"ready": True},
        1,
        1,
    )
    by_main = ok(api.call("PATCH", f"{THINGS}/t", body={"spec": {"size": 5}, "status": None}, content_type=MERGE))
    assert (by_main["status"], by_main["metadata"]["generation"]) == ({"ready": True}, 2)


def test_custom_objects_know_no_strategic_merge(api: Api) -> None:
    define(api)
    ok(api.call("POST", THINGS, body=thing()))
    assert refusal(api.call("PATCH", f"{THINGS}/t", body={}, content_type=STRATEGIC))[0] == 415


def test_two_versions_are_one_object(api: Api) -> None:
    define(api, VERSION, {**VERSION, "name": "v2", "storage": False})
    ok(api.call("POST", THINGS, body=thing()))
    assert ok(api.call("GET", "/apis/example.com/v2/things/t"))["apiVersion"] == "example.com/v2"
    ok(api.call("PATCH", "/apis/example.com/v2/things/t", body={"spec": {"size": 3}}, content_type=MERGE))
    assert ok(api.call("GET", f"{THINGS}/t"))["spec"]["size"] == 3
    event = next(iter(api.watch("/apis/example.com/v2/things")))
    assert event["object"]["apiVersion"] == "example.com/v2"


def test_a_definition_takes_its_objects_along(api: Api) -> None:
    define(api)
    ok(api.call("POST", THINGS, body=thing()))
    ok(api.call("DELETE", f"{DEFINITIONS}/things.example.com"))
    assert refusal(api.call("GET", THINGS))[0] == 404
    define(api)
    assert names(ok(api.call("GET", THINGS))) == []


def test_a_definition_under_another_name_is_refused(api: Api) -> None:
    spec = {"group": "example.com", "scope": "Cluster", "names": NAMES, "versions": [VERSION]}
    answer = refusal(api.call("POST", DEFINITIONS, body={"metadata": {"name": "other.example.com"}, "spec": spec}))
    assert 'must be spec.names.plural+"."+spec.group' in answer[2]


def test_versions_are_preferred_as_kubernetes_does() -> None:
    wanted = ["v10", "v2", "v1", "v11beta2", "v10beta3", "v3beta1", "v12alpha1", "v11alpha2", "foo1", "foo10"]
    assert sorted(reversed(wanted), key=preference) == wanted


def test_a_version_in_which_objects_are_stored_stays(api: Api) -> None:
    second = {**VERSION, "name": "v2", "storage": False}
    define(api, VERSION, second)
    path = f"{DEFINITIONS}/things.example.com"
    swapped = [{**VERSION, "storage": False}, {**second, "storage": True}]
    ok(api.call("PATCH", path, body={"spec": {"versions": swapped}}, content_type=MERGE))
    for left in ([{**VERSION, "storage": True}], [{**second, "storage": True}]):
        code, _, message = refusal(api.call("PATCH", path, body={"spec": {"versions": left}}, content_type=MERGE))
        gone = "v1" if left[0]["name"] == "v2" else "v2"
        assert code == 422
        assert f"missing from spec.versions; {gone} was previously a storage version" in message
    ok(api.call("PATCH", f"{path}/status", body={"status": {"storedVersions": ["v2"]}}, content_type=MERGE))
    ok(api.call("PATCH", path, body={"spec": {"versions": [{**second, "storage": True}]}}, content_type=MERGE))
    assert refusal(api.call("GET", THINGS))[0] == 404
