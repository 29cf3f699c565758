"""However many containers a pod has, the search makes the same choices in the same order, and ends."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import combinations
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from allocator.cache.podinfo import pod_event
from allocator.engine import reference
from allocator.engine.engine import Engine
from allocator.engine.reference import Placement
from allocator.preemption import planner
from allocator.preemption.planner import PreemptionRequest
from allocator.preemption.set_cover import cover
from allocator.queue import reservation
from allocator.queue.records import StatusUpdate
from allocator.scheduler.consistency import listed
from allocator.scheduler.events import pods_listed
from contract import names, pods
from contract.encoding import codec
from contract.encoding.quantity import GIB, MIB
from contract.model import (
    Allocation,
    Compute,
    ContainerAllocation,
    FractionRequest,
    GpuShare,
    NodeState,
    PodRequest,
)
from contract.options import NO_OPTIONS
from contract.reasons.nodes import Reason
from contract.scheduling import fit
from contract.scheduling.demand import held_at_most
from contract.scheduling.filters import DEFAULT_LIMITS
from contract.scheduling.fit import Fit, Steps
from contract.scheduling.needs import PodNeeds, SchedulingRequest
from tests.builders import PodBuilder, node
from tests.examples import examples
from tests.unit.allocator.harness import SchedulerHarness, admitted
from tests.unit.allocator.one_gpu import ONE_GPU, keys, worker

JSON = dict[str, Any]
POISON = 1_050
"""More containers than Python's limit for nested calls."""
ONE_SECOND = 1.0
NEEDS = PodNeeds(compute=Compute(pods=1))


def containers(count: int, memory: int) -> tuple[FractionRequest, ...]:
    return tuple(FractionRequest(f"c{i}", memory=memory) for i in range(count))


def by_hand(
    state: NodeState, request: PodRequest, candidates: list[list[int]], end: int
) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Every choice for the first `end` containers; GPUs that the pod already uses come first."""
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
@settings(max_examples=examples(80), deadline=None)
def test_the_order_is_that_of_a_search_through_all(request: PodRequest, used: list[int]) -> None:
    made = node("a")
    for gib in used:
        made = made.gpu(mib=10240, used_mib=gib * 1024)
    state = made.state()
    candidates = [list(range(len(used)))] * len(request.containers)
    through_all = list(by_hand(state, request, candidates, len(candidates)))
    assert list(fit.choices(state, request, candidates)) == through_all
    found = fit.fit(state, request, DEFAULT_LIMITS, lambda usable, usage: 0)
    bearing = [chosen for chosen in through_all if bears(state, request, chosen)]
    assert (found.chosen if isinstance(found, Fit) else None) == (bearing[0] if bearing else None)


def bears(state: NodeState, request: PodRequest, chosen: tuple[tuple[int, ...], ...]) -> bool:
    """
    Whether the GPUs can take all of it, and each container alone, and the pod holds no more than is counted for it.
    """
    demands = fit.demands_of(state, request, chosen)
    most, _ = held_at_most(request, lambda fraction: fraction.memory)
    return sum(demand.memory for demand in demands.values()) <= most and all(
        state.usage[position].memory + demand.memory <= state.gpus[position].usable
        for position, demand in demands.items()
    )


def test_a_thousand_containers_are_placed() -> None:
    states = {"a": node("a").gpus(2, mib=16384).state()}
    ask = SchedulingRequest(PodRequest("native", containers(POISON, 8 * MIB)), NEEDS)
    fast = Engine()
    fast.put(states["a"])
    found = fast.decide(ask)
    assert isinstance(found, Placement)
    assert (found, len(found.containers)) == (reference.decide(states, ask), POISON)


def test_a_thousand_containers_that_never_fit_get_their_answer_in_time() -> None:
    states = [node(f"n{i:03}").gpus(8, mib=16384).state() for i in range(100)]
    fast = Engine()
    for state in states:
        fast.put(state)
    # Each fits alone, and all fit into the total free amount; they only never fit card by card.
    ask = SchedulingRequest(PodRequest("native", containers(8 * POISON // 100, 3000 * MIB)), NEEDS)
    hard = SchedulingRequest(PodRequest("native", (*containers(12, 10 * GIB),)), NEEDS)
    started = time.thread_time()
    assert not isinstance(fast.decide(ask), Placement)
    assert not isinstance(fast.decide(hard), Placement)
    assert time.thread_time() - started < ONE_SECOND


def test_what_is_searched_for_on_many_nodes_is_bounded_together() -> None:
    """Seven cards can each take a larger share but not an additional smaller one, so every order of them fails."""
    steps = Steps()
    state = node("a").gpus(8, mib=16384).state()
    request = PodRequest("native", (*containers(8, 9 * GIB), FractionRequest("last", memory=8 * GIB)))
    for _ in range(100):
        assert isinstance(fit.fit(state, request, DEFAULT_LIMITS, fit.least_free, steps), Reason)
    assert (steps.left, steps.spent) == (0, True)


def test_a_node_is_kept_for_a_thousand_containers() -> None:
    states = [node("a").gpu(mib=16384, used_mib=16384).state(), node("b").gpus(2, mib=16384).state()]
    ask = SchedulingRequest(PodRequest("native", containers(POISON, 8 * MIB)), NEEDS)
    assert reservation.soonest(states, ask, DEFAULT_LIMITS) == "b"


def test_victims_are_looked_for_a_thousand_containers() -> None:
    states = [node("a").gpus(2, mib=16384).state()]
    ask = SchedulingRequest(PodRequest("native", containers(POISON, 8 * MIB)), NEEDS)
    question = PreemptionRequest(ask, 1, DEFAULT_LIMITS)
    assert planner.choose(states, {}, question) is None
    assert planner.without_any(states, question) is not None


def test_more_givers_than_a_stack_is_deep_are_found() -> None:
    assert cover([(1,)] * 2_000, (1_500,), 2_000) is not None


# -- pods stored before there was a bound -------------------------------------------------------------------------


def of_many(name: str) -> PodBuilder:
    made = worker(name, mib=8)
    for number in range(POISON - 1):
        made = made.container(f"c{number}").asks("gpufraction.io/gpu-memory", "8Mi")
    return made


def stored(name: str, **written: Any) -> JSON:
    """The pod as a version without a bound stored it."""
    pod, fractions = of_many(name).json(), tuple(FractionRequest(c.container, memory=8 * MIB) for c in MANY)
    for container in pod["spec"]["containers"]:
        container["resources"]["requests"] = dict(container["resources"]["limits"])
    text = codec.request_to_text(PodRequest("native", fractions))
    pod["metadata"]["annotations"] = {str(names.REQUEST): text, **written}
    return pod


MANY = (FractionRequest("main"), *containers(POISON - 1, 8 * MIB))


def test_one_that_waits_has_a_reason_and_delays_nobody_else() -> None:
    harness = SchedulerHarness([ONE_GPU])
    waits = stored("many")
    waits["spec"]["schedulingGates"] = [{"name": str(names.GATE)}]
    harness.controller.handle(pod_event(pods.trim(waits)))
    harness.controller.handle(pod_event(pods.trim(admitted(worker("other", mib=1000), gated=True))))
    bindings, news = harness.controller.schedule_pending()
    assert keys(bindings) == ["default/other"]
    (update,) = news
    assert isinstance(update, StatusUpdate)
    assert update.reason.startswith("waiting: spec.containers: found 1050 containers; ")


def test_one_that_holds_its_share_is_counted_to_the_last_byte() -> None:
    """Otherwise its cards would be given away a second time as soon as a version with a bound starts."""
    harness = SchedulerHarness([ONE_GPU])
    shares = tuple(
        ContainerAllocation(each.container, (GpuShare("GPU-t4-0", 0, 8 * MIB, 0, 15109 * MIB),)) for each in MANY
    )
    allocation = Allocation("id", "t4", shares)
    holds = stored("many", **{str(names.ALLOCATION): codec.allocation_to_text(allocation)})
    holds["spec"]["nodeName"] = "t4"
    harness.controller.handle(pods_listed([pods.trim(holds)]))
    (state,) = harness.controller.nodes()
    assert [usage.memory for usage in state.usage] == [POISON * 8 * MIB]
    seen = listed(holds, NO_OPTIONS)
    assert (seen.known.allocation, harness.controller.differs(seen)) == (allocation, False)
    harness.controller.check_invariants()
