"""What a LimitRange wrote into a pod counts as far as it is compatible with the pod's own request."""

from __future__ import annotations

from typing import Any

import pytest

from contract.dialects import DIALECTS
from contract.dialects.base import Refusal
from contract.dialects.limitranges import RANGE_ANNOTATION as NOTE
from contract.dialects.limitranges import ranged_requests
from contract.model import FractionRequest, PodRequest
from contract.options import Options
from tests.builders import PodBuilder, pod

JSON = dict[str, Any]
GIB = 1 << 30
MEMORY, OLDER, OTHER = "gpufraction.io/gpu-memory", "aliyun.com/gpu-mem", "nvidia.com/gpumem"


def ranged(builder: PodBuilder, *, also: JSON | None = None, **amounts: str) -> JSON:
    """The pod as LimitRanger leaves it: with the amounts that a container does not set, and with the annotation."""
    made = builder.json()
    wanted = {**amounts, **(also or {})}
    notes = []
    for kind, what in (("containers", "container"), ("initContainers", "init container")):
        for container in made["spec"].get(kind, []):
            given = [name for name in sorted(wanted) if name not in container["resources"].get("limits", {})]
            for amounts_ in ("requests", "limits"):
                have = container["resources"].setdefault(amounts_, {})
                have.update({name: wanted[name] for name in given})
                if given:
                    notes.append(f"{', '.join(given)} {amounts_[:-1]} for {what} {container['name']}")
    if notes:
        made["metadata"].setdefault("annotations", {})[NOTE] = f"LimitRanger plugin set: {'; '.join(notes)}"
    return made


def two(*asks: tuple[str, str | int]) -> PodBuilder:
    """`main`, which requests a share, and `side`, which requests none."""
    builder = pod("p").container("main")
    for resource, amount in asks:
        builder = builder.asks(resource, amount)
    return builder.container("side")


def shares(made: JSON, options: Options | None = None) -> dict[str, int]:
    """Memory in GiB by container."""
    found = DIALECTS.read(made, options or Options())
    assert isinstance(found, PodRequest), found
    return {fraction.container: fraction.memory // GIB for fraction in found.containers}


BOTH = {OLDER: "2", MEMORY: "4Gi"}
SHARES = {
    "a default in an older system's words is every container's share": (
        ranged(two(), also={OLDER: "2"}),
        {"main": 2, "side": 2},
    ),
    "a max of ours beside it asks for nothing": (ranged(two(), also=BOTH), {"main": 2, "side": 2}),
    "a max alone is a default, as Kubernetes has it": (ranged(two(), also={MEMORY: "4Gi"}), {"main": 4, "side": 4}),
    "but where that is 0": (ranged(two((MEMORY, "1Gi")), also={MEMORY: "0"}), {"main": 1}),
    "what the tenant wrote in another dialect comes first": (
        ranged(two((OTHER, 3072)), also=BOTH),
        {"main": 3},
    ),
    "in the same dialect both count, each in its container": (
        ranged(two((OLDER, 5)), also={OLDER: "2"}),
        {"main": 5, "side": 2},
    ),
    "in our own beside a default in an older one": (ranged(two((MEMORY, "1Gi")), also={OLDER: "2"}), {"main": 1}),
    "an annotation is the tenant's word too": (
        ranged(two().annotated("gpu-memory", "1024"), also=BOTH),
        {"main": 1},
    ),
    "CPU is none of ours": (ranged(two((MEMORY, "1Gi")), cpu="1"), {"main": 1}),
}


@pytest.mark.parametrize(("made", "want"), SHARES.values(), ids=SHARES.keys())
def test_shares(made: JSON, want: dict[str, int]) -> None:
    assert shares(made) == want


def test_a_default_of_nothing_asks_for_nothing() -> None:
    assert DIALECTS.read(ranged(two(), also={MEMORY: "0"})) is None
    assert DIALECTS.read(ranged(two(), also={OLDER: "0"})) is None


def test_a_pod_with_a_share_from_a_limit_range_gets_a_warning() -> None:
    found = DIALECTS.read(ranged(two((OLDER, 5)), also=BOTH))
    assert isinstance(found, PodRequest)
    assert found.warnings == (f"container side: {OLDER} was set by a LimitRange in the namespace",)


def test_a_resource_by_the_name_that_a_cluster_has_for_it() -> None:
    options = Options(resource_names=(("example.com/vmem", OTHER),))
    made = ranged(two((OLDER, 5)), also={"example.com/vmem": "1024"})
    for container in made["spec"]["containers"]:
        for amounts in container["resources"].values():
            amounts[OTHER] = amounts.pop("example.com/vmem")
    assert shares(made, options) == {"main": 5}


REFUSED = {
    "two older systems' defaults": (
        ranged(two(), also={OLDER: "2", OTHER: "1000"}),
        Refusal(
            f"spec.containers[0].resources.limits[{OTHER}]",
            f"HAMi (nvidia.com/gpu) together with Aliyun gpushare (spec.containers[0].resources.limits[{OLDER}]), set "
            "by a LimitRange in the namespace",
            "use only one dialect: remove one of the two from the pod or the namespace's LimitRange",
        ),
    ),
    "a default that no dialect takes": (
        ranged(two(), also={"nano-gpu/gpu-percent": "200"}),
        Refusal(
            "spec.containers[0].resources.limits[nano-gpu/gpu-percent]",
            "'200', set by a LimitRange in the namespace",
            "give a whole number from 1 to 100, which is one whole card",
        ),
    ),
}


@pytest.mark.parametrize(("made", "want"), REFUSED.values(), ids=REFUSED.keys())
def test_a_refusal_names_the_limit_range(made: JSON, want: Refusal) -> None:
    assert DIALECTS.read(made) == want


def test_of_several_limit_ranges_the_refusal_names_the_one_of_the_note() -> None:
    made = ranged(ranged_again(two()), also={"cpu": "1"})
    found = DIALECTS.read(made)
    assert isinstance(found, Refusal)
    assert "or the namespace's LimitRange" in found.cure


def ranged_again(builder: PodBuilder) -> PodBuilder:
    """A pod with a LimitRange whose annotation another LimitRange has overwritten."""
    made = builder
    for resource, amount in BOTH.items():
        made = made.asks(resource, amount)
    return made


NOTES = {
    "none": ({}, {}),
    "no text": ({NOTE: 5}, {}),
    "another text": ({NOTE: "x request for container c"}, {}),
    "limits alone, whose request the author wrote": (
        {NOTE: "LimitRanger plugin set: a/b limit for container c"},
        {},
    ),
    "several": (
        {
            NOTE: "LimitRanger plugin set: a/b, cpu request for container c; a/b, cpu limit for container c; "
            "cpu request for init container i"
        },
        {"c": frozenset(("a/b", "cpu")), "i": frozenset(("cpu",))},
    ),
    "a pod with metadata of the wrong kind": (None, {}),
}


@pytest.mark.parametrize(("annotations", "want"), NOTES.values(), ids=NOTES.keys())
def test_the_note_is_read(annotations: Any, want: Any) -> None:
    assert ranged_requests({"metadata": {"annotations": annotations}}) == want


def test_a_note_of_megabytes_is_not_read() -> None:
    assert ranged_requests({"metadata": {"annotations": {NOTE: "LimitRanger plugin set: " + "a; " * 1_000_000}}}) == {}


def test_a_forged_note_gets_nobody_more() -> None:
    """Text that a tenant writes in the name of a LimitRange is read like a LimitRange's own."""
    made = two((OLDER, 5)).annotated(NOTE, f"LimitRanger plugin set: {OLDER} request for container main").json()
    assert DIALECTS.read(made) == PodRequest(
        "aliyun",
        (FractionRequest("main", memory=5 * GIB),),
        unit=GIB,
        warnings=(f"container main: {OLDER} was set by a LimitRange in the namespace",),
    )
