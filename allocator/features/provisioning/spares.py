"""
The number of spare nodes of each pool, and the nodes that cannot be spare.

Pure: the pools, their nodes and the GPUs in, a `Spare` for each pool out. A spare node is a node without shares, or one
that is being added. So a node with its first share is no longer spare, and the autoscaler adds another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from allocator.features.provisioning.wishes import PoolNode, PoolView
from contract.model import FREE, NodeState
from contract.options import PoolOptions


@dataclass(frozen=True, slots=True)
class Spare:
    """The spare nodes that an autoscaler keeps of a pool. `off`: nodes of the pool that are not spare."""

    pool: str
    nodes: int
    off: tuple[str, ...]


def spares(
    options: PoolOptions, views: Iterable[PoolView], states: Mapping[str, NodeState], now: float, patience: float
) -> list[Spare]:
    """
    The spare nodes of each pool that is configured to have some and may have them, in the order of the options.

    `states`: the nodes that have published GPUs. `patience`: seconds for which a node without GPUs counts as being
    added. A pool with its maximum of nodes in use keeps none.
    """
    by_name = {view.name: view for view in views}
    found = []
    for pool in options.pools:
        view = by_name.get(pool.name)
        if view is None or not pool.spare:
            continue
        off = tuple(
            sorted(node.name for node in view.nodes if not _is_spare(node, states.get(node.name), now, patience))
        )
        nodes = min(pool.spare, view.most - len(off))
        if nodes > 0:
            found.append(Spare(pool.name, nodes, off))
    return found


def _is_spare(node: PoolNode, state: NodeState | None, now: float, patience: float) -> bool:
    if state is None or not state.gpus:
        return now - node.created < patience
    return all(gpu.healthy for gpu in state.gpus) and all(usage == FREE for usage in state.usage)
