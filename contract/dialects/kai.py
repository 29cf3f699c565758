"""
KAI-Scheduler: annotations of the pod, `gpu-fraction` of one card's memory or `gpu-memory` in MiB.

One container gets the share: the first app container, or the one that `gpu-fraction-container-name` names, which may be
an init container. `gpu-fraction-num-devices` asks for the same share of several cards. Fraction and memory exclude each
other, and whole cards by `nvidia.com/gpu` exclude both, as in that system's own admission. It counts no cores, so none
are reserved. Names are those of its `pkg/common/constants/constants.go`. A fraction is rounded down to whole percents.
"""

from __future__ import annotations

import math

from contract.dialects.base import (
    ANNOTATION,
    Asking,
    Dialect,
    Example,
    PodReader,
    ReadingRefused,
    Word,
    annotation_field,
    pod_request,
    too_large,
    wishes,
)
from contract.encoding import quantity
from contract.encoding.reading import shown
from contract.model import MOST_GPUS, MOST_MEMORY, WHOLE, FractionRequest, PodRequest

FRACTION, MEMORY = "gpu-fraction", "gpu-memory"
DEVICES, CONTAINER = "gpu-fraction-num-devices", "gpu-fraction-container-name"
SCHEDULER = "kai-scheduler"
_MOST_MIB = quantity.mib(MOST_MEMORY)


def _read(context: PodReader) -> PodRequest | None:
    named = [key for key in (FRACTION, MEMORY) if context.annotation(key)]
    if len(named) > 1:
        raise ReadingRefused(annotation_field(MEMORY), f"beside {FRACTION}", "keep one of the two")
    if not named:
        for key in (FRACTION, MEMORY):
            if key in context.annotations:
                raise ReadingRefused(
                    annotation_field(key), shown(context.annotation(key)), "give an amount, or remove the annotation"
                )
        return None
    warnings: list[str] = []
    percent = _percent(context, warnings) if named == [FRACTION] else 0
    memory = 0 if percent else _number(context, MEMORY, _MOST_MIB, "MiB, such as 4000") * quantity.MIB
    count = _number(context, DEVICES, MOST_GPUS, f"GPUs from 1 to {MOST_GPUS}") if context.annotation(DEVICES) else 1
    asking = _container(context)
    fraction = FractionRequest(
        container=asking.name,
        count=count,
        memory=memory,
        percent=percent,
        init=asking.init,
        wishes=wishes(context, asking),
    )
    return pod_request("kai", context, [fraction], warnings=warnings)


def _percent(context: PodReader, warnings: list[str]) -> int:
    text, cure = context.annotation(FRACTION), "give a number between 0 and 1, from 0.01 up, such as 0.5"
    try:
        exact = quantity.parse(text) * WHOLE
    except quantity.BadQuantity:
        raise ReadingRefused(annotation_field(FRACTION), shown(text), cure) from None
    if not 1 <= exact < WHOLE:
        raise ReadingRefused(annotation_field(FRACTION), shown(text), cure)
    percent = math.floor(exact)
    if percent != exact:
        warnings.append(
            f"{annotation_field(FRACTION)}: {shown(text)} is served as {percent} percent of the card's memory"
        )
    return percent


def _number(context: PodReader, key: str, most: int, what: str) -> int:
    text = context.annotation(key)
    number = quantity.integer_or(text, 0)
    if number > most == _MOST_MIB:
        raise ReadingRefused(
            annotation_field(key), shown(text), too_large(f"{most}, which is {quantity.format_bytes(MOST_MEMORY)}")
        )
    if not 1 <= number <= most:
        raise ReadingRefused(annotation_field(key), shown(text), f"give a whole number of {what}")
    return number


def _container(context: PodReader) -> Asking:
    wanted, all_of_them = context.annotation(CONTAINER), tuple(context.containers())
    if not wanted:
        found = [asking for asking in all_of_them if asking.path.startswith("spec.containers")]
    else:
        found = [asking for asking in all_of_them if asking.name == wanted]
    if not found:
        raise ReadingRefused(
            annotation_field(CONTAINER), shown(wanted) if wanted else "nothing", "name one of the pod's containers"
        )
    return found[0]


DIALECT = Dialect(
    name="kai",
    title="KAI-Scheduler",
    resources=(),
    annotations=(FRACTION, MEMORY),
    read=_read,
    schedulers=(SCHEDULER,),
    about=__doc__ or "",
    glossary=(
        Word(FRACTION, ANNOTATION, "share of the card's memory, more than 0 and less than 1: `0.5`"),
        Word(MEMORY, ANNOTATION, "MiB on the card, a plain number"),
        Word(DEVICES, ANNOTATION, f"number of distinct GPUs, 1 to {MOST_GPUS}, with that share of each; 1 if absent"),
        Word(CONTAINER, ANNOTATION, "the container that has the share; the first app container if absent"),
    ),
    examples=(
        Example({}, annotations={FRACTION: "0.5"}),
        Example({}, annotations={MEMORY: "4000"}),
        Example({}, annotations={FRACTION: "0.25", DEVICES: "2"}),
        Example({}, annotations={FRACTION: "0.333"}),
        Example({}, annotations={FRACTION: "1"}),
        Example({}, annotations={FRACTION: "0.5", CONTAINER: "other"}),
        Example({"nvidia.com/gpu": "1"}, annotations={FRACTION: "0.5"}),
    ),
)
