"""However many containers a pod has: the search takes the same choices in the same order, and comes to an end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from allocator import engine, fitting, keeping, scores, victims
from allocator.covering import cover
from allocator.engine import Ask, Chosen
from allocator.filters import DEFAULT_LIMITS
from allocator.fitting import Fit, Steps
from allocator.index import Engine
from allocator.reasons import Reason
from allocator.victims import Question
from contract.model import Compute, FractionRequest, NodeState, PodRequest
from contract.quantity import GIB, MIB
from contract.scheduling import PodNeeds
from tests.builders import node

POISON = 1_050
"""More containers than Python has room for calls within calls."""
ONE_SECOND = 1.0
NEEDS = PodNeeds(compute=Compute(pods=1))


def containers(count: int, memory: int) -> tuple[FractionRequest, ...]:
    return tuple(FractionRequest(f"c{i}", memory=memory) for i in range(count))


def by_hand(
    state: NodeState, request: PodRequest, candidates: list[list[int]], end: int
) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Every choice for the first `end` containers; GPUs that the pod is on already come first."""
    if not end:
        yield ()
        return
    fraction = request.containers[end - 1]
    for before in by_hand(state, request, candidates, end - 1):
        used = {position for positions in before for position in positions}
        mine = candidates[end - 1]
        for chosen in combinations(
            [*(p for p in mine if p in used), *(p for p in mine if p not in used)], fraction.count
        ):
            yield (*before, chosen)


REQUESTS = st.lists(
    st.tuples(st.sampled_from((1, 1, 2)), st.sampled_from((2, 5, 9)), st.booleans()), min_size=1, max_size=3
).map(
    lambda drawn: PodRequest(
        "any",
        tuple(
            FractionRequest(f"c{i}", count, memory=gib * GIB, init=init) for i, (count, gib, init) in enumerate(drawn)
        ),
    )
)


@given(request=REQUESTS, used=st.lists(st.sampled_from((0, 4, 8)), min_size=2, max_size=4))
@settings(max_examples=200, deadline=None)
def test_the_order_is_that_of_a_search_through_all(request: PodRequest, used: list[int]) -> None:
    made = node("a")
    for gib in used:
        made = made.gpu(mib=10240, used_mib=gib * 1024)
    state = made.state()
    candidates = [list(range(len(used)))] * len(request.containers)
    through_all = list(by_hand(state, request, candidates, len(candidates)))
    assert list(fitting.choices(state, request, candidates)) == through_all
    found = fitting.fit(state, request, DEFAULT_LIMITS, lambda usable, usage: 0)
    bearing = [chosen for chosen in through_all if bears(state, request, chosen)]
    assert (found.chosen if isinstance(found, Fit) else None) == (bearing[0] if bearing else None)


def bears(state: NodeState, request: PodRequest, chosen: tuple[tuple[int, ...], ...]) -> bool:
    """Whether the GPUs bear all of it, each container alone too."""
    demands = fitting.demands_of(state, request, chosen)
    return all(
        state.usage[position].memory + demand.memory <= state.gpus[position].usable
        for position, demand in demands.items()
    )


def test_a_thousand_containers_are_placed() -> None:
    states = {"a": node("a").gpus(2, mib=16384).state()}
    ask = Ask(PodRequest("native", containers(POISON, 8 * MIB)), NEEDS)
    fast = Engine()
    fast.put(states["a"])
    found = fast.decide(ask)
    assert isinstance(found, Chosen)
    assert (found, len(found.containers)) == (engine.decide(states, ask), POISON)


def test_a_thousand_containers_that_never_fit_are_told_so_in_time() -> None:
    states = [node(f"n{i:03}").gpus(8, mib=16384).state() for i in range(100)]
    fast = Engine()
    for state in states:
        fast.put(state)
    # Each fits alone, and all together by what is free in all; they only never fit card by card.
    ask = Ask(PodRequest("native", containers(8 * POISON // 100, 3000 * MIB)), NEEDS)
    hard = Ask(PodRequest("native", (*containers(12, 10 * GIB),)), NEEDS)
    started = time.monotonic()
    assert not isinstance(fast.decide(ask), Chosen)
    assert not isinstance(fast.decide(hard), Chosen)
    assert time.monotonic() - started < ONE_SECOND


def test_what_is_searched_for_on_many_nodes_is_bounded_together() -> None:
    """Seven cards bear the larger shares and none of them a smaller one too: every order of them is in vain."""
    steps = Steps()
    state = node("a").gpus(8, mib=16384).state()
    request = PodRequest("native", (*containers(8, 9 * GIB), FractionRequest("last", memory=8 * GIB)))
    for _ in range(100):
        assert isinstance(fitting.fit(state, request, DEFAULT_LIMITS, scores.least_free, steps), Reason)
    assert (steps.left, steps.spent) == (0, True)


def test_a_node_is_kept_for_a_thousand_containers() -> None:
    states = [node("a").gpu(mib=16384, used_mib=16384).state(), node("b").gpus(2, mib=16384).state()]
    ask = Ask(PodRequest("native", containers(POISON, 8 * MIB)), NEEDS)
    assert keeping.soonest(states, ask, DEFAULT_LIMITS) == "b"


def test_victims_are_looked_for_a_thousand_containers() -> None:
    states = [node("a").gpus(2, mib=16384).state()]
    ask = Ask(PodRequest("native", containers(POISON, 8 * MIB)), NEEDS)
    question = Question(ask, 1, DEFAULT_LIMITS)
    assert victims.choose(states, {}, question) is None
    assert victims.without_any(states, question) is not None


def test_more_givers_than_a_stack_is_deep_are_found() -> None:
    assert cover([(1,)] * 2_000, (1_500,), 2_000) is not None
