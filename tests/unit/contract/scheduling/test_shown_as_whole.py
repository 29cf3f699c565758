"""What a container sees as the whole memory of a GPU, depending on what limits it on its node."""

from __future__ import annotations

from dataclasses import replace

import pytest

from contract.model import Delivery, FractionRequest, Gpu, GpuShare, NodeState, PodRequest
from contract.scheduling import fit

CARD = Gpu("GPU-0", 0, "Tesla T4", 16 << 30, 15 << 30)
SLICE = replace(CARD, uuid="MIG-0", parent="GPU-0")


def on(*levels: str, delivery: Delivery | None = None) -> NodeState:
    return NodeState("n1", gpus=(CARD,), isolation=levels, delivery=delivery)


@pytest.mark.parametrize(
    ("node", "shown"),
    [
        (on(), False),
        (on("watch"), False),
        (on("preload", "watch"), True),
        (on("driver", "watch"), True),
        # A client of MPS sees the card's memory, whatever else limits it.
        (on("mps", "watch"), False),
        (on("driver", "mps"), False),
        # A daemon serves one GPU of the node, and the library enforces limits on the others.
        (on("preload", delivery=Delivery(("",), single=True)), False),
        (on("preload", delivery=Delivery(("",))), True),
    ],
)
def test_the_level_says_what_a_container_sees(node: NodeState, shown: bool) -> None:
    assert fit.shown_as_whole(node, CARD) is shown
    assert not fit.shown_as_whole(node, SLICE)


@pytest.mark.parametrize("levels", [("preload",), ()])
def test_a_new_share_and_one_that_was_given_earlier_say_the_same(levels: tuple[str, ...]) -> None:
    node = on(*levels)
    request = PodRequest("native", (FractionRequest("main", memory=4 << 30),))
    ((given,),) = (c.shares for c in fit.allocate(node, request, ((0,),)))
    assert given.as_whole is bool(levels)
    assert fit.shown_now(node, [replace(given, as_whole=not given.as_whole)]) == (given,)


def test_a_share_of_a_removed_gpu_is_not_shown_as_the_whole() -> None:
    lost = GpuShare("GPU-gone", 3, 1 << 30, 0, 16 << 30, as_whole=True)
    assert fit.shown_now(on("preload"), [lost]) == (replace(lost, as_whole=False),)
