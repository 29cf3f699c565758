from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from playground.machinery.kubelet.environment import Missing, Surroundings, expand, resolve
from tests.unit.playground.machinery.builders import pod

STORED: Mapping[tuple[str, str], Mapping[str, str]] = {
    ("ConfigMap", "settings"): {"mode": "fast", "level": "3"},
    ("Secret", "token"): {"key": "s3cret"},
}
AROUND = Surroundings(
    lambda kind, name: STORED.get((kind, name)), pod_ip="10.1.2.3", host_ip="10.0.0.1", allocatable={"cpu": "16"}
)


@dataclass(frozen=True)
class Case:
    env: list[dict[str, Any]]
    want: dict[str, str] | Missing
    env_from: list[dict[str, Any]] = field(default_factory=list)


def field_of(path: str) -> dict[str, Any]:
    return {"name": "X", "valueFrom": {"fieldRef": {"fieldPath": path}}}


def key_of(source: str, name: str, key: str, **more: Any) -> dict[str, Any]:
    return {"name": "X", "valueFrom": {source: {"name": name, "key": key, **more}}}


def amount_of(resource: str, divisor: str = "0") -> dict[str, Any]:
    return {"name": "X", "valueFrom": {"resourceFieldRef": {"resource": resource, "divisor": divisor}}}


CASES = {
    "a literal": Case([{"name": "A", "value": "1"}], {"A": "1"}),
    "a name without a value is empty": Case([{"name": "A"}], {"A": ""}),
    "the later of one name wins": Case([{"name": "A", "value": "1"}, {"name": "A", "value": "2"}], {"A": "2"}),
    "an earlier variable is expanded": Case(
        [{"name": "A", "value": "1"}, {"name": "B", "value": "$(A)/$(C)/$$(A)"}], {"A": "1", "B": "1/$(C)/$(A)"}
    ),
    "an annotation": Case([field_of("metadata.annotations['gpufraction.io/devices.main']")], {"X": "GPU-1"}),
    "an annotation that is not there is empty": Case([field_of("metadata.annotations['nothing']")], {"X": ""}),
    "a label": Case([field_of("metadata.labels['app']")], {"X": "train"}),
    "the pod's name": Case([field_of("metadata.name")], {"X": "p"}),
    "the namespace": Case([field_of("metadata.namespace")], {"X": "default"}),
    "the uid": Case([field_of("metadata.uid")], {"X": "uid-p"}),
    "the node": Case([field_of("spec.nodeName")], {"X": "n1"}),
    "the pod's address": Case([field_of("status.podIP")], {"X": "10.1.2.3"}),
    "the node's address": Case([field_of("status.hostIP")], {"X": "10.0.0.1"}),
    "a field that no kubelet knows": Case(
        [field_of("spec.priority")], Missing("env fieldRef: unsupported fieldPath: spec.priority")
    ),
    "a ConfigMap's key": Case([key_of("configMapKeyRef", "settings", "mode")], {"X": "fast"}),
    "a Secret's key": Case([key_of("secretKeyRef", "token", "key")], {"X": "s3cret"}),
    "no such ConfigMap": Case([key_of("configMapKeyRef", "none", "mode")], Missing('configmap "none" not found')),
    "no such key": Case(
        [key_of("configMapKeyRef", "settings", "none")], Missing("couldn't find key none in ConfigMap default/settings")
    ),
    "an optional key that is not there defines nothing": Case(
        [key_of("configMapKeyRef", "settings", "none", optional=True)], {}
    ),
    "a limit in units of its divisor, rounded up": Case([amount_of("limits.memory", "1Gi")], {"X": "2"}),
    "a limit of CPU in whole CPUs": Case([amount_of("limits.cpu")], {"X": "16"}),
    "all of a ConfigMap, then a literal over it": Case(
        [{"name": "S_mode", "value": "slow"}],
        {"S_mode": "slow", "S_level": "3"},
        [{"prefix": "S_", "configMapRef": {"name": "settings"}}],
    ),
    "all of a Secret that is not there": Case(
        [], Missing('secret "none" not found'), [{"secretRef": {"name": "none"}}]
    ),
    "all of an optional Secret that is not there": Case([], {}, [{"secretRef": {"name": "none", "optional": True}}]),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_resolve(case: Case) -> None:
    value = pod(
        limits={"memory": "1025Mi"},
        annotations={"gpufraction.io/devices.main": "GPU-1"},
        labels={"app": "train"},
        nodeName="n1",
    )
    container = {**value["spec"]["containers"][0], "env": case.env, "envFrom": case.env_from}
    assert resolve(value, container, AROUND) == case.want


@given(st.text(alphabet="$()AB ", max_size=20))
def test_expand_leaves_what_is_not_defined(text: str) -> None:
    """Without variables only `$$` changes."""
    assert expand(text, {}).replace("$", "") == text.replace("$", "")
