"""Models in order of preference: the first one with room is used, and a mixture only if no model alone is enough."""

from __future__ import annotations

import pytest

from contract.encoding.protocol import Placed
from contract.scheduling.needs import MOST_MODELS
from tests.builders import PodBuilder, node, pod
from tests.unit.allocator.harness import SchedulerHarness, question

NODES = (
    node("a").gpu("Tesla T4", mib=15109),
    node("b").gpu("NVIDIA A100", mib=81920).gpu("Tesla T4", mib=15109),
    node("c").gpu("NVIDIA H100", mib=81920),
)


def wishing(models: str, mib: int = 1024) -> PodBuilder:
    return pod("p").annotated("gpufraction.io/gpu-models", models).asks("gpufraction.io/gpu-memory", f"{mib}Mi")


PLACES: dict[str, tuple[PodBuilder, list[str]]] = {
    "the first": (wishing("H100,A100"), ["NVIDIA H100"]),
    "the second, where there is none of the first": (wishing("B200,A100,T4"), ["NVIDIA A100"]),
    "the second, where the first is too small": (wishing("T4,A100", 20_000), ["NVIDIA A100"]),
    "a mixture, where no model alone has so many": (
        wishing("A100,T4").asks("gpufraction.io/gpu-count", 2),
        ["NVIDIA A100", "Tesla T4"],
    ),
    "one that is named late": (wishing(",".join(f"X{i}" for i in range(MOST_MODELS + 50)) + ",H100"), ["NVIDIA H100"]),
    "one container's wish is its own": (
        pod("p")
        .annotated("gpufraction.io/gpu-models.first", "A100,H100")
        .container("first")
        .asks("gpufraction.io/gpu-memory", "1Gi")
        .container("second")
        .asks("gpufraction.io/gpu-memory", "14Gi"),
        ["NVIDIA A100", "NVIDIA A100"],
    ),
}


@pytest.mark.parametrize(("builder", "models"), PLACES.values(), ids=PLACES.keys())
def test_which_models_are_taken(builder: PodBuilder, models: list[str]) -> None:
    model_of = {gpu.uuid: gpu.model for each in NODES for gpu in each.state().gpus}
    answer = SchedulerHarness(NODES).controller.reserve(question(builder))
    assert isinstance(answer, Placed)
    given = [share.uuid for container in answer.allocation.containers for share in container.shares]
    assert [model_of[uuid] for uuid in given] == models


def test_a_set_of_models_has_no_order() -> None:
    made = pod("p").annotated("nvidia.com/use-gputype", "H100,T4").asks("nvidia.com/gpumem", 1024)
    answer = SchedulerHarness(NODES).controller.reserve(question(made))
    assert isinstance(answer, Placed)
    assert answer.allocation.node in ("a", "b"), "the smaller card, as for any other pod"
