"""
KAI-Scheduler: annotations of the pod, `gpu-fraction` of one GPU's memory or `gpu-memory` in MiB.

One container gets the share. Fraction and memory exclude each other, and whole GPUs by `nvidia.com/gpu` exclude both,
as in that system. It counts no cores, so none are reserved. A fraction is rounded down to whole percents.

The annotations that name a container are those of release 0.18. Two spellings of one amount must agree, since that
system writes both.
"""

# The names are those of that system's `pkg/common/constants/constants.go`.

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from contract.dialects.base import (
    ANNOTATION,
    ContainerReader,
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
FRACTION_LIMIT, MEMORY_LIMIT = "gpu-fraction.limit", "gpu-memory.limit"
DEVICES, CONTAINER = "gpu-fraction-num-devices", "gpu-fraction-container-name"
BY_CONTAINER, PORTION_BY_CONTAINER = "nvidia.com/container.", "kai.scheduler/container."
_REQUEST, _LIMIT, _PORTION_LIMIT = ".gpu-memory.request", ".gpu-memory.limit", ".gpu-memory.portion.limit"
_GIVEN_DEVICES = ".gpus.devices"
SCHEDULER = "kai-scheduler"
_MOST_MIB = quantity.mib(MOST_MEMORY)
_AMOUNT = "give an amount, or remove the annotation"


@dataclass(frozen=True, slots=True)
class _Named:
    """The annotations that name their container; each empty where it is absent."""

    container: str = ""
    request: str = ""
    limit: str = ""
    portion: str = ""

    @property
    def any(self) -> str:
        """One of them."""
        return self.request or self.limit or self.portion


@dataclass(frozen=True, slots=True)
class _Amount:
    """An amount, and the annotation that has it."""

    key: str
    value: int


def _read(context: PodReader) -> PodRequest | None:
    named, warnings = _named(context), list[str]()
    percent = _agreeing(context, _percents(context, (FRACTION,), warnings))
    memory = _agreeing(context, [*_mebibytes(context, MEMORY), *_quantities(context, (named.request,))])
    part = _agreeing(context, _percents(context, (FRACTION_LIMIT, named.portion), warnings))
    limit = _agreeing(context, _quantities(context, (MEMORY_LIMIT, named.limit)))
    if memory is None and percent is None and limit is not None and limit.key == named.limit:
        memory = limit
    if memory is not None and percent is not None:
        raise ReadingRefused(annotation_field(memory.key), f"together with {percent.key}", "keep one of the two")
    request = memory or percent
    if request is None:
        _refuse_alone(context, part or limit)
        return None
    limits = (limit, part, MEMORY_LIMIT) if memory else (part, limit, FRACTION_LIMIT)
    count = _number(context, DEVICES, MOST_GPUS, f"GPUs from 1 to {MOST_GPUS}") if context.annotation(DEVICES) else 1
    container = _container(context, named)
    fraction = FractionRequest(
        container=container.name,
        count=count,
        memory=memory.value if memory else 0,
        percent=percent.value if percent else 0,
        init=container.init,
        wishes=wishes(context, container),
        limit=_above(context, request, *limits),
    )
    return pod_request("kai", context, [fraction], warnings=warnings)


def _named(context: PodReader) -> _Named:
    """The annotations with a container's name; all must name one. Raises `ReadingRefused`."""
    found: dict[str, dict[str, str]] = {}
    for key in sorted(context.annotations):
        for prefix, suffix, field in (
            (BY_CONTAINER, _REQUEST, "request"),
            (BY_CONTAINER, _LIMIT, "limit"),
            (PORTION_BY_CONTAINER, _PORTION_LIMIT, "portion"),
        ):
            if key.startswith(prefix) and key.endswith(suffix) and len(key) > len(prefix) + len(suffix):
                found.setdefault(key[len(prefix) : -len(suffix)], {})[field] = key
        if key.startswith(BY_CONTAINER) and key.endswith(_GIVEN_DEVICES):
            raise ReadingRefused(
                annotation_field(key), shown(context.annotation(key)), "remove it: only a scheduler chooses the GPUs"
            )
    if len(found) > 1:
        first, second, *_ = found
        other = next(iter(found[second].values()))
        raise ReadingRefused(
            annotation_field(other), f"together with an amount for container {first}", "name one container"
        )
    return next((_Named(container, **keys) for container, keys in found.items()), _Named())


def _written(context: PodReader, amount: _Amount) -> str:
    return shown(context.annotation(amount.key))


def _agreeing(context: PodReader, amounts: list[_Amount]) -> _Amount | None:
    """The one amount, None for none. Raises `ReadingRefused` where two spellings of it differ."""
    for other in amounts[1:]:
        if other.value != amounts[0].value:
            found = f"{_written(context, other)}, while {amounts[0].key} is {_written(context, amounts[0])}"
            raise ReadingRefused(annotation_field(other.key), found, "the two mean the same: keep one")
    return amounts[0] if amounts else None


def _refuse_alone(context: PodReader, limit: _Amount | None) -> None:
    """Raises `ReadingRefused` for a limit without a request, and for an empty request."""
    if limit is not None:
        request = MEMORY if limit.key == MEMORY_LIMIT else FRACTION
        raise ReadingRefused(
            annotation_field(limit.key),
            f"{_written(context, limit)} without {request}",
            f"give {request} too, which is the amount that is booked",
        )
    for key in (FRACTION, MEMORY):
        if key in context.annotations:
            raise ReadingRefused(annotation_field(key), shown(context.annotation(key)), _AMOUNT)


def _above(context: PodReader, request: _Amount, limit: _Amount | None, other: _Amount | None, cure: str) -> int:
    """The limit above the request, 0 for none. `other`: the limit in the other unit. Raises `ReadingRefused`."""
    if other is not None:
        raise ReadingRefused(annotation_field(other.key), f"together with {request.key}", f"give {cure} instead")
    if limit is None or limit.value == request.value:
        return 0
    if limit.value < request.value:
        raise ReadingRefused(
            annotation_field(limit.key),
            f"{_written(context, limit)}, less than {request.key}, which is {_written(context, request)}",
            f"give at least {request.key}, or remove the limit",
        )
    return limit.value


def _percents(context: PodReader, keys: tuple[str, ...], warnings: list[str]) -> list[_Amount]:
    found = []
    for key in keys:
        text = context.annotation(key) if key else ""
        if text or (key != FRACTION and key in context.annotations):
            exact = _part(key, text)
            percent = math.floor(exact)
            found.append(_Amount(key, percent))
            if percent != exact:
                warnings.append(
                    f"{annotation_field(key)}: {shown(text)} is served as {percent} percent of the GPU's memory"
                )
    return found


def _part(key: str, text: str) -> Fraction:
    cure = "give a number from 0.01 to less than 1, such as 0.5"
    try:
        exact = quantity.parse(text) * WHOLE
    except quantity.BadQuantity:
        raise ReadingRefused(annotation_field(key), shown(text), cure) from None
    if not 1 <= exact < WHOLE:
        raise ReadingRefused(annotation_field(key), shown(text), cure)
    return exact


def _quantities(context: PodReader, keys: tuple[str, ...]) -> list[_Amount]:
    """Memory with its unit."""
    found = []
    for key in keys:
        if key and key in context.annotations:
            text = context.annotation(key)
            value = quantity.integer_or(text, 0)
            if value > MOST_MEMORY:
                largest = too_large(quantity.format_bytes(MOST_MEMORY))
                raise ReadingRefused(annotation_field(key), shown(text), largest)
            if value < quantity.MIB or text.isdigit():
                cure = "give memory with its unit, at least 1Mi, such as 8Gi"
                raise ReadingRefused(annotation_field(key), shown(text), cure)
            found.append(_Amount(key, value))
    return found


def _mebibytes(context: PodReader, key: str) -> list[_Amount]:
    if not context.annotation(key):
        return []
    return [_Amount(key, _number(context, key, _MOST_MIB, "MiB, such as 4000") * quantity.MIB)]


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


def _container(context: PodReader, named: _Named) -> ContainerReader:
    wanted, all_of_them = context.annotation(CONTAINER), tuple(context.containers())
    if wanted and named.container not in ("", wanted):
        raise ReadingRefused(
            annotation_field(CONTAINER), f"{shown(wanted)}, together with {named.any}", "name the container once"
        )
    field, wanted = (CONTAINER, wanted) if wanted else (named.any or CONTAINER, named.container)
    if not wanted:
        found = [container for container in all_of_them if container.path.startswith("spec.containers")]
    else:
        found = [container for container in all_of_them if container.name == wanted]
    if not found:
        raise ReadingRefused(
            annotation_field(field), shown(wanted) if wanted else "nothing", "name one of the pod's containers"
        )
    return found[0]


DIALECT = Dialect(
    name="kai",
    title="KAI-Scheduler",
    resources=(),
    annotations=(FRACTION, MEMORY, FRACTION_LIMIT, MEMORY_LIMIT),
    annotation_prefixes=(BY_CONTAINER, PORTION_BY_CONTAINER),
    read=_read,
    schedulers=(SCHEDULER,),
    about=__doc__ or "",
    glossary=(
        Word(FRACTION, ANNOTATION, "share of the GPU's memory, more than 0 and less than 1: `0.5`"),
        Word(MEMORY, ANNOTATION, "MiB on the GPU, a plain number"),
        Word(DEVICES, ANNOTATION, f"number of distinct GPUs, 1 to {MOST_GPUS}, with that share of each; 1 if absent"),
        Word(
            CONTAINER,
            ANNOTATION,
            "the container that gets the share, perhaps an init container; the first app container if absent",
        ),
        Word(FRACTION_LIMIT, ANNOTATION, "with `gpu-fraction`: the memory limit, at least the request and less than 1"),
        Word(
            MEMORY_LIMIT, ANNOTATION, "with `gpu-memory`: the memory limit with its unit, at least the request: `8Gi`"
        ),
        Word(
            f"{BY_CONTAINER}<key>",
            ANNOTATION,
            "`<container>.gpu-memory.request`: memory on the card, a quantity such as `8Gi`; "
            "`<container>.gpu-memory.limit`: the memory limit, and also the request if there is none",
        ),
        Word(
            f"{PORTION_BY_CONTAINER}<key>",
            ANNOTATION,
            "`<container>.gpu-memory.portion.limit`: the same as `gpu-fraction.limit`",
        ),
    ),
    examples=(
        Example({}, annotations={FRACTION: "0.5"}),
        Example({}, annotations={MEMORY: "4000"}),
        Example({}, annotations={FRACTION: "0.25", DEVICES: "2"}),
        Example({}, annotations={FRACTION: "0.333"}),
        Example({}, annotations={MEMORY: "4000", MEMORY_LIMIT: "8Gi"}),
        Example(
            {},
            annotations={f"{BY_CONTAINER}main{_REQUEST}": "8Gi", f"{BY_CONTAINER}main{_LIMIT}": "24Gi"},
        ),
        Example({}, annotations={FRACTION: "1"}),
        Example({}, annotations={FRACTION: "0.5", CONTAINER: "other"}),
    ),
)
