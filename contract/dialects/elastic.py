"""
Tencent's Elastic GPU: `gpu-core` in hundredths of a card and `gpu-memory` in MiB, of `elasticgpu.io/` or `.com/`.

Admission warns about a remainder of `gpu-core` above 100. Cores and memory may be given together. Cores alone reserve
memory in proportion, unlike in that system, unless the administrator chose an amount. Annotations are always written
with `elasticgpu.io`.
"""

# From 100 on, each 100 is one whole GPU: elastic-gpu-scheduler, `pkg/scheduler/allocate.go`. That system's
# documentation uses `elasticgpu.io`, but its last published scheduler read `elasticgpu.com`.

from __future__ import annotations

from contract.dialects.base import (
    LIMITS,
    Charge,
    ContainerReader,
    Dialect,
    Example,
    PodReader,
    Word,
    assumed,
    pod_request,
    wishes,
)
from contract.encoding import quantity
from contract.model import MOST_GPUS, MOST_MEMORY, WHOLE, FractionRequest, PodRequest, Wishes

GROUPS = ("elasticgpu.io", "elasticgpu.com")
CORES = tuple(f"{group}/gpu-core" for group in GROUPS)
MEMORIES = tuple(f"{group}/gpu-memory" for group in GROUPS)
ASSUMED, CONTAINER_PREFIX = "elasticgpu.io/assumed", "elasticgpu.io/container-"
_MOST_MIB = quantity.mib(MOST_MEMORY)
_CORE_CURE = f"give a whole number: 1 to 99 of one card, or 100 for each whole card, up to {MOST_GPUS * WHOLE}"


def _read(context: PodReader) -> PodRequest | None:
    fractions: list[FractionRequest] = []
    warnings: list[str] = []
    for container in context.containers():
        fraction = _fraction(container, context.options.core_only_memory, wishes(context, container), warnings)
        if fraction is not None:
            fractions.append(fraction)
    return pod_request("elastic", context, fractions, warnings=warnings)


def _fraction(
    container: ContainerReader, core_only: int, wished: Wishes, warnings: list[str]
) -> FractionRequest | None:
    core_name, memory_name = container.spelled(*CORES), container.spelled(*MEMORIES)
    core = container.amount(core_name, least=0, most=MOST_GPUS * WHOLE, cure=_CORE_CURE) or 0
    memory = container.mebibytes(memory_name, most=_MOST_MIB)
    if not core and not memory:
        return None
    if core >= WHOLE:
        warnings.extend(_left_over(container, core_name, core, memory_name if memory else ""))
        return FractionRequest(
            container=container.name,
            count=core // WHOLE,
            percent=WHOLE,
            cores=WHOLE,
            exclusive=True,
            init=container.init,
            wishes=wished,
        )
    memory = memory or core_only
    return FractionRequest(
        container=container.name,
        memory=memory,
        percent=0 if memory else core,
        cores=core,
        init=container.init,
        wishes=wished,
    )


def _left_over(container: ContainerReader, core_name: str, core: int, memory_name: str) -> list[str]:
    whole, rest = divmod(core, WHOLE)
    cards = "1 whole card" if whole == 1 else f"{whole} whole cards"
    warnings = []
    if rest:
        warnings.append(f"{container.field(core_name)}: {core} gives {cards}; the remaining {rest} are ignored")
    if memory_name:
        warnings.append(f"{container.field(memory_name)}: ignored, since {cards} are given with all their memory")
    return warnings


DIALECT = Dialect(
    name="elastic",
    title="Elastic GPU",
    resources=(*CORES, *MEMORIES),
    read=_read,
    stems=tuple(f"{group}/gpu" for group in GROUPS),
    charges=lambda options: (
        *(Charge(name, memory=quantity.MIB) for name in MEMORIES),
        *(Charge(name, cores=1) for name in CORES),
    ),
    render=lambda decided: assumed(ASSUMED, CONTAINER_PREFIX, decided),
    about=__doc__ or "",
    glossary=(
        *(
            Word(name, LIMITS, meaning)
            for name, meaning in zip(
                CORES,
                ("1 to 99: percent of one card's cores; 100 and more: whole cards, one for each 100", "the same"),
                strict=True,
            )
        ),
        *(
            Word(name, LIMITS, meaning)
            for name, meaning in zip(
                MEMORIES,
                ("MiB on the card as a plain number, or a quantity such as `3Gi`; 0 asks for nothing", "the same"),
                strict=True,
            )
        ),
    ),
    examples=(
        Example({MEMORIES[0]: "256"}),
        Example({CORES[0]: "10"}),
        Example({CORES[0]: "10", MEMORIES[0]: "256"}),
        Example({CORES[1]: "200"}),
        Example({CORES[0]: "150"}),
        Example({CORES[0]: "0"}),
        Example({CORES[0]: "10", CORES[1]: "10"}),
        Example({CORES[0]: "0.5"}),
    ),
)
