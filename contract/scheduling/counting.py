"""
Whether Kubernetes has room on a node for the amount that it counts for a pod.

For a few pods, Kubernetes counts more than they hold on a node's GPUs, because the amount is fixed when the pod is
stored, and the cards are chosen later. So a node may have room on its GPUs but not in Kubernetes' count: a kubelet
would reject the pod, or kube-scheduler would never bind it. These are pods with init containers (`demand.uncounted`),
and shares by percent that were stored before smaller cards were added (`PodRequest.counted`).

    the node's capacity   what the GPUs promise, or what is held of a GPU where that is more (`contract.nodes.capacity`)
    is counted            what is held, and the pods' overcount
    is left               what is free of each GPU's promise, less the overcount

A pod whose count equals the amount that it holds fits wherever its GPUs fit, unless other pods are overcounted there.
So it is checked only on nodes with overcounted pods.
"""

from __future__ import annotations

from functools import lru_cache

from contract.model import WHOLE, WITHHELD, NodeState, PodRequest
from contract.reasons.nodes import Code, Reason
from contract.scheduling.demand import counted, held_at_most, uncounted
from contract.scheduling.needs import SchedulingRequest

_NOT_SHARED = WITHHELD[1]
_MEMORY = "GPU memory in MiB, as Kubernetes counts it, which is more than pods hold"
_CORES = "GPU cores in percent, as Kubernetes counts them, which is more than pods hold"


def concerned(node: NodeState, ask: SchedulingRequest) -> bool:
    """Whether Kubernetes may lack room for the pod on this node although its GPUs have it."""
    if node.overcount:
        return True
    containers, stored = ask.as_stored.containers, ask.as_stored.counted
    if not stored and not any(fraction.init for fraction in containers):
        return False
    sizes = {gpu.usable for gpu in node.gpus} if any(fraction.percent for fraction in containers) else {0}
    return any(exceeds(ask, size) for size in sizes) or (len(sizes) > 1 and not stored)


@lru_cache(maxsize=256)
def concerned_anywhere(ask: SchedulingRequest) -> bool:
    """Whether that is possible on a node without an overcount, for any size of its GPUs."""
    containers = ask.as_stored.containers
    by_percent = any(fraction.percent for fraction in containers)
    return any(fraction.init for fraction in containers) and (by_percent or exceeds(ask, 0))


def concerned_by_size(ask: SchedulingRequest) -> bool:
    """Whether it depends on the sizes of a node's GPUs: `exceeds` is true for the smallest GPU."""
    return bool(ask.as_stored.counted)


@lru_cache(maxsize=256)
def exceeds(ask: SchedulingRequest, usable: int) -> bool:
    """Whether Kubernetes may count more for the pod than it holds on GPUs of this size. Then also on smaller ones."""
    request = ask.as_stored
    besides = uncounted(request, _totals(request, usable))
    held = held_at_most(request, lambda fraction: fraction.memory_on(usable))[0] if request.counted else 0
    return bool(besides.memory or besides.cores) or request.counted > held


def shortage(node: NodeState, ask: SchedulingRequest) -> Reason | None:
    """Why Kubernetes has no room for the pod on this node; None if it has."""
    if not concerned(node, ask):
        return None
    return short(*counted_on(node, ask), *room(node))


def short(memory: int, cores: int, free_memory: int, free_cores: int) -> Reason | None:
    """Why Kubernetes, with this much left, has no room for a pod that it counts with this much; None if it has."""
    if memory > max(0, free_memory):
        return Reason(Code.RESOURCE, -(-memory >> 20), max(0, free_memory) >> 20, _MEMORY)
    if cores > max(0, free_cores):
        return Reason(Code.RESOURCE, cores, max(0, free_cores), _CORES)
    return None


def lacking(node: NodeState, ask: SchedulingRequest) -> tuple[int, int]:
    """Bytes and percent of cores that must be given back before `shortage` agrees; nothing if a figure is <= 0."""
    if not concerned(node, ask):
        return 0, 0
    (memory, cores), (free_memory, free_cores) = counted_on(node, ask), room(node)
    return memory and memory - free_memory, cores and cores - free_cores


def counted_on(node: NodeState, ask: SchedulingRequest) -> tuple[int, int]:
    """Bytes and percent of cores that Kubernetes counts for the pod at most, whichever of the node's GPUs it gets."""
    return _counted(ask, max((gpu.usable for gpu in node.gpus), default=0))


def room(node: NodeState) -> tuple[int, int]:
    """Bytes and percent of cores that Kubernetes has left on the node. Below 0 if claims have taken it."""
    memory, cores = -node.overcount.memory, -node.overcount.cores
    for gpu, usage in zip(node.gpus, node.usage, strict=True):
        if gpu.withheld != _NOT_SHARED:
            memory += max(0, gpu.sharing.promised(gpu.usable) - usage.memory)
            cores += max(0, WHOLE - usage.cores)
    return memory, cores


# Keyed by the pod to place, whose hash is cached: hashing a request takes microseconds.
@lru_cache(maxsize=256)
def _counted(ask: SchedulingRequest, usable: int) -> tuple[int, int]:
    request = ask.as_stored
    return (0, 0) if request.claim else counted(request, _totals(request, usable))


def _totals(request: PodRequest, usable: int) -> dict[str, int]:
    return {each.container: each.count * each.memory_on(usable) for each in request.containers}
