"""
For any history of pods, what Kubernetes counts on a node never exceeds the node's capacity, and both engines decide the
same.

The pods have few shapes, and for many of them Kubernetes counts more than they hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allocator.cache.ledger import Ledger, Reservation, assumed, usage_of
from allocator.engine import reference
from allocator.engine.engine import Engine
from allocator.engine.reference import Placement, Policy
from allocator.scoring import estimator
from allocator.scoring.classes import supply_of
from allocator.scoring.estimator import Learner
from allocator.scoring.tables import Tables
from contract.encoding.quantity import GIB
from contract.model import NO_OVERCOUNT, WHOLE, Allocation, Compute, FractionRequest, NodeState, Overcount, PodRequest
from contract.scheduling.demand import counted
from contract.scheduling.filters import DEFAULT_LIMITS
from contract.scheduling.needs import PodNeeds, SchedulingRequest
from tests.builders import node
from tests.examples import examples

SIZES = (8, 16, 16, 24)
"""GiB of a card."""


def ask(*containers: tuple[int, int, int], init: int = 0, counted: int = 0) -> SchedulingRequest:
    """
    For each container its GiB, percent of a card's memory, and cores; the first `init` containers run before the
    others. `counted`: the GiB that the stored pod counts for.
    """
    fractions = (
        FractionRequest(f"c{at}", 1, gib * GIB, percent, cores, init=at < init)
        for at, (gib, percent, cores) in enumerate(containers)
    )
    request = PodRequest("native", tuple(fractions), counted=counted * GIB)
    return SchedulingRequest(request, PodNeeds(compute=Compute(pods=1)))


SHAPES = (
    ask((3, 0, 0)),
    ask((7, 0, 40)),
    ask((0, 50, 0)),
    ask((0, 50, 0), counted=12),
    ask((0, 100, 100), counted=24),
    ask((0, 30, 0), (2, 0, 0), counted=6),
    ask((7, 0, 0), (4, 0, 30)),
    ask((7, 0, 0), (2, 0, 0), (2, 0, 0), init=1),
    ask((15, 0, 0), (5, 0, 0), (5, 0, 0), init=1),
    ask((1, 0, 90), (1, 0, 30), (1, 0, 30), init=1),
    ask((0, 90, 0), (0, 30, 0), (0, 30, 0), init=1),
    ask((7, 0, 0), (0, 20, 0), (0, 20, 10), init=1),
    ask((6, 0, 0), (12, 0, 0), (4, 0, 0), (4, 0, 0), init=2),
)
CARDS = st.lists(st.lists(st.sampled_from(SIZES), min_size=1, max_size=3), min_size=1, max_size=2)
STEPS = st.lists(st.sampled_from(SHAPES) | st.integers(0, 5), max_size=14)
"""A pod that arrives, or the number of one that ends."""


class Cluster:
    """The nodes with the placed pods, for both engines."""

    def __init__(self, policy: Policy, cards: Sequence[Sequence[int]]) -> None:
        self.policy, self.ledger = policy, Ledger()
        self.bare = {f"n{at}": _node(f"n{at}", sizes) for at, sizes in enumerate(cards)}
        self.fast = Engine(limits=DEFAULT_LIMITS, policy=policy)
        self.fast.adopt(_tables(policy, self.bare))
        for name in self.bare:
            self.fast.put(self.state(name))

    def state(self, name: str) -> NodeState:
        """The node as the ledger has it."""
        bare = self.bare[name]
        usage = usage_of(bare.gpus, self.ledger, name)
        return replace(bare, usage=usage, overcount=self.ledger.overcount(name))

    def place(self, key: str, ask: SchedulingRequest) -> None:
        """Decide about a pod with both engines, and allocate it on the chosen node."""
        snapshot = {name: self.state(name) for name in self.bare}
        found = self.fast.decide(ask)
        assert found == reference.decide(snapshot, ask, policy=self.policy, tables=self.fast.tables)
        if isinstance(found, Placement):
            allocation = Allocation(key, found.node, found.containers)
            self.ledger.assume(assumed(ask, allocation, f"ns/{key}", 0.0))
            self.fast.put(self.state(found.node))

    def end(self, key: str) -> None:
        """End a pod, if it was placed."""
        holding = self.ledger.holding(key)
        if holding is not None:
            self.ledger.release(key)
            self.fast.put(self.state(holding.allocation.node))

    def beyond(self, name: str) -> Overcount:
        """By how much Kubernetes' count on the node exceeds its capacity."""
        state = self.state(name)
        found = sum((_counted(each) for each in self.ledger.on_node(name)), NO_OVERCOUNT)
        return found - Overcount(sum(gpu.usable for gpu in state.gpus), WHOLE * len(state.gpus))


def _node(name: str, sizes: Sequence[int]) -> NodeState:
    made = node(name).allocatable(pods=99)
    for gib in sizes:
        made = made.gpu("Tesla T4", mib=gib * 1024)
    return made.state()


def _tables(policy: Policy, nodes: Mapping[str, NodeState]) -> Tables | None:
    if not policy.learned:
        return None
    learner = Learner(half_life=4)
    for shape in SHAPES:
        learner.see(shape.request, 0)
    return estimator.make(policy.node, learner.target(), supply_of(nodes, DEFAULT_LIMITS))


def _counted(holding: Reservation) -> Overcount:
    shares = holding.allocation.containers
    return Overcount(*counted(holding.request, {c.container: sum(s.memory for s in c.shares) for c in shares}))


@pytest.mark.parametrize("policy", [Policy(), Policy("spread", "spread"), Policy("value")], ids=lambda p: p.node)
@given(cards=CARDS, steps=STEPS)
@settings(max_examples=examples(60), deadline=None)
def test_no_node_is_given_more_than_kubernetes_has(
    policy: Policy, cards: list[list[int]], steps: list[SchedulingRequest | int]
) -> None:
    cluster = Cluster(policy, cards)
    for at, step in enumerate(steps):
        if isinstance(step, int):
            cluster.end(f"p{step}")
        else:
            cluster.place(f"p{at}", step)
        assert not any(map(bool, map(cluster.beyond, cluster.bare)))
    cluster.ledger.check_invariants()
