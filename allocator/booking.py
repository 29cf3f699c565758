"""
A node's state with one pod more on it, or with some of its pods gone: what decisions imagine without touching the
ledger.

Pure. The rule of what a pod takes of a GPU is `allocator.demand`'s.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from allocator.demand import per_gpu
from allocator.engine import Ask
from allocator.sharers import Sharer
from contract.model import Compute, ContainerAllocation, Gpu, NodeState, Usage


def plus(one: Compute, other: Compute) -> Compute:
    """Amounts added up."""
    return Compute(one.cpu + other.cpu, one.memory + other.memory, one.storage + other.storage, one.pods + other.pods)


def booked(node: NodeState, ask: Ask, containers: Iterable[ContainerAllocation]) -> NodeState:
    """The node with the pod on it, on these GPUs."""
    placed = ((container.container, share.uuid, share.memory) for container in containers for share in container.shares)
    demands = per_gpu(ask.request, placed)
    usage = tuple(
        demands[gpu.uuid].added_to(taken) if gpu.uuid in demands else taken
        for gpu, taken in zip(node.gpus, node.usage, strict=True)
    )
    return replace(
        node,
        usage=usage,
        requested=plus(node.requested, ask.needs.compute),
        host_ports=node.host_ports | ask.needs.host_ports,
    )


def unbooked(node: NodeState, sharers: Iterable[Sharer], gone: Iterable[Sharer]) -> NodeState:
    """The node without those who go. `sharers` are all its known holders, they among them; host ports stay taken."""
    going = {sharer.uid: sharer for sharer in gone}
    staying = [sharer for sharer in sharers if sharer.uid not in going]
    usage = tuple(
        without(gpu, taken, going.values(), staying) for gpu, taken in zip(node.gpus, node.usage, strict=True)
    )
    requested = node.requested
    for sharer in going.values():
        back = sharer.compute
        requested = plus(requested, Compute(-back.cpu, -back.memory, -back.storage, -back.pods))
    return replace(node, usage=usage, requested=requested)


def without(gpu: Gpu, taken: Usage, going: Iterable[Sharer], staying: Iterable[Sharer]) -> Usage:
    """What is taken on a GPU when some of its holders go and others stay."""
    back = [sharer.demands[gpu.uuid] for sharer in going if gpu.uuid in sharer.demands]
    held_whole = any(gpu.uuid in s.demands and s.demands[gpu.uuid].exclusive for s in staying)
    # A reservation whose pod has not been seen is nobody's here; it may be the one that holds the GPU whole.
    unknown = not any(demand.exclusive for demand in back)
    return Usage(
        taken.memory - sum(demand.memory for demand in back),
        taken.cores - sum(demand.cores for demand in back),
        taken.sharers - len(back),
        taken.exclusive and (held_whole or unknown),
    )
