"""
nano-gpu: `nano-gpu/gpu-percent`, 1 to 100, of both the memory and the cores of one GPU.

The resource was called `elastic-gpu/gpu-percent` for some months of 2022. More than 100, which that system accepted and
never scheduled, is refused.
"""

from __future__ import annotations

from contract.dialects.base import (
    LIMITS,
    ContainerReader,
    Dialect,
    Example,
    PodReader,
    Word,
    assumed,
    pod_request,
    wishes,
)
from contract.model import WHOLE, FractionRequest, PodRequest, Wishes

PERCENT, PERCENT_2022 = "nano-gpu/gpu-percent", "elastic-gpu/gpu-percent"
ASSUME, CONTAINER_PREFIX = "nano-gpu/assume", "nano-gpu/container-"
_CURE = "give a whole number from 1 to 100, which is one whole card"
_NO_GPU = "-1"
"""The value that that system writes for an app container without a share."""


def _read(context: PodReader) -> PodRequest | None:
    found = (_fraction(container, wishes(context, container)) for container in context.containers())
    return pod_request("nano", context, [fraction for fraction in found if fraction is not None])


def _fraction(container: ContainerReader, wished: Wishes) -> FractionRequest | None:
    percent = container.amount(container.spelled(PERCENT, PERCENT_2022), least=1, most=WHOLE, cure=_CURE)
    if percent is None:
        return None
    return FractionRequest(container=container.name, percent=percent, cores=percent, init=container.init, wishes=wished)


DIALECT = Dialect(
    name="nano",
    title="nano-gpu",
    resources=(PERCENT, PERCENT_2022),
    read=_read,
    stems=("nano-gpu/gpu", "elastic-gpu/gpu"),
    render=lambda decided: assumed(ASSUME, CONTAINER_PREFIX, decided, without=_NO_GPU),
    about=__doc__ or "",
    glossary=(
        Word(PERCENT, LIMITS, "percent of one GPU's memory and of its cores, 1 to 100"),
        Word(PERCENT_2022, LIMITS, "the same"),
    ),
    examples=(Example({PERCENT: "20"}), Example({PERCENT: "120"})),
)
