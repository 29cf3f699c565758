"""The API server's match conditions and our own reading agree on whether a pod concerns gpufraction."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import cel
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract import names, pods
from contract.dialects import DIALECTS, nano, native
from contract.dialects.base import Dialect
from contract.dialects.conditions import match_conditions, other_conditions
from contract.dialects.table import Dialects
from tests.builders import pod

ANNOTATED = Dialect(name="annotated", title="", resources=(), annotations=("a.example/gpu",), read=lambda context: None)
PREFIXED = replace(ANNOTATED, annotations=(), annotation_prefixes=("egpuc.elasticgpu.io/",))


def let_through(made: dict[str, Any], conditions: list[dict[str, str]]) -> bool:
    return all(cel.evaluate(condition["expression"], {"object": made}) is True for condition in conditions)


PODS = {
    "a pod that asks for CPU only": (pod("p").needs(cpu="1").limited(memory="1Gi"), False),
    "a container without resources": (pod("p").container("main"), False),
    "an Aliyun share": (pod("p").asks("aliyun.com/gpu-mem", 5), True),
    "the second container asks": (pod("p").container("a").container("b").asks("nano-gpu/gpu-percent", 20), True),
    "an init container asks": (pod("p").init("a").asks("nvidia.com/gpu", 1).container("b"), True),
    "a sidecar asks": (pod("p").sidecar("a").asks("gpufraction.io/gpu-memory", "1Gi").container("b"), True),
    "a GPU of another vendor": (pod("p").asks("amd.com/gpu", 1), False),
    "an annotation that has a resource's name": (pod("p").annotated("nvidia.com/gpu", "1"), False),
    "a letter too many": (pod("p").asks("nvidia.com/gpus", 1), True),
    "a word of ours that there is not": (pod("p").asks("gpufraction.io/gpu-mem", "1Gi"), True),
    "an older system's word, misspelt": (pod("p").asks("aliyun.com/gpumem", 5), True),
    "another one": (pod("p").asks("nano-gpu/gpu-percentage", 20), True),
    "the vendor's plugin with a name of its own": (pod("p").asks("nvidia.com/gpu.shared", 1), False),
    "a MIG slice": (pod("p").asks("nvidia.com/mig-1g.5gb", 1), False),
    "Alibaba's other accelerators": (pod("p").asks("aliyun.com/ppu", 1), False),
    "Elastic GPU's whole cards": (pod("p").asks("elasticgpu.io/pgpu", 1), False),
    "nothing but a priority": (pod("p").asks("nvidia.com/priority", 1), True),
    "a pod that names a claim, under any key": (pod("p").annotated("egpuc.elasticgpu.io/test1", "claim"), True),
    "a domain that only ends like a claim's": (pod("p").annotated("my.egpuc.elasticgpu.io/a", "claim"), False),
    "a pod of an earlier pass that waits for a percentage": (pod("p").annotated(names.REQUEST, "{}"), True),
    "a restored pod behind our gate": (pod("p").gated(names.GATE), True),
    "a pod behind another's gate": (pod("p").gated("example.com/quota"), False),
    "our placement annotation alone, which is a wish": (pod("p").annotated(names.PLACEMENT, "affinity"), False),
}


@pytest.mark.parametrize(("builder", "wanted"), PODS.values(), ids=PODS.keys())
def test_only_pods_that_name_a_share_reach_the_webhook(builder: Any, wanted: bool) -> None:
    assert let_through(builder.json(), match_conditions()) is wanted
    assert let_through(builder.manifest(), match_conditions()) is wanted


RESOURCES = st.sampled_from(
    ["cpu", "memory", "amd.com/gpu", *(resource for dialect in DIALECTS for resource in dialect.resources)]
)
AMOUNTS = st.dictionaries(RESOURCES, st.sampled_from(["0", "1", "5Gi"]), max_size=3)
RESOURCE_FIELDS = st.fixed_dictionaries({}, optional={"limits": AMOUNTS, "requests": AMOUNTS})
CONTAINERS = st.lists(
    st.fixed_dictionaries({"name": st.just("c")}, optional={"resources": RESOURCE_FIELDS}), max_size=3
)
TEXTS = st.dictionaries(
    st.sampled_from(["team", "egpuc.elasticgpu.io/any", "nvidia.com/gpu", "a.example/gpu", str(names.REQUEST)]),
    st.just("1"),
    max_size=2,
)
GATES = st.lists(st.sampled_from(["example.com/quota", str(names.GATE)]).map(lambda name: {"name": name}), max_size=2)
MADE_UP = st.fixed_dictionaries(
    {
        "metadata": st.fixed_dictionaries({}, optional={"annotations": TEXTS, "labels": TEXTS}),
        "spec": st.fixed_dictionaries(
            {"containers": CONTAINERS}, optional={"initContainers": CONTAINERS, "schedulingGates": GATES}
        ),
    }
)


def was_with_us(made: dict[str, Any]) -> bool:
    return names.REQUEST in pods.annotations_of(made) or names.GATE in pods.gates(made)


@given(MADE_UP)
def test_the_condition_is_the_dialects_own_question(made: dict[str, Any]) -> None:
    assert let_through(made, match_conditions()) is (bool(DIALECTS.detect(made)) or was_with_us(made))
    assert let_through(made, other_conditions()) is not let_through(made, match_conditions())


@given(MADE_UP)
def test_annotations_that_alone_are_a_request_are_matched_too(made: dict[str, Any]) -> None:
    table = Dialects((nano.DIALECT, ANNOTATED, PREFIXED))
    assert let_through(made, match_conditions(table)) is (bool(table.detect(made)) or was_with_us(made))


def test_an_annotation_alone_is_a_request_where_the_dialect_says_so() -> None:
    made = pod("p").annotated("a.example/gpu", "claim").json()
    assert Dialects((nano.DIALECT, ANNOTATED)).detect(made) == (ANNOTATED,)
    assert let_through(made, match_conditions([nano.DIALECT, ANNOTATED]))


def test_there_is_one_condition_since_conditions_are_anded() -> None:
    assert [condition["name"] for condition in match_conditions()] == ["asks-for-a-gpu-share"]
    assert [condition["name"] for condition in other_conditions()] == ["asks-for-no-gpu-share"]


def test_without_dialects_only_what_was_with_us_comes_through() -> None:
    assert let_through(pod("p").gated(names.GATE).json(), match_conditions([]))
    assert not let_through(pod("p").asks("nvidia.com/gpu", 1).json(), match_conditions([ANNOTATED]))


def test_a_name_that_could_break_out_of_the_expression_is_refused() -> None:
    with pytest.raises(ValueError, match="is not the name of a resource"):
        match_conditions([replace(native.DIALECT, resources=("x'] || true || ['",))])
