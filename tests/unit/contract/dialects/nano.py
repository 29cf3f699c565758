"""Percentages of a card, as in nano-gpu: for each sentence a pod and the result of reading it."""

from __future__ import annotations

from contract.model import FractionRequest, PodRequest
from tests.builders import PodBuilder, pod
from tests.unit.contract.dialects.asking import Outcome, one, refused

GIVE_CARD = "give a whole number from 1 to 100, which is one whole card"


def nano(percent: int | str) -> PodBuilder:
    return pod("p").asks("nano-gpu/gpu-percent", percent)


NANO: dict[str, tuple[PodBuilder, Outcome]] = {
    "percent of memory and cores": (nano(20), one("nano", percent=20, cores=20)),
    "all of a card may have company, as there": (nano(100), one("nano", percent=100, cores=100)),
    "the name of 2022": (pod("p").asks("elastic-gpu/gpu-percent", 20), one("nano", percent=20, cores=20)),
    "containers may be on different cards": (
        pod("p").container("a").asks("nano-gpu/gpu-percent", 60).container("b").asks("nano-gpu/gpu-percent", 60),
        PodRequest(
            "nano",
            (FractionRequest("a", percent=60, cores=60), FractionRequest("b", percent=60, cores=60)),
        ),
    ),
    "more than a card": (nano(120), refused("nano-gpu/gpu-percent", "'120'", GIVE_CARD)),
    "nothing of a card": (nano(0), refused("nano-gpu/gpu-percent", "'0'", GIVE_CARD)),
    "in words": (nano("twenty"), refused("nano-gpu/gpu-percent", "'twenty'", GIVE_CARD)),
    "under both names": (
        nano(20).asks("elastic-gpu/gpu-percent", 20),
        refused("elastic-gpu/gpu-percent", "together with nano-gpu/gpu-percent", "the two mean the same: keep one"),
    ),
}
