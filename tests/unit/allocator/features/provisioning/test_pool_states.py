"""The status of a pool: the figures, and the first reason why no nodes come."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from allocator.features.provisioning import status
from allocator.features.provisioning.wishes import Memory, NodeRequest, OpenRequest, Pause, Plan, PoolNode, PoolView
from contract.nodes.pool_status import PoolStatus
from contract.options import pool_options
from tests.builders import node

NOW = 10_000.0
EMPTY = node("a").gpus(1).state()
LABELS = {"matchLabels": {"pool": "a"}}
OPTIONS = pool_options({"pools": [{"name": "a", "nodeSelector": LABELS, "node": {"max": 2}, "spare": 1}]})
READY = PoolNode("n1", 1.0, True)
STARTING = PoolNode("n2", 9_990.0, False, lacks="no GPUs are published for it")
REQUESTED = NodeRequest("a-1", "a", 2, 9_960.0)
REST = Memory({"a": Pause(2, NOW + 60, "refused", "Expired: no capacity")})
OVER = Memory({"a": Pause(2, NOW - 1, "refused", "Expired: no capacity")})
STATUS = PoolStatus("a", 2, 1)
WHY: dict[str, Any] = {"failures": 2, "outcome": "refused", "why": "Expired: no capacity"}

STATES: dict[str, tuple[tuple[PoolNode, ...], Plan, dict[str, str], PoolStatus]] = {
    "nothing goes on": ((READY,), Plan(), {}, replace(STATUS, ready=1)),
    "nodes are asked for": (
        (READY,),
        Plan(live=(OpenRequest(REQUESTED, ()),)),
        {},
        replace(STATUS, ready=1, asked=2, since=9_960.0, state="asked"),
    ),
    "nodes are asked for in this pass": (
        (),
        Plan(make=(("a", 2),)),
        {},
        replace(STATUS, asked=2, since=NOW, state="asked"),
    ),
    "one has come": (
        (STARTING,),
        Plan(live=(OpenRequest(REQUESTED, (STARTING,)),)),
        {},
        replace(STATUS, coming=1, asked=1, since=9_960.0, state="asked"),
    ),
    "all have come": (
        (READY, STARTING),
        Plan(live=(OpenRequest(replace(REQUESTED, count=1), (STARTING,)),)),
        {},
        replace(STATUS, ready=1, coming=1, state="coming"),
    ),
    "a placeholder pod is there still": (
        (replace(READY, occupied=True),),
        Plan(),
        {},
        replace(STATUS, coming=1, state="coming"),
    ),
    "the request could not be made": (
        (),
        Plan(make=(("a", 2),)),
        {"a": "forbidden"},
        replace(STATUS, state="not-asked", waits=True, why="forbidden"),
    ),
    "it gave nothing": (
        (),
        Plan(memory=REST, needed=frozenset("a")),
        {},
        replace(STATUS, state="paused", waits=True, until=NOW + 60, **WHY),
    ),
    "it gave nothing, and is asked again": (
        (),
        Plan(memory=OVER, live=(OpenRequest(REQUESTED, ()),)),
        {},
        replace(STATUS, state="asked", asked=2, since=9_960.0, **WHY),
    ),
    "an idle node does not serve": (
        (replace(READY, idle=True),),
        Plan(needed=frozenset("a")),
        {},
        replace(STATUS, ready=1, state="idle-node", waits=True),
    ),
    "an idle node, and nobody waits": ((replace(READY, idle=True),), Plan(), {}, replace(STATUS, ready=1)),
    "it is full": (
        (READY, replace(READY, name="n3")),
        Plan(needed=frozenset("a")),
        {},
        replace(STATUS, ready=2, state="full", waits=True),
    ),
    "it is full, and nobody waits": ((READY, replace(READY, name="n3")), Plan(), {}, replace(STATUS, ready=2)),
}


@pytest.mark.parametrize(("nodes", "plan", "failed", "want"), STATES.values(), ids=STATES.keys())
def test_the_first_state_that_applies(
    nodes: tuple[PoolNode, ...], plan: Plan, failed: dict[str, str], want: PoolStatus
) -> None:
    views = {"a": PoolView("a", EMPTY, 2, nodes)}
    assert status.of_pools(NOW, OPTIONS.pools, views, plan, failed) == (want,)


def test_of_a_pool_of_which_too_little_is_known_it_says_so() -> None:
    assert status.of_pools(NOW, OPTIONS.pools, {}, Plan(), {}) == (replace(STATUS, state="unknown"),)


def test_nodes_are_wanted_until_they_are_ready() -> None:
    live = (OpenRequest(replace(REQUESTED, count=3), (READY, STARTING)), OpenRequest(replace(REQUESTED, pool="b"), ()))
    plan = Plan(make=(("a", 4), ("c", 5)), live=live)
    assert status.wanted(plan, {"c": "forbidden"}) == {"a": 6, "b": 2}
