"""The minimum share of a GPU, in every dialect, and for requests that a pod's author wrote."""

from __future__ import annotations

from typing import Any

import pytest

from contract import bounds, names
from contract.dialects import DIALECTS
from contract.dialects.base import Refusal
from contract.encoding.quantity import MIB
from contract.model import FractionRequest, PodRequest
from contract.options import Options
from tests.builders import PodBuilder, pod

JSON = dict[str, Any]
BOUNDED = Options(least_memory=512 * MIB, least_percent=5)
TOO_LITTLE: dict[str, tuple[PodBuilder, str]] = {
    "native bytes": (
        pod("p").asks("gpufraction.io/gpu-memory", "100Mi"),
        "spec.containers[0].resources.limits[gpufraction.io/gpu-memory]: found 100Mi on each GPU; request at least "
        "512Mi, the smallest share of a GPU here",
    ),
    "on each of several cards": (
        pod("p").asks("gpufraction.io/gpu-memory", "511Mi").asks("gpufraction.io/gpu-count", 2),
        "spec.containers[0].resources.limits[gpufraction.io/gpu-memory]: found 511Mi on each GPU; request at least "
        "512Mi, the smallest share of a GPU here",
    ),
    "native percent": (
        pod("p").asks("gpufraction.io/gpu-percent", 4),
        "spec.containers[0].resources.limits[gpufraction.io/gpu-percent]: found 4 % of each GPU; request at "
        "least 5 %, the smallest share of a GPU here",
    ),
    "cores that stand for memory": (
        pod("p").asks("gpufraction.io/gpu-cores", 4),
        "spec.containers[0].resources.limits[gpufraction.io/gpu-cores]: found 4 % of each GPU; request at "
        "least 5 %, the smallest share of a GPU here",
    ),
    "HAMi, with all cores": (
        pod("p").asks("nvidia.com/gpu", 1).asks("nvidia.com/gpumem", 1).asks("nvidia.com/gpucores", 100),
        "spec.containers[0].resources.limits[nvidia.com/gpumem]: found 1Mi on each GPU; request at least "
        "512Mi, the smallest share of a GPU here",
    ),
    "HAMi by percent": (
        pod("p").asks("nvidia.com/gpumem-percentage", 1),
        "spec.containers[0].resources.limits[nvidia.com/gpumem-percentage]: found 1 % of each GPU; request at least "
        "5 %, the smallest share of a GPU here",
    ),
    "Elastic GPU": (
        pod("p").asks("elasticgpu.io/gpu-memory", 100),
        "spec.containers[0].resources.limits[elasticgpu.io/gpu-memory]: found 100Mi on each GPU; request at least "
        "512Mi, the smallest share of a GPU here",
    ),
    "nano-gpu": (
        pod("p").asks("nano-gpu/gpu-percent", 4),
        "spec.containers[0].resources.limits[nano-gpu/gpu-percent]: found 4 % of each GPU; request at least "
        "5 %, the smallest share of a GPU here",
    ),
    "by annotation": (
        pod("p").annotated("gpu-memory", "100").container("main"),
        "spec.containers[0]: found 100Mi on each GPU; request at least 512Mi, the smallest share of a GPU here",
    ),
    "the second container": (
        pod("p").asks("gpufraction.io/gpu-memory", "1Gi").container("side").asks("gpufraction.io/gpu-memory", "1Mi"),
        "spec.containers[1].resources.limits[gpufraction.io/gpu-memory]: found 1Mi on each GPU; request at least "
        "512Mi, the smallest share of a GPU here",
    ),
    "an init container": (
        pod("p").init("first").asks("gpufraction.io/gpu-memory", "1Mi").container("main"),
        "spec.initContainers[0].resources.limits[gpufraction.io/gpu-memory]: found 1Mi on each GPU; request at least "
        "512Mi, the smallest share of a GPU here",
    ),
}


@pytest.mark.parametrize(("made", "message"), TOO_LITTLE.values(), ids=TOO_LITTLE.keys())
def test_less_than_the_least_share_is_refused(made: PodBuilder, message: str) -> None:
    request = DIALECTS.read(made.json(), BOUNDED)
    assert isinstance(request, PodRequest), request
    assert str(bounds.least_problem(made.json(), request, BOUNDED)) == message
    assert bounds.least_problem(made.json(), request, Options()) is None


def test_exactly_the_least_share_is_served() -> None:
    for resource, amount in (("gpufraction.io/gpu-memory", "512Mi"), ("gpufraction.io/gpu-percent", "5")):
        made = pod("p").asks(resource, amount).json()
        request = DIALECTS.read(made, BOUNDED)
        assert isinstance(request, PodRequest)
        assert bounds.least_problem(made, request, BOUNDED) is None


@pytest.mark.parametrize("options", [Options(), Options(least_memory=0, least_percent=0)], ids=["as set", "none"])
@pytest.mark.parametrize("dialect", ["native", "hami", "made-up"])
def test_a_byte_is_never_a_share(dialect: str, options: Options) -> None:
    """The annotation of a request may still contain what no dialect would produce."""
    made = pod("p").asks(names.GPU_MEMORY, "1").json()
    request = PodRequest(dialect, (FractionRequest("main", memory=1),))
    assert bounds.least_problem(made, request, options) == Refusal(
        "spec.containers[0].resources.limits[gpufraction.io/gpu-memory]",
        "1 on each GPU",
        "request at least 1Mi, the smallest share of a GPU here",
    )


def test_a_claim_says_how_much_elsewhere() -> None:
    request = PodRequest("claims", (FractionRequest("main"),), claim="c")
    assert bounds.least_problem(pod("p").json(), request, BOUNDED) is None
