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
from contract.model import Compute, ContainerAllocation, NodeState


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
