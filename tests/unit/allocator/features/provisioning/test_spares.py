"""Spare nodes: how many of a pool, and which nodes do not count."""

from __future__ import annotations

from dataclasses import replace

import pytest

from allocator.features.provisioning.spares import Spare, spares
from allocator.features.provisioning.wishes import PoolNode, PoolView
from contract.model import Gpu, NodeState, Usage
from contract.options import PoolOptions, pool_options

GIB = 1 << 30
NOW, PATIENCE = 10_000.0, 900.0
EMPTY = NodeState("a", tuple(Gpu(f"g-{i}", i, "T4", 15 * GIB, 15 * GIB) for i in range(2)), (Usage(), Usage()))
SICK = replace(EMPTY, gpus=(EMPTY.gpus[0], replace(EMPTY.gpus[1], healthy=False)))
SHARED = replace(EMPTY, usage=(Usage(), Usage(memory=GIB, sharers=1)))
NOTHING = NodeState("a", (), ())


def options(*spare: int, most: int = 4) -> PoolOptions:
    """Pools `a`, `b` and so on with this many spare nodes."""
    node = {"gpus": 2, "model": "T4", "gpuMemory": "15Gi", "cpu": 8, "memory": "32Gi", "max": most}
    pools = [
        {"name": name, "nodeSelector": {"matchLabels": {"pool": name}}, "node": node, "spare": number}
        for name, number in zip("abc", spare, strict=False)
    ]
    return pool_options({"pools": pools})


def nodes(*states: NodeState | None, age: float = 60.0) -> tuple[dict[str, NodeState], tuple[PoolNode, ...]]:
    named = {f"n{number}": state for number, state in enumerate(states)}
    return (
        {name: state for name, state in named.items() if state is not None},
        tuple(PoolNode(name, NOW - age, state is not None) for name, state in named.items()),
    )


CASES: dict[str, tuple[int, tuple[NodeState | None, ...], float, list[Spare]]] = {
    "no node is there": (1, (), 60, [Spare("a", 1, ())]),
    "an empty node is spare": (1, (EMPTY,), 60, [Spare("a", 1, ())]),
    "a node with a share is not": (1, (EMPTY, SHARED), 60, [Spare("a", 1, ("n1",))]),
    "one with a sick card is not": (1, (SICK,), 60, [Spare("a", 1, ("n0",))]),
    "one that comes is": (1, (None, NOTHING), 60, [Spare("a", 1, ())]),
    "one that came without cards is not": (1, (None, NOTHING), 901, [Spare("a", 1, ("n0", "n1"))]),
    "no more than the pool may have": (3, (SHARED, SHARED), 60, [Spare("a", 2, ("n0", "n1"))]),
    "none where all it may have are used": (2, (SHARED, SHARED, SHARED, SHARED), 60, []),
    "none is wanted": (0, (EMPTY,), 60, []),
}


@pytest.mark.parametrize(("wanted", "there", "age", "found"), CASES.values(), ids=CASES.keys())
def test_spare_nodes(wanted: int, there: tuple[NodeState | None, ...], age: float, found: list[Spare]) -> None:
    states, of_pool = nodes(*there, age=age)
    view = PoolView("a", EMPTY, 4, of_pool)
    assert spares(options(wanted), [view], states, NOW, PATIENCE) == found


def test_each_pool_has_its_own_and_one_of_which_too_little_is_known_has_none() -> None:
    views = [PoolView("c", EMPTY, 4), PoolView("a", EMPTY, 4)]
    assert spares(options(2, 1, 1), views, {}, NOW, PATIENCE) == [Spare("a", 2, ()), Spare("c", 1, ())]
