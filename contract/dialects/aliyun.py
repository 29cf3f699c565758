"""
Aliyun gpushare: `aliyun.com/gpu-mem` in GiB (or MiB), on ONE GPU for all containers of the pod.

`aliyun.com/gpu-count: 1` has no effect. N above 1, in the limits or in the commercial edition's pod label, means N GPUs
with 1/N of the memory on each. A GPU's units are its memory rounded down, so a T4 of 15109 MiB has 14.

`ALIYUN_COM_GPU_MEM_ASSIGNED` is `false` when the pod is placed and `true` once its containers run.
`ALIYUN_COM_GPU_MEM_ASSUME_TIME` is the time of the placement in ns.
"""

# Names, units and the environment are those of gpushare-scheduler-extender (`pkg/utils/const.go`) and
# gpushare-device-plugin (`pkg/gpu/nvidia`). Users of that system report that a count of 1 has no effect.

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from contract.dialects.base import (
    JSON,
    LABEL,
    LIMITS,
    Charge,
    ContainerReader,
    Decided,
    Dialect,
    Example,
    PodReader,
    ReadingRefused,
    Rendering,
    Word,
    env_from_annotation,
    indexes,
    pod_request,
    wishes,
)
from contract.encoding import quantity
from contract.encoding.reading import shown
from contract.model import MOST_GPUS, MOST_MEMORY, WHOLE, FractionRequest, PodRequest, Wishes

MEM, COUNT, CORE = "aliyun.com/gpu-mem", "aliyun.com/gpu-count", "aliyun.com/gpu-core.percentage"
_PREFIX = "ALIYUN_COM_GPU_MEM_"
IDX, DEV, POD, CONTAINER = (_PREFIX + part for part in ("IDX", "DEV", "POD", "CONTAINER"))
ASSIGNED, ASSUME_TIME = _PREFIX + "ASSIGNED", _PREFIX + "ASSUME_TIME"
ALLOCATION = "scheduler.framework.gpushare.allocation"
"""A value of the commercial edition, which the inspect tool reads first: `{container index: {GPU index: units}}`."""
_COUNT_CURE = f"give a whole number from 1 to {MOST_GPUS}"
_LABEL = re.compile("0*([0-9]{1,2})")


def _read(context: PodReader) -> PodRequest | None:
    labelled = _labelled_count(context)
    fractions: list[FractionRequest] = []
    for container in context.containers():
        fraction = _fraction(container, labelled, context.options.aliyun_unit, wishes(context, container))
        if fraction is not None:
            fractions.append(fraction)
    _together(context, fractions)
    return pod_request("aliyun", context, fractions, same_gpus=True, unit=context.options.aliyun_unit)


def _together(context: PodReader, fractions: Sequence[FractionRequest]) -> None:
    """
    All containers need one count, and at no time more cores than a GPU has. Each init container ends before the next.
    """
    containers = {container.name: container for container in context.containers()}
    together = peak = 0
    for fraction in fractions:
        container = containers[fraction.container]
        if fraction.count != fractions[0].count:
            found = f"{fraction.count} GPUs, while container {fractions[0].container} has {fractions[0].count}"
            raise ReadingRefused(container.field(COUNT), found, f"give every container of the pod the same {COUNT}")
        peak = max(peak, together + fraction.cores)
        together += 0 if fraction.init else fraction.cores
        if peak > WHOLE:
            found = f"{peak} percent of one GPU together with the preceding containers"
            raise ReadingRefused(
                container.field(CORE), found, f"give at most {WHOLE} in all, since a pod is on one GPU"
            )


def _labelled_count(context: PodReader) -> int:
    text = context.label(COUNT)
    if not text:
        return 1
    match = _LABEL.fullmatch(text)
    count = int(match[1]) if match else 0
    if not 1 <= count <= MOST_GPUS:
        raise ReadingRefused(f"metadata.labels[{COUNT}]", shown(text), _COUNT_CURE)
    return count


def _fraction(container: ContainerReader, labelled: int, unit: int, wished: Wishes) -> FractionRequest | None:
    unit_name = "GiB" if unit == quantity.GIB else "MiB"
    most, cure = MOST_MEMORY // unit, f"give whole {unit_name} without a suffix, such as 5"
    largest = f"{most}, which is {quantity.format_bytes(most * unit)}"
    units = container.amount(MEM, least=0, most=most, cure=cure, largest=largest, units=True)
    named = container.amount(COUNT, least=0, most=MOST_GPUS, cure=_COUNT_CURE) or 0
    cores = container.amount(CORE, least=0, most=WHOLE, cure="give a whole percentage from 0 to 100")
    if not units:
        if named or cores:
            raise ReadingRefused(
                container.field(MEM), "nothing", f"name the memory in {unit_name} together with {COUNT} or {CORE}"
            )
        return None
    count = max(named, labelled)
    if named > 1 and labelled > 1 and named != labelled:
        raise ReadingRefused(
            container.field(COUNT), f"{named}, and {labelled} in the pod's label {COUNT}", "keep one of them"
        )
    if units % count:
        fitting = (units // count + 1) * count
        raise ReadingRefused(
            container.field(MEM), f"{units} for {count} GPUs", f"give a multiple of {count}, such as {fitting}"
        )
    return FractionRequest(
        container=container.name,
        count=count,
        memory=units // count * unit,
        cores=cores or 0,
        init=container.init,
        wishes=wished,
    )


def _render(decided: Decided) -> Rendering:
    request, given = decided.request, decided.allocation.containers
    unit, shares = request.unit or quantity.GIB, given[0].shares
    pod_units = sum(f.count * f.memory // unit for f in request.containers if not f.init)
    annotations = {
        IDX: indexes(given[0]),
        DEV: str(shares[0].gpu_memory // unit),
        POD: str(pod_units or max(f.count * f.memory // unit for f in request.containers)),
        ASSIGNED: "false",
        ASSUME_TIME: str(decided.now_ns),
    }
    by_container = {
        str(decided.containers.index(container.container)): {
            str(share.index): share.memory // unit for share in container.shares
        }
        for container in given
        if container.container in decided.containers
    }
    if by_container:
        annotations[ALLOCATION] = json.dumps(by_container, separators=(",", ":"))
    return Rendering(annotations=annotations)


def _started(annotations: Mapping[str, Any]) -> Mapping[str, str]:
    return {ASSIGNED: "true"} if annotations.get(ASSIGNED) == "false" else {}


def _environment(request: PodRequest, fraction: FractionRequest) -> list[JSON]:
    from_annotations = [env_from_annotation(name, name) for name in (IDX, POD, DEV)]
    units = fraction.memory // (request.unit or quantity.GIB)
    return [*from_annotations, {"name": CONTAINER, "value": str(units)}]


DIALECT = Dialect(
    name="aliyun",
    title="Aliyun gpushare",
    resources=(MEM, COUNT, CORE),
    read=_read,
    together=_together,
    same_gpus=True,
    stems=("aliyun.com/gpu",),
    render=_render,
    started=_started,
    environment=_environment,
    charges=lambda options: (
        Charge(MEM, memory=options.aliyun_unit),
        Charge(CORE, cores=1, times=COUNT),
        Charge(COUNT),
    ),
    short_of_memory="Insufficient GPU Memory in one device",
    about=__doc__ or "",
    glossary=(
        Word(
            MEM, LIMITS, "whole GiB of memory (MiB by setting), over all the GPUs of the container; 0 asks for nothing"
        ),
        Word(COUNT, LIMITS, f"1 has no effect; N up to {MOST_GPUS} divides the memory over N GPUs"),
        Word(COUNT, LABEL, "the same for every container of the pod"),
        Word(CORE, LIMITS, "percent of each GPU's multiprocessors, 0 to 100; if absent, no cores are reserved"),
    ),
    examples=(
        Example({MEM: "5"}),
        Example({MEM: "8", COUNT: "4"}),
        Example({MEM: "8"}, labels={COUNT: "4"}),
        Example({MEM: "5", CORE: "30"}),
        Example({MEM: "9", COUNT: "4"}),
        Example({MEM: "5Gi"}),
        Example({COUNT: "1"}),
    ),
)
