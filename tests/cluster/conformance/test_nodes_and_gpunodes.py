"""What the agent writes: a node's capacity, and the status of a custom resource."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from playground.programs import installing
from playground.waiting import wait_for
from tests.cluster.conformance.asking import JSON, JSON_PATCH, MERGE, STRATEGIC, Api, Ask, Case, check, op
from tests.versions import QUOTED_VALUES, Worded, unsaid

MEMORY, CORES = "gpufraction.io/gpu-memory", "gpufraction.io/gpu-cores"
GPUNODES = "/apis/gpufraction.io/v1alpha1/gpunodes"
_numbers = itertools.count()
FIRST = {"capacity": {"cpu": "4", "pods": "10"}, "allocatable": {"cpu": "4", "pods": "10"}}


@pytest.fixture
def node(api: Api) -> Iterator[str]:
    """A node without a program: no kubelet learns about it before it is deleted."""
    name = f"conformance-{next(_numbers)}"
    body = {"metadata": {"name": name, "labels": {"a": "b"}}, "spec": {"unschedulable": True}, "status": FIRST}
    api.done(Ask("POST", "/api/v1/nodes", body))
    yield f"/api/v1/nodes/{name}"
    api.done(Ask("DELETE", f"/api/v1/nodes/{name}"))


def capacity(path: str, amounts: JSON, content_type: str = MERGE) -> Ask:
    return Ask("PATCH", f"{path}/status", {"status": {"capacity": amounts}}, content_type)


REFUSED = {
    "a fraction": (
        "0.5",
        422,
        Worded(
            QUOTED_VALUES,
            now=f'status.capacity.{MEMORY}: Invalid value: "500m": must be an integer',
            before=f"status.capacity.{MEMORY}: Invalid value: resource.Quantity",
        ),
    ),
    "less than nothing": (
        "-1",
        422,
        f'status.capacity.{MEMORY}: Invalid value: "-1": must be greater than or equal to 0',
    ),
    "a word": ("much", 422, "quantities must match the regular expression"),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED.keys())
def test_a_capacity_that_is_refused(api: Api, node: str, case: tuple[str, int, str | Worded]) -> None:
    amount, code, message = case
    answer = api.ask(capacity(node, {MEMORY: amount}))
    assert (answer.code, unsaid(answer.message, [message], api.version)) == (code, []), answer.message


def test_a_merge_patch_adds_to_the_capacity_and_takes_away(api: Api, node: str) -> None:
    both = {MEMORY: "16Gi", CORES: "200"}
    added = api.done(Ask("PATCH", f"{node}/status", {"status": {"capacity": both, "allocatable": both}}, MERGE))
    less = api.done(
        Ask("PATCH", f"{node}/status", {"status": {"capacity": {CORES: None}, "allocatable": {CORES: None}}}, MERGE)
    )
    assert added["status"]["capacity"] == {**FIRST["capacity"], **both}
    assert less["status"]["capacity"] == {**FIRST["capacity"], MEMORY: "16Gi"}
    assert less["status"]["allocatable"] == {**FIRST["allocatable"], MEMORY: "16Gi"}


def test_a_json_patch_needs_its_slash_escaped(api: Api, node: str) -> None:
    def add(key: str) -> Ask:
        return Ask("PATCH", f"{node}/status", [op("add", f"/status/capacity/{key}", "32Gi")], JSON_PATCH)

    assert api.done(add("gpufraction.io~1gpu-memory"))["status"]["capacity"][MEMORY] == "32Gi"
    assert api.ask(add("gpufraction.io/gpu-memory")).code == 422


def test_status_goes_through_its_subresource_alone(api: Api, node: str) -> None:
    beside = api.done(Ask("PATCH", node, {"status": {"capacity": {MEMORY: "1Gi"}}}, MERGE))
    labelled = api.done(Ask("PATCH", f"{node}/status", {"metadata": {"labels": {"q": "r"}}}, MERGE))
    strategic = api.done(capacity(node, {MEMORY: "34359738368"}, STRATEGIC))
    assert MEMORY not in beside["status"]["capacity"]
    assert labelled["metadata"]["labels"] == {"a": "b", "q": "r"}
    assert strategic["status"]["capacity"][MEMORY] == "34359738368"


@pytest.fixture
def definition(api: Api) -> None:
    """The shipped definition of GPUNodes, once it is served."""
    body = next(each for each in installing.shipped() if each["kind"] == "CustomResourceDefinition")
    answer = api.ask(Ask("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", body))
    assert answer.code in (201, 409), answer.message
    wait_for(lambda: api.ask(Ask("GET", GPUNODES)).code == 200, "GPUNodes are not served")


def gpunode(name: str) -> Ask:
    return Ask(
        "POST", GPUNODES, {"apiVersion": "gpufraction.io/v1alpha1", "kind": "GPUNode", "metadata": {"name": name}}
    )


CUSTOM = {
    "absent": Case(Ask("GET", f"{GPUNODES}/none"), 404, "NotFound", ('gpunodes.gpufraction.io "none" not found',)),
    "by a strategic merge patch": Case(
        Ask("PATCH", f"{GPUNODES}/g-strategic", {"metadata": {"labels": {"a": "b"}}}, STRATEGIC),
        415,
        "UnsupportedMediaType",
        ("accepted media types include: application/json-patch+json, application/merge-patch+json",),
        given=(gpunode("g-strategic"),),
    ),
    "twice": Case(
        gpunode("g-twice"),
        409,
        "AlreadyExists",
        ('gpunodes.gpufraction.io "g-twice" already exists',),
        given=(gpunode("g-twice"),),
    ),
    "with its status at creation": Case(
        Ask("POST", GPUNODES, {**gpunode("g-status").body, "status": {"driver": "x"}}), 201, shows={"status": None}
    ),
    "a status of a wrong type": Case(
        Ask("PATCH", f"{GPUNODES}/g-type/status", {"status": {"gpus": "three"}}, MERGE),
        422,
        "Invalid",
        (
            'GPUNode.gpufraction.io "g-type" is invalid: ',
            Worded((1, 31), now='status.gpus: Invalid value: "string"', before='gpus: Invalid value: "string"'),
            "must be of type array",
        ),
        given=(gpunode("g-type"),),
    ),
    "a status that replaces another version": Case(
        Ask(
            "PUT",
            f"{GPUNODES}/g-stale/status",
            {**gpunode("g-stale").body, "metadata": {"name": "g-stale", "resourceVersion": "1"}},
        ),
        409,
        "Conflict",
        ('Operation cannot be fulfilled on gpunodes.gpufraction.io "g-stale": the object has been modified',),
        given=(gpunode("g-stale"),),
    ),
    "replaced without a version": Case(
        Ask("PUT", f"{GPUNODES}/g-bare", gpunode("g-bare").body),
        422,
        "Invalid",
        (
            Worded(
                (1, 34),
                now="metadata.resourceVersion: Invalid value: 0: must be specified for an update",
                before="metadata.resourceVersion: Invalid value: 0x0: must be specified for an update",
            ),
        ),
        given=(gpunode("g-bare"),),
    ),
}


@pytest.mark.parametrize("case", CUSTOM.values(), ids=CUSTOM.keys())
@pytest.mark.usefixtures("definition")
def test_a_gpunode(api: Api, case: Case) -> None:
    check(api, case)
