"""
4paradigm's vGPU scheduler, today HAMi: `nvidia.com/gpu` GPUs, and on each `gpumem` MiB and `gpucores` percent.

`nvidia.com/gpu` alone is a whole GPU, as in the vendor's plugin and in HAMi 2.10. A share without an amount of memory
has all of the GPU's memory. More than 100 cores count as 100. `gpumem: 3Gi`, which HAMi silently reads as an empty
request, is 3 GiB here.
"""

# Units and defaults are those of HAMi's `pkg/device/nvidia/device.go`.

from __future__ import annotations

from dataclasses import replace

from contract.dialects.base import (
    ANNOTATION,
    JSON,
    LIMITS,
    Charge,
    ContainerReader,
    Dialect,
    Example,
    PodReader,
    Word,
    flag,
    pod_request,
    wishes,
)
from contract.encoding import quantity
from contract.encoding.reading import words
from contract.model import MOST_GPUS, MOST_MEMORY, POLICIES, WHOLE, FractionRequest, PodRequest, Wishes

GPU = "nvidia.com/gpu"
MEM, MEM_PERCENT = "nvidia.com/gpumem", "nvidia.com/gpumem-percentage"
CORES, CORES_ALIAS = "nvidia.com/gpucores", "nvidia.com/cores"
PRIORITY = "nvidia.com/priority"
USE_MODELS, AVOID_MODELS = "nvidia.com/use-gputype", "nvidia.com/nouse-gputype"
USE_UUIDS, AVOID_UUIDS = "nvidia.com/use-gpuuuid", "nvidia.com/nouse-gpuuuid"
NODE_POLICY, GPU_POLICY = "hami.io/node-scheduler-policy", "hami.io/gpu-scheduler-policy"
_MOST_MIB = quantity.mib(MOST_MEMORY)
NUMA_BIND, MUTEX = "nvidia.com/numa-bind", "mutex"
TASK_PRIORITY = "CUDA_TASK_PRIORITY"
SCHEDULER = "hami-scheduler"


def _read(context: PodReader) -> PodRequest | None:
    numa, alone = flag(context, NUMA_BIND), MUTEX in words(context.annotation(GPU_POLICY))
    fractions, priority = [], 0
    for container in context.containers():
        wished = wishes(context, container, USE_MODELS, AVOID_MODELS, USE_UUIDS, AVOID_UUIDS)
        fraction = _fraction(container, context, wished, alone)
        if fraction is None:
            continue
        fractions.append(replace(fraction, one_numa=numa))
        priority = max(priority, _priority(container))
    return pod_request(
        "hami",
        context,
        fractions,
        node_policy=_policy(context, NODE_POLICY),
        gpu_policy=_policy(context, GPU_POLICY),
        priority=priority,
    )


def _priority(container: ContainerReader) -> int:
    """1 for a container of high priority, which that system writes as 0."""
    named = container.amount(PRIORITY, least=0, most=1, cure="give 0 for high priority or 1 for low")
    return 1 if named == 0 else 0


def _policy(context: PodReader, key: str) -> str:
    """The first policy of a comma list that we have too; HAMi's other sort keys do not contradict binpack."""
    return next((word for word in words(context.annotation(key)) if word in POLICIES), "")


def _fraction(container: ContainerReader, context: PodReader, wished: Wishes, alone: bool) -> FractionRequest | None:
    if not any(container.asks(resource) for resource in (GPU, MEM, MEM_PERCENT, CORES, CORES_ALIAS)):
        return None
    count = container.amount(GPU, least=0, most=MOST_GPUS, cure=f"give a whole number from 1 to {MOST_GPUS}")
    if count == 0:
        return None
    memory = container.mebibytes(MEM, most=_MOST_MIB)
    percent = container.amount(MEM_PERCENT, least=0, most=WHOLE, cure="give a whole percentage from 1 to 100") or 0
    cores = _cores(container)
    if cores is None:
        whole = not memory and percent in (0, WHOLE)
        cores = WHOLE if whole else context.options.default_cores
    elif not memory and not percent:
        memory = context.options.default_memory
    cores = WHOLE if alone else cores
    return FractionRequest(
        container=container.name,
        count=count or 1,
        memory=memory,
        percent=0 if memory else percent or WHOLE,
        cores=cores,
        exclusive=cores == WHOLE,
        init=container.init,
        wishes=wished,
    )


def _cores(container: ContainerReader) -> int | None:
    """Percent of each GPU, at most 100; None where it is absent."""
    cure = "give a whole percentage from 0 to 100"
    named = container.amount(CORES, least=0, most=1 << 31, cure=cure)
    if named is None:
        named = container.amount(CORES_ALIAS, least=0, most=1 << 31, cure=cure)
    return None if named is None else min(named, WHOLE)


def _environment(request: PodRequest, fraction: FractionRequest) -> list[JSON]:
    """The limiter's priority; without the variable it is low."""
    return [{"name": TASK_PRIORITY, "value": "0"}] if request.priority else []


DIALECT = Dialect(
    name="hami",
    title="HAMi (nvidia.com/gpu)",
    resources=(GPU, MEM, MEM_PERCENT, CORES, CORES_ALIAS, PRIORITY),
    read=_read,
    environment=_environment,
    stems=tuple(f"nvidia.com/{start}" for start in ("gpu-", "gpu_", "gpus", "gpum", "gpuM", "gpuc", "gpuC")),
    schedulers=(SCHEDULER,),
    # The number of GPUs keeps its own name, because NVIDIA's plugin gives out whole GPUs by it.
    charges=lambda options: (
        Charge(MEM, memory=quantity.MIB, times=GPU),
        Charge(CORES, cores=1, times=GPU),
        Charge(CORES_ALIAS, cores=1, times=GPU),
        Charge(PRIORITY),
    ),
    about=__doc__ or "",
    glossary=(
        Word(
            GPU, LIMITS, f"number of distinct GPUs, 1 to {MOST_GPUS}; 1 if absent while one of the names below is given"
        ),
        Word(MEM, LIMITS, "MiB of memory on each GPU as a plain number, or a quantity such as `3Gi`"),
        Word(MEM_PERCENT, LIMITS, f"percent of each GPU's memory, 0 to 100; used if {MEM} is absent or 0"),
        Word(CORES, LIMITS, "percent of each GPU's multiprocessors; 100 or more gives the pod the GPU exclusively"),
        Word(CORES_ALIAS, LIMITS, f"the same as {CORES}, which takes precedence if both are given"),
        Word(
            PRIORITY,
            LIMITS,
            "0 is high, 1 is low (the default). A pod with a container of high priority is placed before others of "
            f"its namespace and PriorityClass, and has `{TASK_PRIORITY}=0`, which the limiter reads. The priority "
            "alone requests no GPU",
        ),
        Word(USE_MODELS, ANNOTATION, "comma list: only GPUs whose model contains one of these words"),
        Word(AVOID_MODELS, ANNOTATION, "comma list: no GPU whose model contains one of these words"),
        Word(USE_UUIDS, ANNOTATION, "comma list: only these GPUs"),
        Word(AVOID_UUIDS, ANNOTATION, "comma list: none of these GPUs"),
        Word(NUMA_BIND, ANNOTATION, "`true`: all GPUs of a container are on one NUMA node of their machine"),
        Word(NODE_POLICY, ANNOTATION, "`binpack` or `spread` over nodes; other words have no effect"),
        Word(
            GPU_POLICY,
            ANNOTATION,
            "`binpack` or `spread` over the GPUs of a node; `mutex` gives the pod a GPU exclusively",
        ),
    ),
    examples=(
        Example({GPU: "1"}),
        Example({GPU: "1", MEM: "3000"}),
        Example({GPU: "2", MEM: "3000", CORES: "30"}),
        Example({MEM: "3Gi"}),
        Example({GPU: "1", MEM_PERCENT: "50"}),
        Example({GPU: "1", CORES: "30"}),
        Example({GPU: "1", MEM: "3000", CORES: "100"}),
        Example({GPU: "1", MEM: "3000"}, annotations={USE_MODELS: "A100,V100"}),
        Example({GPU: "1", MEM: "3000"}, annotations={GPU_POLICY: "mutex"}),
        Example({GPU: "0"}),
    ),
)
