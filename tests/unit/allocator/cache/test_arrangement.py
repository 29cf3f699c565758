"""Places for pods that start together: all or none, and another arrangement if the first does not fit."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from allocator.cache import arrangement
from allocator.cache.arrangement import Arranged, FellShort, Member
from allocator.cache.cache import FrozenCluster
from allocator.cache.reserved import Requester
from allocator.cache.trial import Trial
from allocator.engine.reference import DEFAULT_POLICY
from contract.model import FractionRequest, NodeState, PodRequest
from contract.scheduling.filters import DEFAULT_LIMITS
from contract.scheduling.needs import PodNeeds, SchedulingRequest
from tests.builders import node

MIB = 1 << 20
CARD = 15109
SIZES = (3000, 5000, 7000, 8000, 10_000, 15_000)


def member(mib: int, count: int = 1) -> Member:
    fraction = FractionRequest("main", count=count, memory=mib * MIB)
    return Member(SchedulingRequest(PodRequest("native", (fraction,)), PodNeeds()), Requester())


def trial(nodes: Sequence[NodeState]) -> Trial:
    made = Trial(DEFAULT_LIMITS, DEFAULT_POLICY)
    made.begin(FrozenCluster(tuple(nodes), (), None))
    return made


def fits_by_trying_all(nodes: Sequence[NodeState], sizes: Sequence[int]) -> bool:
    """The oracle: every pod on every card."""
    cards = [gpu.usable for each in nodes for gpu in each.gpus]
    for chosen in product(range(len(cards)), repeat=len(sizes)):
        left = list(cards)
        for card, mib in zip(chosen, sizes, strict=True):
            left[card] -= mib * MIB
        if min(left) >= 0:
            return True
    return False


def booked(trial: Trial) -> dict[str, tuple[int, ...]]:
    return {name: tuple(usage.memory for usage in state.usage) for name, state in trial.nodes.items()}


@given(
    shapes=st.lists(st.integers(1, 2), min_size=1, max_size=2),
    sizes=st.lists(st.sampled_from(SIZES), min_size=2, max_size=5),
)
def test_a_way_is_found_where_there_is_one_and_nothing_stays_else(shapes: list[int], sizes: list[int]) -> None:
    nodes = [node(f"n{i}").gpus(cards, mib=CARD).state() for i, cards in enumerate(shapes)]
    cluster = trial(nodes)
    empty = booked(cluster)
    found = arrangement.arrange(cluster, [member(mib) for mib in sizes])
    assert isinstance(found, Arranged) == fits_by_trying_all(nodes, sizes)
    if isinstance(found, FellShort):
        assert booked(cluster) == empty
        assert found.placed < len(sizes)
    else:
        assert sum(map(sum, booked(cluster).values())) == sum(sizes) * MIB


def test_pods_of_one_kind_are_counted_once() -> None:
    asked: list[int] = []
    cluster = trial([node(f"n{i}").gpus(1).state() for i in range(7)])
    found = arrangement.arrange(cluster, [member(10_000)] * 8, give_way=lambda: asked.append(1))
    assert isinstance(found, FellShort)
    assert (found.placed, found.member, len(asked)) == (7, 7, 8)


def test_the_search_is_bounded() -> None:
    asked: list[int] = []
    cluster = trial([node(f"n{i}").gpus(2).state() for i in range(8)])
    sizes = [8000 + i for i in range(20)]
    found = arrangement.arrange(cluster, [member(mib) for mib in sizes], give_way=lambda: asked.append(1))
    assert isinstance(found, FellShort)
    assert len(asked) <= arrangement.STEPS + 3 * len(sizes)


def test_a_leader_and_workers_of_other_sizes_are_placed_together() -> None:
    cluster = trial([node("a").gpus(2).state(), node("b").gpus(1).state()])
    found = arrangement.arrange(cluster, [member(5000), member(10_000), member(15_000, count=1)])
    assert isinstance(found, Arranged)
    assert len(found.placements) == 3
