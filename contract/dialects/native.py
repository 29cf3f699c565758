"""
Our own dialect: quantities with units, percent or bytes, cores, count, per container.

A share by percent gets that percentage of memory and cores, unless `gpu-cores` gives another; cores alone get memory in
proportion; a count alone gets whole GPUs. Each amount is per GPU. A limit lets the container use more of the GPU while
no other pod needs it. The additional memory is not booked.
"""

from __future__ import annotations

from contract import names
from contract.dialects.base import (
    ANNOTATION,
    LIMITS,
    Charge,
    ContainerReader,
    Dialect,
    Example,
    PodReader,
    ReadingRefused,
    Word,
    pod_request,
    wishes,
)
from contract.encoding import quantity
from contract.isolation import ISOLATION, MPS, listed, quoted
from contract.model import MOST_GPUS, MOST_MEMORY, WHOLE, FractionRequest, PodRequest, Wishes

_MEMORY_CURE = "give the memory of each GPU with its unit, at least 1Mi, such as 8Gi"
_PERCENT_CURE = "give a whole number from 1 to 100"
_LIMITS = {names.GPU_MEMORY_LIMIT: names.GPU_MEMORY, names.GPU_PERCENT_LIMIT: names.GPU_PERCENT}
"""The limit above each request, in its unit."""


def _read(context: PodReader) -> PodRequest | None:
    containers = [
        _fraction(container, wishes(context, container)) for container in context.containers() if _asks(container)
    ]
    return pod_request("native", context, containers)


def _asks(container: ContainerReader) -> bool:
    return any(container.asks(resource) for resource in DIALECT.resources)


def _fraction(container: ContainerReader, wished: Wishes) -> FractionRequest:
    count = container.amount(
        names.GPU_COUNT, least=1, most=MOST_GPUS, cure=f"give a whole number from 1 to {MOST_GPUS}"
    )
    memory, percent = _memory(container, names.GPU_MEMORY), _percent(container, names.GPU_PERCENT)
    cores = _percent(container, names.GPU_CORES)
    if memory is not None and percent is not None:
        raise ReadingRefused(
            container.field(names.GPU_PERCENT),
            f"{percent} together with {names.GPU_MEMORY}",
            f"give either {names.GPU_PERCENT} or {names.GPU_MEMORY}",
        )
    limit = _limit(container)
    if memory is None and percent is None:
        percent = cores if cores is not None else WHOLE
    if cores is None:
        cores = percent or 0
    return FractionRequest(
        container=container.name,
        count=count or 1,
        memory=memory or 0,
        percent=percent or 0,
        cores=cores,
        exclusive=percent == WHOLE and cores == WHOLE,
        init=container.init,
        wishes=wished,
        limit=limit,
    )


def _memory(container: ContainerReader, resource: str) -> int | None:
    largest = quantity.format_bytes(MOST_MEMORY)
    return container.amount(resource, least=quantity.MIB, most=MOST_MEMORY, cure=_MEMORY_CURE, largest=largest)


def _percent(container: ContainerReader, resource: str) -> int | None:
    return container.amount(resource, least=1, most=WHOLE, cure=_PERCENT_CURE)


def _limit(container: ContainerReader) -> int:
    """The memory limit above the request, in the request's unit; 0 if there is none, or it is the request."""
    for limit, request in _LIMITS.items():
        read = _memory if limit == names.GPU_MEMORY_LIMIT else _percent
        found, requested = read(container, limit), read(container, request)
        if found is None:
            continue
        written_limit = quantity.written(container.found(limit))
        if requested is None:
            others = [other for other in _LIMITS if other != limit and container.asks(_LIMITS[other])]
            cure = f"give {others[0]} instead" if others else f"give {request} too, which is the amount that is booked"
            raise ReadingRefused(container.field(limit), f"{written_limit} without {request}", cure)
        if found < requested:
            below = f"{written_limit}, less than {request}, which is {quantity.written(container.found(request))}"
            raise ReadingRefused(container.field(limit), below, f"give at least {request}, or remove the limit")
        return found if found > requested else 0
    return 0


DIALECT = Dialect(
    name="native",
    title=names.GROUP,
    resources=(
        names.GPU_MEMORY,
        names.GPU_PERCENT,
        names.GPU_CORES,
        names.GPU_COUNT,
        names.GPU_MEMORY_LIMIT,
        names.GPU_PERCENT_LIMIT,
    ),
    read=_read,
    stems=(f"{names.GROUP}/",),
    charges=lambda options: (
        Charge(names.GPU_MEMORY, memory=1, times=names.GPU_COUNT),
        Charge(names.GPU_CORES, cores=1, times=names.GPU_COUNT),
        Charge(names.GPU_COUNT),
        Charge(names.GPU_MEMORY_LIMIT),
        Charge(names.GPU_PERCENT_LIMIT),
    ),
    about=__doc__ or "",
    glossary=(
        Word(names.GPU_MEMORY, LIMITS, "bytes of memory on each GPU, with a unit: `8Gi`, `500M`; at least `1Mi`"),
        Word(names.GPU_PERCENT, LIMITS, "percent of each GPU's memory and of its cores, 1 to 100"),
        Word(names.GPU_CORES, LIMITS, "percent of each GPU's multiprocessors, 1 to 100"),
        Word(names.GPU_COUNT, LIMITS, f"number of distinct GPUs, 1 to {MOST_GPUS}; 1 if absent"),
        Word(
            names.GPU_MEMORY_LIMIT,
            LIMITS,
            "with `gpu-memory`, and at least as much: the memory of each GPU that the container may use while no "
            "other pod needs it, at most `memoryLimitRatio` (an option) times the request. The pod is placed on a "
            "node that enforces such a limit, or waits with that reason",
        ),
        Word(names.GPU_PERCENT_LIMIT, LIMITS, "the same with `gpu-percent`, in percent of each GPU's memory"),
        Word(
            names.ISOLATION,
            ANNOTATION,
            f"required isolation: {listed(quoted(ISOLATION))}, from strongest to weakest. The pod is placed on a node "
            f"that enforces this level or a stronger one, or waits with that reason. Valid in every dialect",
        ),
        Word(
            names.NUMA_BIND,
            ANNOTATION,
            "`true`: all GPUs of a container are on one NUMA node of their machine. Valid in every dialect",
        ),
        Word(
            names.START,
            ANNOTATION,
            f"`{names.ALONE}`: the pod gets no GPU on which another such pod is starting. Valid in every dialect, but "
            f"not with a claim",
        ),
        Word(
            names.IDLE_AFTER,
            ANNOTATION,
            "consent to be evicted for a waiting pod of equal or higher priority when the share has been idle for "
            "this time: `2h`, `90m`. `0` refuses, whatever the namespace says. Valid in every dialect",
        ),
    ),
    examples=(
        Example({names.GPU_MEMORY: "8Gi"}),
        Example({names.GPU_MEMORY: "8Gi"}, annotations={names.USE_MODELS: "H100,A100", names.LEAST_MEMORY: "40Gi"}),
        Example({names.GPU_MEMORY: "8Gi"}, annotations={f"{names.AVOID_MODELS}.main": "T4"}),
        Example({names.GPU_MEMORY: "8Gi", names.GPU_CORES: "30", names.GPU_COUNT: "2"}),
        Example({names.GPU_PERCENT: "25"}),
        Example({names.GPU_PERCENT: "25", names.GPU_CORES: "50"}),
        Example({names.GPU_CORES: "40"}),
        Example({names.GPU_MEMORY: "8Gi", names.GPU_MEMORY_LIMIT: "24Gi"}),
        Example({names.GPU_COUNT: "2"}),
        Example({names.GPU_COUNT: "2"}, annotations={names.NUMA_BIND: "true"}),
        Example({names.GPU_MEMORY: "8Gi"}, annotations={names.ISOLATION: MPS.name}),
        Example({names.GPU_MEMORY: "8Gi"}, annotations={names.ISOLATION: "strict"}),
        Example({names.GPU_MEMORY: "8Gi"}, annotations={names.IDLE_AFTER: "2 hours"}),
        Example({names.GPU_MEMORY: "8"}),
        Example({names.GPU_MEMORY: "8Gi", names.GPU_PERCENT: "25"}),
        Example({names.GPU_MEMORY: "24Gi", names.GPU_MEMORY_LIMIT: "8Gi"}),
    ),
)
