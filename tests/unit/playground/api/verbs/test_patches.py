"""The three patch types."""

from typing import Any

import pytest

from playground.api.api import Api, ApiError
from playground.api.kinds.kinds import BY_KEY
from playground.api.verbs.patches import apply_patch, merge
from tests.unit.playground.api.manifests import JSON_PATCH, MERGE, PODS, STRATEGIC, create_pod, ok, refusal

POD = BY_KEY["pods"]
SERVICE = BY_KEY["services"]


def spec(**fields: Any) -> dict[str, Any]:
    return {"spec": fields}


MERGES = {
    "a new key": ({"a": 1}, {"b": 2}, {"a": 1, "b": 2}),
    "null removes": ({"a": 1, "b": 2}, {"a": None}, {"b": 2}),
    "objects are merged": ({"a": {"x": 1}}, {"a": {"y": 2}}, {"a": {"x": 1, "y": 2}}),
    "lists are replaced": ({"a": [1, 2]}, {"a": [3]}, {"a": [3]}),
    "an object replaces a scalar, without nulls": ({"a": 1}, {"a": {"x": None, "y": 1}}, {"a": {"y": 1}}),
}
C1, C2 = {"name": "one", "image": "i1"}, {"name": "two", "image": "i2"}
STRATEGICS = {
    "a container is found by its name": (
        spec(containers=[C1, C2]),
        spec(containers=[{"name": "two", "image": "new"}]),
        spec(containers=[C1, {"name": "two", "image": "new"}]),
    ),
    "an unknown container is added in front": (
        spec(containers=[C1]),
        spec(containers=[C2]),
        spec(containers=[C2, C1]),
    ),
    "an element is deleted by directive": (
        spec(containers=[C1, C2]),
        spec(containers=[{"name": "one", "$patch": "delete"}]),
        spec(containers=[C2]),
    ),
    "a list is replaced by directive": (
        spec(containers=[C1, C2]),
        spec(containers=[{"$patch": "replace"}, {"name": "three"}]),
        spec(containers=[{"name": "three"}]),
    ),
    "an object is replaced by directive": (
        spec(securityContext={"runAsUser": 1}),
        spec(securityContext={"$patch": "replace", "runAsGroup": 2}),
        spec(securityContext={"runAsGroup": 2}),
    ),
    "null removes": (spec(a=1, b=2), spec(a=None), spec(b=2)),
    "tolerations are one value": (
        spec(tolerations=[{"key": "a"}]),
        spec(tolerations=[{"key": "b"}]),
        spec(tolerations=[{"key": "b"}]),
    ),
    "environment is merged inside a container": (
        spec(containers=[{"name": "one", "env": [{"name": "A", "value": "1"}]}]),
        spec(containers=[{"name": "one", "env": [{"name": "B", "value": "2"}]}]),
        spec(containers=[{"name": "one", "env": [{"name": "B", "value": "2"}, {"name": "A", "value": "1"}]}]),
    ),
    "the wanted order of elements": (
        spec(containers=[C1, C2]),
        {"spec": {"$setElementOrder/containers": [{"name": "two"}, {"name": "one"}], "containers": []}},
        spec(containers=[C2, C1]),
    ),
    "finalizers are a set": (
        {"metadata": {"finalizers": ["a"]}},
        {"metadata": {"finalizers": ["b", "a"]}},
        {"metadata": {"finalizers": ["b", "a"]}},
    ),
    "elements are deleted from a set": (
        {"metadata": {"finalizers": ["a", "b"]}},
        {"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"]}},
        {"metadata": {"finalizers": ["b"]}},
    ),
    "only retained keys stay": (
        spec(volumes=[{"name": "v", "emptyDir": {}}]),
        spec(volumes=[{"name": "v", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/"}}]),
        spec(volumes=[{"name": "v", "hostPath": {"path": "/"}}]),
    ),
}


@pytest.mark.parametrize(("current", "patch", "expected"), MERGES.values(), ids=MERGES.keys())
def test_merge_patch(current: Any, patch: Any, expected: Any) -> None:
    assert merge(current, patch) == expected


@pytest.mark.parametrize(("current", "patch", "expected"), STRATEGICS.values(), ids=STRATEGICS.keys())
def test_strategic_merge_patch(current: Any, patch: Any, expected: Any) -> None:
    assert apply_patch(POD, STRATEGIC, current, patch) == expected


def test_the_ports_of_a_service_are_merged_by_their_number() -> None:
    current = spec(ports=[{"port": 80, "name": "a"}])
    assert apply_patch(SERVICE, STRATEGIC, current, spec(ports=[{"port": 80, "name": "b"}])) == spec(
        ports=[{"port": 80, "name": "b"}]
    )


def test_an_element_without_its_merge_key_is_refused() -> None:
    with pytest.raises(ApiError) as refused:
        apply_patch(POD, STRATEGIC, spec(containers=[C1]), spec(containers=[{"image": "x"}]))
    assert refused.value.code == 400


def test_a_json_patch_is_all_or_nothing(api: Api) -> None:
    create_pod(api)
    patch = [
        {"op": "add", "path": "/metadata/labels", "value": {"a": "b"}},
        {"op": "test", "path": "/spec/nodeName", "value": "n1"},
    ]
    code, reason, _ = refusal(api.call("PATCH", f"{PODS}/web", body=patch, content_type=JSON_PATCH))
    assert (code, reason) == (422, "Invalid")
    assert "labels" not in ok(api.call("GET", f"{PODS}/web"))["metadata"]
    labelled = ok(api.call("PATCH", f"{PODS}/web", body=patch[:1], content_type=JSON_PATCH))
    assert labelled["metadata"]["labels"] == {"a": "b"}


def test_a_patch_of_an_unknown_type_is_415(api: Api) -> None:
    create_pod(api)
    answer = refusal(api.call("PATCH", f"{PODS}/web", body={}, content_type="application/apply-patch+yaml"))
    assert answer[:2] == (415, "UnsupportedMediaType")
    assert MERGE in answer[2]


def test_a_patch_that_is_no_patch_is_400(api: Api) -> None:
    create_pod(api)
    assert refusal(api.call("PATCH", f"{PODS}/web", body=[1], content_type=MERGE))[0] == 400
    assert refusal(api.call("PATCH", f"{PODS}/web", body={"op": "x"}, content_type=JSON_PATCH))[0] == 400
