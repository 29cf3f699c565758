"""The limits on a pod's content, each with a sentence, a pod and the refusal; everything within them is read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from contract import bounds, names, pods
from contract.dialects import DIALECTS
from contract.dialects.base import Refusal
from contract.encoding import codec
from contract.encoding.reading import Malformed
from contract.model import (
    MOST_CONTAINERS,
    MOST_SHARING,
    FractionRequest,
    PodRequest,
    Wishes,
)
from tests.builders import PodBuilder, pod

MIB = 1 << 20
AFFINITY = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution"
ASKING_WORDS = {
    "native": ("gpufraction.io/gpu-memory", "1Mi"),
    "aliyun": ("aliyun.com/gpu-mem", "1"),
    "elastic": ("elasticgpu.io/gpu-memory", "1"),
    "hami": ("nvidia.com/gpumem", "1"),
    "nano": ("nano-gpu/gpu-percent", "1"),
}


def of_containers(number: int, resource: str, amount: str, **limits: str) -> dict[str, Any]:
    """A pod of many containers with the same request."""
    made = pod("p").json()
    amounts = {resource: amount, **limits}
    made["spec"]["containers"] = [{"name": f"c{at}", "resources": {"limits": amounts}} for at in range(number)]
    return made


@pytest.mark.parametrize(("resource", "amount"), ASKING_WORDS.values(), ids=ASKING_WORDS.keys())
def test_containers_that_ask_are_counted_in_every_dialect(resource: str, amount: str) -> None:
    assert isinstance(DIALECTS.read(of_containers(MOST_SHARING, resource, amount)), PodRequest)
    assert DIALECTS.read(of_containers(MOST_SHARING + 1, resource, amount)) == Refusal(
        "spec.containers", "65 containers that request a share", "request a share in at most 64 containers of a pod"
    )


def test_containers_that_use_a_claim_are_counted_too() -> None:
    made = of_containers(MOST_SHARING + 1, "cpu", "1")
    made["metadata"]["annotations"] = {"egpuc.elasticgpu.io/a": "one"}
    assert DIALECTS.read(made) == Refusal(
        "spec.containers", "65 containers that request a share", "request a share in at most 64 containers of a pod"
    )


def test_containers_beside_those_that_ask_have_a_bound_of_their_own() -> None:
    made = of_containers(MOST_CONTAINERS, "cpu", "1")
    made["spec"]["containers"].append({"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}})
    found = Refusal(
        "spec.containers",
        "257 containers",
        "a pod with a GPU share has at most 256 containers: split it into several pods",
    )
    assert DIALECTS.read(made) == found
    del made["spec"]["containers"][-1]
    assert DIALECTS.read(made) is None


def test_a_million_containers_are_not_read_one_by_one() -> None:
    made = of_containers(0, "cpu", "1")
    made["spec"]["containers"] = [{"resources": {"limits": {"aliyun.com/gpu-core.percentage": 1}}}] * 1_000_000
    assert isinstance(DIALECTS.read(made), Refusal)


def test_gpus_are_counted_over_all_containers() -> None:
    assert isinstance(DIALECTS.read(of_containers(4, "nvidia.com/gpu", "64")), PodRequest)
    assert DIALECTS.read(of_containers(5, "nvidia.com/gpu", "64")) == Refusal(
        "spec.containers", "320 GPUs in all containers together", "request at most 256 in all containers together"
    )


def wishing(key: str, text: str) -> PodBuilder:
    return pod("p").asks("nvidia.com/gpumem", 1000).annotated(key, text)


_WORDS = "give at most 256 words of 128 characters each"
WISHES = {
    "a list of 256 words": (wishing(names.USE_UUIDS, ",".join(f"GPU-{n}" for n in range(256))), None),
    "a list of 257 words": (
        wishing(names.USE_UUIDS, ",".join(f"GPU-{n}" for n in range(257))),
        Refusal("metadata.annotations[gpufraction.io/gpu-uuids]", "257 words", _WORDS),
    ),
    "a dialect's own list": (
        wishing("nvidia.com/use-gpuuuid", ",".join(f"GPU-{n}" for n in range(257))),
        Refusal("metadata.annotations[nvidia.com/use-gpuuuid]", "257 words", _WORDS),
    ),
    "a word that is no model": (
        wishing(names.AVOID_MODELS, "x" * 129),
        Refusal("metadata.annotations[gpufraction.io/avoid-gpu-models]", "a word of 129 characters", _WORDS),
    ),
    "a text that is not taken apart": (
        wishing(names.AVOID_MODELS, "," * 200_000),
        Refusal("metadata.annotations[gpufraction.io/avoid-gpu-models]", "200000 characters", _WORDS),
    ),
}


@pytest.mark.parametrize(("made", "wanted"), WISHES.values(), ids=WISHES.keys())
def test_wishes(made: PodBuilder, wanted: Refusal | None) -> None:
    found = DIALECTS.read(made.json())
    assert found == wanted if wanted is not None else isinstance(found, PodRequest)


def test_lists_of_wishes_are_counted_over_the_pod_and_equal_ones_once() -> None:
    def made(of: str) -> PodRequest | Refusal | None:
        builder = pod("p")
        for at in range(5):
            words = ",".join(f"GPU-{of.format(at)}-{n}" for n in range(250))
            builder = builder.container(f"c{at}").asks("nvidia.com/gpumem", 1)
            builder = builder.annotated(f"{names.USE_UUIDS}.c{at}", words)
        return DIALECTS.read(builder.json())

    assert isinstance(made("x"), PodRequest)
    assert made("{}") == Refusal("spec.containers", "1250 models and UUIDs", "name at most 1000 in all lists together")


# -- what nodes are chosen by -------------------------------------------------------------------------------------


def expressions(number: int, kind: str = "matchExpressions") -> dict[str, Any]:
    return {kind: [{"key": f"k{at}", "operator": "Exists"} for at in range(number)]}


SELECTING = {
    "nothing": (pod("p"), None),
    "a thousand node names": (
        pod("p").affinity({"matchExpressions": [{"key": "h", "operator": "In", "values": ["n"] * 997}]}),
        None,
    ),
    "8,000 expressions": (
        pod("p").affinity(expressions(8_000)),
        Refusal(AFFINITY, "8000 expressions and values", "a pod with a GPU share has at most 1000"),
    ),
    "one value too many, with the expression": (
        pod("p").affinity({"matchExpressions": [{"key": "h", "operator": "In", "values": ["n"] * 1000}]}),
        Refusal(AFFINITY, "1001 expressions and values", "a pod with a GPU share has at most 1000"),
    ),
    "many empty terms": (
        pod("p").affinity(*[{}] * 101),
        Refusal(AFFINITY, "101 terms", "a pod with a GPU share has at most 100"),
    ),
    "many fields": (
        pod("p").affinity(*[expressions(60, "matchFields")] * 2),
        Refusal(AFFINITY, "120 expressions in matchFields", "a pod with a GPU share has at most 100"),
    ),
    "a long nodeSelector": (
        pod("p").spec(nodeSelector={f"k{at}": "v" for at in range(1001)}),
        Refusal(
            "spec.nodeSelector",
            "1001 labels, with the expressions of the affinity",
            "a pod with a GPU share has at most 1000",
        ),
    ),
    "many tolerations": (
        pod("p").spec(tolerations=[{"operator": "Exists"}] * 999),
        Refusal(
            "spec.tolerations",
            "1001 tolerations, with what selects nodes",
            "a pod with a GPU share has at most 1000",
        ),
    ),
    "few, and long": (
        pod("p").spec(nodeSelector={f"{at}{'k' * 300}": "v" * 63 for at in range(200)}),
        Refusal(
            "spec.affinity",
            "73246 characters, with nodeSelector and tolerations",
            "a pod with a GPU share has at most 65536",
        ),
    ),
    "many host ports": (
        pod("p").container("c", ports=[{"containerPort": at + 1, "hostPort": at + 1} for at in range(513)]),
        Refusal("spec.containers[].ports", "513 host ports", "a pod with a GPU share has at most 512"),
    ),
    "many ports that are no host ports": (
        pod("p").container("c", ports=[{"containerPort": at + 1} for at in range(513)]),
        None,
    ),
    "many ports on the host's network": (
        pod("p").container("c", ports=[{"containerPort": at + 1} for at in range(513)]).spec(hostNetwork=True),
        Refusal("spec.containers[].ports", "513 host ports", "a pod with a GPU share has at most 512"),
    ),
    "many claims": (
        pod("p").spec(resourceClaims=[{"name": f"c{at}"} for at in range(65)]),
        Refusal("spec.resourceClaims", "65 claims", "a pod with a GPU share has at most 64"),
    ),
    "many gates": (
        pod("p").gated(*(f"g{at}" for at in range(65))),
        Refusal("spec.schedulingGates", "65 gates", "a pod with a GPU share has at most 64"),
    ),
}


@pytest.mark.parametrize(("made", "wanted"), SELECTING.values(), ids=SELECTING.keys())
def test_what_a_pod_is_placed_by(made: PodBuilder, wanted: Refusal | None) -> None:
    assert bounds.problem(made.json()) == wanted


# -- annotations --------------------------------------------------------------------------------------------------

SMALL = PodRequest("native", (FractionRequest("main", memory=MIB, cores=1),))
LARGE = PodRequest("native", tuple(FractionRequest(f"{'c' * 60}{at}", 4, memory=MIB) for at in range(64)))


@pytest.mark.parametrize("number", [1, 64])
def test_a_share_of_many_containers_fits_among_annotations(number: int) -> None:
    request = PodRequest("native", LARGE.containers[:number])
    assert bounds.annotations_problem(pod("p").json(), request) is None


def test_annotations_that_leave_the_share_no_room_are_refused() -> None:
    made = pod("p").annotated("a/long", "x" * (255 << 10)).annotated("a/short", "x").json()
    assert bounds.annotations_problem(made, SMALL) == Refusal(
        "metadata.annotations",
        "261134 bytes, and up to 1748 that the share adds",
        "Kubernetes takes 262144 in all: shorten metadata.annotations[a/long]",
    )


def test_annotations_of_ours_are_replaced_and_so_not_counted() -> None:
    made = pod("p").annotated(names.ALLOCATION, "x" * (255 << 10)).annotated("cdi.k8s.io/x", "x" * (255 << 10)).json()
    assert bounds.annotations_problem(made, SMALL) is None


# -- pods stored before, or without admission ---------------------------------------------------------------------

STORED = {
    "too many containers": PodRequest("native", tuple(FractionRequest(f"c{at}", memory=1) for at in range(65))),
    "too many GPUs": PodRequest("native", tuple(FractionRequest(f"c{at}", 64, memory=1) for at in range(5))),
    "too many wishes": PodRequest(
        "native", (FractionRequest("c", memory=1, wishes=Wishes(use_uuids=tuple(map(str, range(513))))),)
    ),
    "too long a wish": PodRequest("native", (FractionRequest("c", memory=1, wishes=Wishes(("x" * 129,))),)),
    "too many wishes in all": PodRequest(
        "native",
        tuple(
            FractionRequest(f"c{at}", memory=1, wishes=Wishes(tuple(f"{at}-{n}" for n in range(500))))
            for at in range(3)
        ),
    ),
}


@pytest.mark.parametrize("request_", STORED.values(), ids=STORED.keys())
def test_a_stored_request_beyond_the_bounds_is_none(request_: PodRequest) -> None:
    with pytest.raises(Malformed):
        codec.request_from_text(codec.request_to_text(request_))


def test_containers_with_equal_wishes_share_them() -> None:
    wishes = Wishes(use_uuids=("GPU-1", "GPU-2"))
    request = PodRequest("native", tuple(FractionRequest(c, memory=1, wishes=wishes) for c in "ab"))
    first, second = codec.request_from_text(codec.request_to_text(request)).containers
    assert first.wishes == wishes
    assert first.wishes is second.wishes


def test_a_waiting_pod_beyond_the_bounds_is_trimmed_to_who_it_is_and_why() -> None:
    made = pod("p").uid("u").gated().affinity(expressions(8_000)).annotated("a", "b").json()
    trimmed = pods.trim(made)
    assert trimmed == {
        "metadata": {k: made["metadata"][k] for k in ("name", "namespace", "uid", "creationTimestamp")},
        "spec": {"schedulingGates": [{"name": str(names.GATE)}]},
        "status": {},
        "beyond": f"{AFFINITY}: found 8000 expressions and values; a pod with a GPU share has at most 1000",
    }
    assert pods.beyond(trimmed) == trimmed["beyond"]


def test_a_pod_that_runs_is_not_measured() -> None:
    trimmed = pods.trim(pod("p").on("n").affinity(expressions(8_000)).json())
    assert pods.beyond(trimmed) == ""
    assert trimmed["spec"]["nodeName"] == "n"


def test_the_outline_of_a_pod_is_small_whatever_the_pod_is() -> None:
    made = pod("p", "team").uid("u").gated().affinity(expressions(990)).annotated("a", "b" * 100_000)
    for at in range(500):
        made = made.labelled(f"l{at}", "v")
    made = made.spec(preemptionPolicy="Never")
    outline = pods.outline(pods.trim(made.json()))
    assert len(json.dumps(outline)) < 600
    assert pods.gates(outline) == (names.GATE,)
    assert (pods.key(outline), pods.uid(outline)) == ("team/p", "u")
