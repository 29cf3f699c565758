"""
The current state of the declared pools: the nodes of each, and the amounts of an empty node.

Pure: the options, the nodes and their GPUs in, a `PoolView` for each pool out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from allocator.cache import templates
from allocator.features.provisioning.wishes import PoolNode, PoolView
from contract.model import FREE, NodeState
from contract.nodes.attributes import NodeFacts
from contract.options import PoolOptions
from contract.reslicing import reslices

_LEAVING = ("ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted")
"""Taints of nodes that an autoscaler is about to delete."""
_BY_KARPENTER = "karpenter.sh/nodepool"
"""The label of nodes that Karpenter added."""
_REPELS = ("NoSchedule", "NoExecute")


def views(
    options: PoolOptions,
    empty: Mapping[str, NodeState],
    facts: Iterable[NodeFacts],
    states: Mapping[str, NodeState],
    occupied: Collection[str],
) -> list[PoolView]:
    """
    The pools from which nodes may be requested, in the order of the options.

    `empty`: an empty node of each pool, by its name; a pool of which too little is known has none, and is left out.
    `states`: the nodes that have published GPUs. `occupied`: nodes on which a placeholder pod is.
    """
    nodes: dict[str, list[PoolNode]] = {name: [] for name in empty}
    karpenter = False
    for node in facts:
        karpenter = karpenter or _BY_KARPENTER in node.labels
        name, _ = options.of_node(node.labels)
        if name in nodes:
            nodes[name].append(_node(node, states.get(node.name), empty[name], node.name in occupied))
    return [
        PoolView(pool.name, empty[pool.name], pool.node.most, tuple(nodes[pool.name]), karpenter)
        for pool in options.pools
        if pool.node is not None and pool.name in empty
    ]


def _node(node: NodeFacts, state: NodeState | None, empty: NodeState, occupied: bool) -> PoolNode:
    lacks = _lacks(node, state, empty)
    idle = state is not None and not lacks and not occupied and _is_idle(state, empty)
    return PoolNode(node.name, node.created, not lacks, occupied, idle, lacks)


def _lacks(node: NodeFacts, state: NodeState | None, empty: NodeState) -> str:
    """Why the node is not ready; empty if it is. A node that is about to be removed, or is cordoned, was ready
    before."""
    if state is None or not state.gpus:
        return "no GPUs are published for it"
    if not templates.shares_gpus(state):
        return "its GPUs are not shared; see the conditions of its GPUNode"
    if node.cordoned or any(taint.key in _LEAVING for taint in node.taints):
        return ""
    if not node.ready:
        return "its kubelet does not report it as ready"
    starting = next((taint for taint in node.taints if taint.effect in _REPELS and taint not in empty.taints), None)
    return f"it has the taint {starting.key}, which is not among the declared taints of its pool" if starting else ""


def _is_idle(state: NodeState, empty: NodeState) -> bool:
    """Whether a pod that does not fit on this node would not fit on an empty one either."""
    if state.cordoned or not state.ready or state.silent or reslices(state.labels):
        return False
    if len(state.gpus) < len(empty.gpus):
        return False
    if any(not gpu.healthy for gpu in state.gpus) or any(usage != FREE for usage in state.usage):
        return False
    if any(taint.effect in _REPELS and taint not in empty.taints for taint in state.taints):
        return False
    free, wanted = (
        (node.allocatable.cpu - node.requested.cpu, node.allocatable.memory - node.requested.memory)
        for node in (state, empty)
    )
    return free[0] >= wanted[0] and free[1] >= wanted[1]
