"""The pin: the pod runs on this node and nowhere else, whatever affinity it already has."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import jsonpatch
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from contract.model import NodeState
from contract.scheduling import needs, node_pin
from contract.scheduling.needs import needs_of, selects

JSON = dict[str, Any]
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PIN = {"key": "metadata.name", "operator": "In", "values": ["gpu-1"]}
OTHER_PIN = {"key": "metadata.name", "operator": "In", "values": ["gpu-2"]}
ZONE = {"key": "zone", "operator": "In", "values": ["a"]}
PREFERRED = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {}}]}


def terms(*listed: JSON) -> JSON:
    return {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(listed)}}}}


@dataclass(frozen=True)
class Case:
    spec: JSON
    want: JSON
    operations: list[JSON]


_AT = f"/spec/affinity/nodeAffinity/{REQUIRED}"
PINNED_ONLY = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchFields": [PIN]}]}}}

CASES = {
    "a pod without affinity gets one": Case(
        {}, PINNED_ONLY, [{"op": "add", "path": "/spec/affinity", "value": PINNED_ONLY}]
    ),
    "null is no affinity": Case(
        {"affinity": None}, PINNED_ONLY, [{"op": "add", "path": "/spec/affinity", "value": PINNED_ONLY}]
    ),
    "pod affinity stays beside it": Case(
        {"affinity": {"podAffinity": {"x": 1}}},
        {"podAffinity": {"x": 1}, **PINNED_ONLY},
        [{"op": "add", "path": "/spec/affinity/nodeAffinity", "value": PINNED_ONLY["nodeAffinity"]}],
    ),
    "preferences stay beside it": Case(
        {"affinity": {"nodeAffinity": PREFERRED}},
        {"nodeAffinity": {**PREFERRED, **PINNED_ONLY["nodeAffinity"]}},
        [{"op": "add", "path": _AT, "value": {"nodeSelectorTerms": [{"matchFields": [PIN]}]}}],
    ),
    "every term is narrowed, since any of them suffices": Case(
        terms({"matchExpressions": [ZONE]}, {"matchFields": [OTHER_PIN]}),
        terms({"matchExpressions": [ZONE], "matchFields": [PIN]}, {"matchFields": [OTHER_PIN, PIN]})["affinity"],
        [
            {"op": "add", "path": f"{_AT}/nodeSelectorTerms/0/matchFields", "value": [PIN]},
            {"op": "add", "path": f"{_AT}/nodeSelectorTerms/1/matchFields/-", "value": PIN},
        ],
    ),
    "a term that matches nothing goes on matching nothing": Case(
        terms({}, {"matchExpressions": [ZONE]}),
        terms({}, {"matchExpressions": [ZONE], "matchFields": [PIN]})["affinity"],
        [{"op": "add", "path": f"{_AT}/nodeSelectorTerms/1/matchFields", "value": [PIN]}],
    ),
    "a pod that is pinned already stays as it is": Case(
        terms({"matchFields": [PIN]}), terms({"matchFields": [PIN]})["affinity"], []
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_the_pin_is_added_to_what_is_there(case: Case) -> None:
    before = copy.deepcopy(case.spec)
    assert node_pin.pinned(case.spec, "gpu-1") == case.want
    assert case.spec == before


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_the_operations_say_the_same(case: Case) -> None:
    assert node_pin.pin_operations(case.spec, "gpu-1") == case.operations


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_the_outline_of_a_spec_has_the_same_operations(case: Case) -> None:
    assert node_pin.pin_operations(node_pin.outline(case.spec), "gpu-1") == case.operations


UNPINNED = {
    "a pin that was all there was leaves nothing": (terms({"matchFields": [PIN]}), None),
    "what the tenant required stays": (
        terms({"matchExpressions": [ZONE], "matchFields": [OTHER_PIN, PIN]}),
        terms({"matchExpressions": [ZONE], "matchFields": [OTHER_PIN]})["affinity"],
    ),
    "preferences stay": (
        {"affinity": {"nodeAffinity": {**PREFERRED, **PINNED_ONLY["nodeAffinity"]}}},
        {"nodeAffinity": PREFERRED},
    ),
    "a pin in one term of two was not made here": (
        terms({"matchFields": [PIN]}, {"matchExpressions": [ZONE]}),
        terms({"matchFields": [PIN]}, {"matchExpressions": [ZONE]})["affinity"],
    ),
    "a pin to another node was not made here": (
        terms({"matchFields": [OTHER_PIN]}),
        terms({"matchFields": [OTHER_PIN]})["affinity"],
    ),
    "no affinity, nothing to do": ({}, None),
}


@pytest.mark.parametrize(("spec", "want"), UNPINNED.values(), ids=UNPINNED.keys())
def test_a_stale_pin_is_taken_out(spec: JSON, want: JSON | None) -> None:
    before = copy.deepcopy(spec)
    assert node_pin.unpinned(spec, "gpu-1") == want
    assert spec == before


_expressions = st.lists(
    st.fixed_dictionaries(
        {
            "key": st.sampled_from(["zone", "model"]),
            "operator": st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist"]),
            "values": st.lists(st.sampled_from(["a", "b"]), min_size=1, max_size=2),
        }
    ),
    max_size=2,
)
_fields = st.lists(
    st.fixed_dictionaries(
        {
            "key": st.just("metadata.name"),
            "operator": st.sampled_from(["In", "NotIn"]),
            "values": st.sampled_from([["gpu-1"], ["gpu-2"]]),
        }
    ),
    max_size=2,
)
_terms = st.lists(
    st.fixed_dictionaries({}, optional={"matchExpressions": _expressions, "matchFields": _fields}),
    min_size=1,
    max_size=3,
)
specs: st.SearchStrategy[JSON] = st.one_of(
    st.just({}),
    st.builds(lambda listed: terms(*listed), _terms),
    st.just({"affinity": {"nodeAffinity": PREFERRED}}),
)
NODES = [
    NodeState(name=name, labels={"zone": zone, "model": model})
    for name in ("gpu-1", "gpu-2")
    for zone in "ab"
    for model in "ab"
]


@given(specs)
def test_a_pinned_pod_goes_where_it_could_and_only_to_its_node(spec: JSON) -> None:
    pinned = {"spec": {**spec, "affinity": node_pin.pinned(spec, "gpu-1")}}
    for node in NODES:
        allowed = selects(needs_of({"spec": spec}), node) and node.name == "gpu-1"
        assert selects(needs_of(pinned), node) == allowed


@given(specs)
def test_the_operations_make_the_pinned_pod(spec: JSON) -> None:
    patched = jsonpatch.apply_patch({"spec": copy.deepcopy(spec)}, node_pin.pin_operations(spec, "gpu-1"))
    wanted = node_pin.pinned(spec, "gpu-1")
    assert patched["spec"].get("affinity") in (wanted, spec.get("affinity"))
    for node in NODES:
        assert selects(needs_of(patched), node) == selects(needs_of({"spec": {"affinity": wanted}}), node)


@given(specs)
def test_the_outline_makes_the_same_pod_for_every_node(spec: JSON) -> None:
    patched = jsonpatch.apply_patch(
        {"spec": copy.deepcopy(spec)}, node_pin.pin_operations(node_pin.outline(spec), "gpu-1")
    )
    wanted = {"spec": {**spec, "affinity": node_pin.pinned(spec, "gpu-1")}}
    for node in NODES:
        assert selects(needs_of(patched), node) == selects(needs_of(wanted), node)


@given(specs)
def test_pinning_twice_is_pinning_once(spec: JSON) -> None:
    once = {"affinity": node_pin.pinned(spec, "gpu-1")}
    assert node_pin.is_pinned(once, "gpu-1")
    assert node_pin.pinned(once, "gpu-1") == once["affinity"]
    assert node_pin.pin_operations(once, "gpu-1") == []


@given(specs)
def test_a_pin_that_was_added_can_be_taken_out_again(spec: JSON) -> None:
    listed = spec.get("affinity", {}).get("nodeAffinity", {}).get(REQUIRED, {}).get("nodeSelectorTerms", [])
    assume(not any(PIN in term.get("matchFields", []) for term in listed))
    once = {"affinity": node_pin.pinned(spec, "gpu-1")}
    back = {"spec": {"affinity": node_pin.unpinned(once, "gpu-1")}}
    for node in NODES:
        assert selects(needs_of(back), node) == selects(needs_of({"spec": spec}), node)


def test_a_node_whose_labels_name_another_node_does_not_get_the_pod() -> None:
    """A kubelet may change its node's label hostname, but never the name of its Node."""
    names_itself = {"kubernetes.io/hostname": "gpu-1", "metadata.name": "gpu-1"}
    pinned = needs_of({"spec": {"affinity": node_pin.pinned({}, "gpu-1")}})
    assert not selects(pinned, NodeState("thief", labels=names_itself))
    assert selects(pinned, NodeState("gpu-1", labels={"kubernetes.io/hostname": "renamed"}))


@given(specs)
def test_needs_are_pinned_as_a_pod_is(spec: JSON) -> None:
    pinned = needs_of({"spec": {"affinity": node_pin.pinned(spec, "gpu-1")}}).affinity
    assert needs.pinned(needs_of({"spec": spec}).affinity, "gpu-1") == pinned


CHANGED_SINCE = {
    "nothing": (terms({"matchFields": [PIN]}), None),
    "a term was added beside the pin": (
        terms({"matchFields": [PIN]}, {"matchExpressions": [ZONE]}),
        terms({"matchExpressions": [ZONE]})["affinity"],
    ),
    "a term was added beside one that was narrowed": (
        terms({"matchExpressions": [ZONE], "matchFields": [PIN]}, {"matchFields": [OTHER_PIN]}),
        terms({"matchExpressions": [ZONE]}, {"matchFields": [OTHER_PIN]})["affinity"],
    ),
    "the pin was replaced": (terms({"matchExpressions": [ZONE]}), terms({"matchExpressions": [ZONE]})["affinity"]),
    "all of it was taken out": ({}, None),
    "a term that matches nothing stays": (
        terms({}, {"matchFields": [PIN]}, {"matchExpressions": [ZONE]}),
        terms({}, {"matchExpressions": [ZONE]})["affinity"],
    ),
}


@pytest.mark.parametrize(("spec", "want"), CHANGED_SINCE.values(), ids=CHANGED_SINCE.keys())
def test_our_pin_is_taken_out_of_what_others_have_changed(spec: JSON, want: JSON | None) -> None:
    before = copy.deepcopy(spec)
    assert node_pin.without_pin(spec, "gpu-1") == want
    assert spec == before
