"""
An object that is nested deeper than Python can decode is read like any other, without the parts that are too deep.

Otherwise a user who may write one object of a kind could keep every program from reading any object of that kind. An
API server stores ten thousand levels, in `managedFields` of every kind and in the parameters of ResourceClaims.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract import kinds
from runtime.kubernetes import wire
from runtime.kubernetes.client import Kube, KubeMalformed
from tests.unit.runtime.kubernetes.test_kinds import values
from tests.wires import Answer, Script

JSON = dict[str, Any]
DEEP = 5_000


def nested(levels: int, inner: str = "1") -> str:
    """Objects within lists within objects, with brackets in their texts, as JSON."""
    return '{"]}":["\\\\\\"[",' * (levels // 2) + inner + ',"[{"]}' * (levels // 2)


def pod(name: str, levels: int) -> str:
    """A pod that holds a part of a node, with managed fields of this depth."""
    fields = f'[{{"manager":"m","fieldsV1":{nested(levels)}}}]'
    return (
        f'{{"metadata":{{"managedFields":{fields},"name":"{name}","namespace":"default"}},'
        '"spec":{"nodeName":"n","containers":[{"name":"main"}]}}'
    )


def read(name: str) -> JSON:
    """What is kept of it."""
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"nodeName": "n", "containers": [{"name": "main"}]},
        "status": {},
    }


@pytest.mark.parametrize("levels", [90, 900, DEEP])
def test_a_deep_object_is_listed_between_the_others(levels: int) -> None:
    listed = ",".join((pod("a", 2), pod("b", levels), pod("c", 2)))
    body = f'{{"kind":"PodList","metadata":{{"resourceVersion":"7"}},"items":[{listed}]}}'
    found = Kube(Script(Answer(body=body.encode()))).list("/api/v1/pods", of=kinds.PODS)
    assert (found.items, found.resource_version) == ([read("a"), read("b"), read("c")], "7")


def test_a_change_of_a_deep_object_is_watched() -> None:
    lines = "".join(f'{{"type":"MODIFIED","object":{pod(name, levels)}}}\n' for name, levels in (("a", DEEP), ("b", 2)))
    stream = Kube(Script(Answer(body=lines.encode()))).watch(
        "/api/v1/pods", resource_version="1", timeout_seconds=60, of=kinds.PODS
    )
    assert list(stream) == [{"type": "MODIFIED", "object": read(name)} for name in ("a", "b")]


CALLS: dict[str, Callable[[Kube], JSON]] = {
    "read": lambda kube: kube.get("/api/v1/namespaces/default/pods/a"),
    "patched": lambda kube: kube.patch_merge("/api/v1/namespaces/default/pods/a", {}),
    "deleted": lambda kube: kube.delete("/api/v1/namespaces/default/pods/a"),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_a_deep_object_is_read_and_written_one_by_one(call: Callable[[Kube], JSON]) -> None:
    found = call(Kube(Script(Answer(body=pod("a", DEEP).encode()))))
    assert kinds.PODS.keep(found) == read("a")


LEVELS = 3


@given(inner=values, levels=st.integers(1, 2 * LEVELS), after=st.sampled_from(["", " ", '"}"', "]", ",{}"]))
def test_of_a_deep_value_all_is_read_but_what_is_too_deep(inner: Any, levels: int, after: str) -> None:
    value: Any = inner
    for level in range(levels):
        value = {"a": [], "b": value} if level % 2 else [value, "]"]
    text = json.dumps(value)
    shallow, end = wire._shallow(text + after, 0, LEVELS)
    assert (json.loads(shallow), end) == (cut(value, LEVELS), len(text))


def cut(value: Any, levels: int) -> Any:
    """The value, with null instead of objects and lists that are deeper than this many levels."""
    if not isinstance(value, dict | list):
        return value
    if not levels:
        return None
    if isinstance(value, list):
        return [cut(each, levels - 1) for each in value]
    return {key: cut(each, levels - 1) for key, each in value.items()}


@pytest.mark.parametrize(
    "text",
    [nested(DEEP)[:-1], nested(DEEP) + "]", nested(DEEP, '"'), "[" * DEEP, "[" * DEEP + '"\\'],
    ids=["cut", "too much", "a text without end", "no end", "an open text"],
)
def test_deep_text_that_is_no_json_is_refused_as_such(text: str) -> None:
    with pytest.raises(KubeMalformed, match="not JSON"):
        Kube(Script(Answer(body=text.encode()))).get("/x")


def test_a_large_object_of_another_shape_than_promised_is_not_held() -> None:
    """Without this, data that no row can reduce would be kept unchanged, at ten times its size."""
    odd = {"metadata": {"name": "odd", "namespace": "default"}, "spec": ["x" * kinds.PODS.most]}
    refused: list[str] = []
    kube = Kube(
        Script(Answer(body={"kind": "PodList", "metadata": {}, "items": [odd, {**odd, "spec": []}, {"spec": 1}]})),
        oversized=lambda kind, name, length: refused.append(name),
    )
    found = kube.list("/api/v1/pods", of=kinds.PODS).items
    assert (len(found), found[-1], refused) == (2, {"spec": 1}, ["default/odd"])
