"""Whatever JSON takes the place of a pod, reading it gives a request, a refusal or nothing, and never a traceback."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from contract import names
from contract.dialects import DIALECTS
from contract.dialects.aliyun import COUNT
from contract.dialects.base import Refusal
from contract.encoding.codec import request_from_text, request_to_text
from contract.model import MOST_GPUS, WHOLE, FractionRequest, PodRequest
from tests.builders import pod
from tests.unit.contract.strategies import JSON

RESOURCES = [resource for dialect in DIALECTS for resource in dialect.resources]
ANNOTATIONS = [
    *(str(key) for key in names.REGISTRY if key.on == "Pod annotation"),
    *(word.name for dialect in DIALECTS for word in dialect.glossary if word.on == "Pod annotation"),
]
HUGE: list[Any] = [10**30, 10**5000, -(10**30), "9" * 60, "9" * 5000, "1e999", "1e-999", "1e1000", "999999E", "-1", -1]
ODD: list[Any] = [
    0,
    1,
    5,
    100,
    101,
    "0",
    "20",
    "0.5",
    "500m",
    "5Gi",
    "3Gi",
    "5GiB",
    "+7",
    0.1,
    1e300,
    None,
    True,
    "",
    " ",
]
AMOUNTS = st.sampled_from(HUGE + ODD + [float("nan"), float("inf")]) | st.integers() | st.floats() | st.text() | JSON


def kept(strategy: st.SearchStrategy[Any], *, instead: st.SearchStrategy[Any] = JSON) -> st.SearchStrategy[Any]:
    """Mostly what the strategy generates, sometimes any other JSON."""
    return st.integers(0, 9).flatmap(lambda dice: instead if dice == 0 else strategy)


LISTED = kept(st.dictionaries(st.sampled_from(["cpu", *RESOURCES]), AMOUNTS, max_size=3))
LIKELY = st.sampled_from(["1", "2", "8", 20, "100", "8Gi"])
ONE_DIALECT = st.sampled_from([dialect for dialect in DIALECTS if dialect.resources]).flatmap(
    lambda dialect: st.dictionaries(
        st.sampled_from(dialect.resources), kept(LIKELY, instead=AMOUNTS), min_size=1, max_size=3
    )
)
CONTAINER = st.fixed_dictionaries(
    {},
    optional={
        "name": kept(st.sampled_from(["main", "other", ""])),
        "restartPolicy": kept(st.just("Always")),
        "resources": kept(st.fixed_dictionaries({}, optional={"limits": LISTED, "requests": LISTED})),
    },
)
ASKING = st.builds(lambda amounts: {"name": "main", "resources": {"limits": amounts}}, ONE_DIALECT)
CONTAINERS = kept(st.lists(kept(CONTAINER | ASKING), max_size=3))
PLAUSIBLE = st.sampled_from(["0.5", "0.333", "1", "4000", "2", "main", "other", "true", "binpack", "mutex", "40Gi"])
METADATA = st.fixed_dictionaries(
    {},
    optional={
        "annotations": kept(st.dictionaries(st.sampled_from(ANNOTATIONS), PLAUSIBLE | st.text() | JSON, max_size=3)),
        "labels": kept(st.dictionaries(st.just(COUNT), AMOUNTS, max_size=1)),
    },
)
PODS = st.fixed_dictionaries(
    {},
    optional={
        "metadata": kept(METADATA),
        "spec": kept(st.fixed_dictionaries({}, optional={"initContainers": CONTAINERS, "containers": CONTAINERS})),
    },
)
CLEAN = st.fixed_dictionaries(
    {"spec": st.builds(lambda listed: {"containers": listed}, st.lists(ASKING, max_size=2))},
    optional={"metadata": METADATA},
)


def holds(fraction: FractionRequest) -> bool:
    """Everything that a request promises to its readers."""
    return (
        1 <= fraction.count <= MOST_GPUS
        and (fraction.memory == 0 or fraction.memory >= 1 << 20)
        and 0 <= fraction.percent <= WHOLE
        and bool(fraction.memory) != bool(fraction.percent)
        and 0 <= fraction.cores <= WHOLE
        and (not fraction.exclusive or fraction.cores == WHOLE)
    )


@given(PODS | CLEAN)
@example(
    {
        "spec": {"containers": [{"name": "main", "resources": {"limits": {"aliyun.com/gpu-mem": 8}}}]},
        "metadata": {"labels": {COUNT: 4}},
    }
)
@example({"spec": {"containers": [{"name": "main", "resources": {"limits": ["nvidia.com/gpu"]}}]}})
@example({"spec": {"containers": [{"name": "main", "resources": "nvidia.com/gpu"}]}})
def test_any_pod_is_read(made: dict[str, Any]) -> None:
    before = copy.deepcopy(made)
    found = DIALECTS.read(made)
    assert made == before
    match found:
        case None:
            pass
        case Refusal(field, wrong, cure):
            assert field.startswith(("spec.", "metadata."))
            assert cure
            assert len(wrong) < 250
        case PodRequest():
            assert [fraction for fraction in found.containers if not holds(fraction)] == []
            assert all(len(warning) < 400 for warning in found.warnings)
            if len({fraction.container for fraction in found.containers}) == len(found.containers):
                assert request_from_text(request_to_text(found)) == found


@given(PODS)
def test_only_a_pod_that_names_something_is_read_as_anything(made: dict[str, Any]) -> None:
    if not DIALECTS.detect(made):
        assert DIALECTS.read(made) is None


STRUCTURES: dict[str, Any] = {
    "no pod at all": {},
    "no spec": {"spec": None},
    "no containers": {"spec": {"containers": None}},
    "containers of the wrong kind": {
        "spec": {"containers": {"main": {"resources": {"limits": {"nvidia.com/gpu": 1}}}}}
    },
    "a container that is null": {"spec": {"containers": [None]}},
    "a container that is text": {"spec": {"containers": ["nvidia.com/gpu"]}},
    "resources that are null": {"spec": {"containers": [{"resources": None}]}},
    "resources that are text": {"spec": {"containers": [{"resources": "nvidia.com/gpu"}]}},
    "limits that are null": {"spec": {"containers": [{"resources": {"limits": None, "requests": None}}]}},
    "limits that are a list": {"spec": {"containers": [{"resources": {"limits": ["nvidia.com/gpu"]}}]}},
    "metadata of the wrong kind": {"metadata": [], "spec": {}},
    "annotations of the wrong kind": {"metadata": {"annotations": ["x"]}, "spec": {}},
}


@pytest.mark.parametrize("made", STRUCTURES.values(), ids=STRUCTURES.keys())
def test_without_a_pod_nothing_is_requested(made: dict[str, Any]) -> None:
    assert DIALECTS.detect(made) == ()
    assert DIALECTS.read(made) is None


TEXTS = {
    "an annotation that is a number": ("annotations", str(names.USE_MODELS), 5, "5"),
    "an annotation that is a list": ("annotations", "nvidia.com/use-gpuuuid", ["GPU-1"], "['GPU-1']"),
    "a policy that is an object": ("annotations", str(names.NODE_POLICY), {}, "{}"),
    "a policy of the dialect that is true": ("annotations", "hami.io/gpu-scheduler-policy", True, "True"),
}


@pytest.mark.parametrize(("kind", "key", "value", "shown"), TEXTS.values(), ids=TEXTS.keys())
def test_what_should_be_text_is_refused(kind: str, key: str, value: Any, shown: str) -> None:
    made = pod("p").asks("nvidia.com/gpu", 1).json()
    made["metadata"][kind] = {key: value}
    assert DIALECTS.read(made) == Refusal(f"metadata.{kind}[{key}]", shown, "give text, in quotation marks")


def test_a_label_that_is_a_number_is_refused() -> None:
    made = pod("p").asks("aliyun.com/gpu-mem", 8).json()
    made["metadata"]["labels"] = {COUNT: 4}
    assert DIALECTS.read(made) == Refusal(f"metadata.labels[{COUNT}]", "4", "give text, in quotation marks")


def test_null_texts_are_absent() -> None:
    made = pod("p").asks("nvidia.com/gpumem", 3000).json()
    made["metadata"]["annotations"] = {str(names.USE_MODELS): None, str(names.NODE_POLICY): None}
    assert DIALECTS.read(made) == PodRequest("hami", (FractionRequest("main", memory=3000 << 20),))
