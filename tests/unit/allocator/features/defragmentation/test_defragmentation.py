"""Pods move only if each has a place elsewhere and a larger pod can start: the plan, its limits, and the controller."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.cache.podinfo import pod_event
from allocator.engine.reference import Policy
from allocator.features.defragmentation import moves as defragmentation
from allocator.features.defragmentation.moves import HOUR, Larger, Movable, MoveBudget, again, choose
from allocator.features.defragmentation.part import DefragmentationAgreed
from allocator.features.defragmentation.settings import DefragmentationSettings
from allocator.preemption.planner import PreemptionRequest
from allocator.queue.records import EventRecord, Eviction, StatusUpdate
from allocator.scheduler.events import EvictionAnswered, PodDeleted
from contract import pods
from contract.encoding.protocol import Placed
from contract.encoding.quantity import GIB
from contract.model import Compute, FractionRequest, Gpu, NodeState, PodRequest, Usage
from contract.reasons.nodes import Reason
from contract.reasons.pods import PodEventReason
from contract.scheduling import fit, nodeinfo, protection
from contract.scheduling.demand import Demand
from contract.scheduling.filters import DEFAULT_LIMITS
from contract.scheduling.needs import PodNeeds, SchedulingRequest
from contract.scheduling.nodeinfo import AllocatedPod
from tests.builders import node
from tests.unit.allocator.harness import admitted, question
from tests.unit.allocator.preemption.test_preemption import Bench, worker

JSON = dict[str, Any]
CARD = 16 * GIB


# -- the plan ---------------------------------------------------------------------------------------------------------


def asks(memory: int, count: int = 1) -> SchedulingRequest:
    return SchedulingRequest(
        PodRequest("native", (FractionRequest("main", count, memory=memory),)), PodNeeds(Compute())
    )


def machine(name: str, cards: int) -> NodeState:
    gpus = tuple(Gpu(f"GPU-{name}-{at}", at, "T4", CARD, CARD) for at in range(cards))
    return NodeState(name, gpus, (Usage(),) * cards)


Cluster = tuple[list[NodeState], dict[str, list[AllocatedPod]], dict[str, Movable]]


def filled(machines: list[NodeState], shares: list[tuple[int, int, int, float]]) -> Cluster:
    """Shares of (node, card, GiB, work), without those that do not fit."""
    states = {each.name: each for each in machines}
    sharers: dict[str, list[AllocatedPod]] = {}
    movable = {}
    for number, (at, card, size, work) in enumerate(shares):
        state = machines[at % len(machines)]
        state, gpu = states[state.name], state.gpus[card % len(state.gpus)]
        used = state.usage[card % len(state.gpus)].memory
        if used + size * GIB > CARD:
            continue
        uid, demand = f"p{number}", Demand(size * GIB, 0, False)
        states[state.name] = nodeinfo.holding(state, [({gpu.uuid: demand}, PodNeeds(Compute()))])
        pod = AllocatedPod(uid, f"team/{uid}", state.name, 0, number, {gpu.uuid: demand}, Compute())
        sharers.setdefault(state.name, []).append(pod)
        movable[uid] = Movable(asks(size * GIB), size / 16, work)
    return list(states.values()), sharers, movable


def larger(memory: int, count: int = 1, *, could: float = 1e9, most: int = 8) -> Larger:
    question = PreemptionRequest(asks(memory, count), 0, DEFAULT_LIMITS)
    return Larger(question, count * memory / CARD, could, most)


def test_small_pods_move_together_so_that_a_whole_card_is_free() -> None:
    nodes, sharers, movable = filled([machine("a", 1), machine("b", 1)], [(0, 0, 8, 2.0), (1, 0, 4, 1.0)])
    move = choose(nodes, sharers, larger(CARD), movable)
    assert move is not None
    assert (move.plan.node, [pod.uid for pod in move.plan.victims], move.places) == ("b", ["p1"], {"p1": "a"})


@pytest.mark.parametrize(
    "wanted",
    [larger(CARD, could=0.5), larger(CARD, most=0), larger(4 * GIB), larger(2 * CARD)],
    ids=[
        "they have worked longer than it has missed",
        "no eviction is left",
        "it is no larger",
        "it fits nowhere ever",
    ],
)
def test_nobody_moves_in_vain_or_for_too_little(wanted: Larger) -> None:
    nodes, sharers, movable = filled([machine("a", 1), machine("b", 1)], [(0, 0, 13, 1.0), (1, 0, 2, 1.0)])
    assert choose(nodes, sharers, wanted, movable) is None


def test_a_pod_without_a_place_elsewhere_stays() -> None:
    nodes, sharers, movable = filled([machine("a", 1), machine("b", 1)], [(0, 0, 9, 1.0), (1, 0, 9, 1.0)])
    assert choose(nodes, sharers, larger(CARD), movable) is None


def test_a_pod_that_did_not_agree_stays() -> None:
    nodes, sharers, movable = filled([machine("a", 1), machine("b", 1)], [(0, 0, 8, 1.0), (1, 0, 4, 1.0)])
    del movable["p1"]
    move = choose(nodes, sharers, larger(CARD), movable)
    assert move is not None
    assert [pod.uid for pod in move.plan.victims] == ["p0"]


SHARES = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 1), st.integers(1, 12), st.floats(0, 100)), min_size=1, max_size=12
)


@given(SHARES, st.integers(1, 16), st.integers(1, 2), st.floats(0, 300), st.integers(1, 4))
def test_whatever_moves_has_a_place_and_the_larger_pod_starts(
    shares: list[tuple[int, int, int, float]], size: int, count: int, could: float, most: int
) -> None:
    nodes, sharers, movable = filled([machine(name, 2) for name in "abcd"], shares)
    wanted = larger(size * GIB, count, could=could, most=most)
    move = choose(nodes, sharers, wanted, movable)
    if move is None:
        return
    victims, states = move.plan.victims, {state.name: state for state in nodes}
    assert 0 < len(victims) <= most
    assert sum(movable[pod.uid].work for pod in victims) <= could
    assert all(movable[pod.uid].cards < wanted.cards and pod.node == move.plan.node for pod in victims)
    # The moves are carried out one after another, by the rules of placement.
    left = nodeinfo.unbooked(states[move.plan.node], sharers[move.plan.node], victims)
    states[move.plan.node] = _placed(left, wanted.question.ask)
    assert move.places.keys() == {pod.uid for pod in victims}
    for pod in sorted(victims, key=lambda pod: (-movable[pod.uid].cards, pod.uid)):
        place = move.places[pod.uid]
        assert place != move.plan.node
        states[place] = _placed(states[place], movable[pod.uid].ask)
    held = again(move, {state.name: state for state in nodes}, sharers[move.plan.node], wanted, movable)
    assert held is not None
    assert {pod.uid for pod in held.plan.victims} == {pod.uid for pod in victims}


def _placed(state: NodeState, ask: SchedulingRequest) -> NodeState:
    found = fit.fit(state, ask.request, DEFAULT_LIMITS, fit.least_free)
    assert not isinstance(found, Reason), found
    return nodeinfo.booked(state, ask, fit.allocate(state, ask.request, found.chosen))


@given(st.lists(st.tuples(st.floats(0, 600), st.integers(0, 3), st.sampled_from("xyz"))), st.integers(1, 4))
def test_never_more_than_so_many_an_hour_and_never_the_same_owner_soon(
    steps: list[tuple[float, int, str]], an_hour: int
) -> None:
    budget, now, done = MoveBudget(an_hour, 2 * HOUR), 0.0, list[tuple[float, str]]()
    for passes, number, owner in steps:
        now += passes
        for _ in range(min(number, budget.left(now))):
            if not budget.rests(owner, now):
                budget.count([owner], now)
                done.append((now, owner))
    for at, owner in done:
        assert sum(at - HOUR < other <= at for other, _ in done) <= an_hour
        assert sum(at - 2 * HOUR < other < at for other, whose in done if whose == owner) == 0


def test_the_age_of_a_pod() -> None:
    assert defragmentation.age(1893456000.0, 1893456060.0) == 60.0
    assert defragmentation.age(0, 1893456060.0) == float("inf")


# -- the controller ---------------------------------------------------------------------------------------------------

ON = DefragmentationSettings(evictions_per_hour=2)
BORN = 1893456000.0
"""2030-01-01, when all pods are created."""
WHY = "a larger pod waits for GPUs of node {}, and this pod fits on another node"


class Moving(Bench):
    """Cards of 16 GiB on `a` and `b`, with a pod of half a card and one of a quarter; `large` requests a whole card."""

    def __init__(
        self,
        moving: DefragmentationSettings | None = ON,
        *,
        agree: bool = True,
        owned: bool = True,
        extra: JSON | None = None,
    ) -> None:
        super().__init__(
            [node("a").gpu(mib=16384), node("b").gpu(mib=16384)], moving=moving, policy=Policy("spread", "spread")
        )
        self.wall, self.owned, self.extra = BORN + 60.0, owned, extra or {}
        self.half, self.quarter = self.runs("half", "8Gi"), self.runs("quarter", "4Gi")
        self.node = str(self.quarter["spec"]["nodeName"])
        assert self.half["spec"]["nodeName"] != self.node
        if agree:
            self.controller.handle(DefragmentationAgreed(frozenset({"default"})))
        self.wait(worker("large", "16Gi"))

    def runs(self, name: str, size: str, owner: str = "") -> JSON:
        builder = worker(name, size)
        answer = self.controller.reserve(question(builder))
        assert isinstance(answer, Placed), answer
        made = admitted(builder.on(answer.allocation.node), allocation=answer.allocation)
        if self.owned:
            reference = {"kind": "ReplicaSet", "name": "r", "uid": owner or f"of-{name}", "controller": True}
            made["metadata"]["ownerReferences"] = [reference]
        made["metadata"]["annotations"].update(self.extra)
        self.controller.handle(pod_event(pods.trim(made)))
        return made

    def later(self, seconds: float) -> list[Eviction]:
        """The pods that must move this many seconds later."""
        self.now += seconds
        return self.controller.preempt()

    def quarter_goes(self) -> Eviction:
        return Eviction("default/quarter", "uid-quarter", None, "defragmentation", WHY.format(self.node))


def test_the_smaller_pod_moves_and_the_larger_one_starts() -> None:
    harness = Moving()
    assert harness.later(0) == [], "it has missed less work than would be lost"
    order = harness.quarter_goes()
    assert harness.later(60) == [order]
    harness.controller.handle(EvictionAnswered(order, "evicted"))
    effects = harness.second()
    assert (
        EventRecord("Pod", "default/quarter", "uid-quarter", PodEventReason.MOVED, f"evicted: {order.why}") in effects
    )
    waits = next(news for news in effects if isinstance(news, StatusUpdate))
    assert f"waits for smaller pods that fit elsewhere on node {harness.node}, evicted to make room" in waits.reason
    assert harness.kept == f"{harness.node} for uid-large"
    assert harness.later(60) == [], "one that has room made for it asks for no more"
    harness.controller.handle(PodDeleted("uid-quarter"))
    assert "default/large" in [news.key for news in harness.second()]
    harness.second()
    assert harness.controller.look().waiting == 0
    successor = harness.runs("again", "4Gi", owner="of-quarter")
    assert successor["spec"]["nodeName"] != harness.node


NOBODY_MOVES = {
    "it is off unless switched on": Moving(DefragmentationSettings()),
    "the namespace has not agreed": Moving(agree=False),
    "no controller would create it again": Moving(owned=False),
    "its author forbids it": Moving(extra={protection.SAFE_TO_EVICT: "false"}),
}


@pytest.mark.parametrize("harness", NOBODY_MOVES.values(), ids=NOBODY_MOVES.keys())
def test_nobody_moves(harness: Moving) -> None:
    assert harness.later(600) == []


def test_nobody_moves_any_more_once_the_namespace_does_not_agree() -> None:
    harness = Moving()
    harness.controller.handle(DefragmentationAgreed(frozenset()))
    assert harness.later(600) == []


def test_a_pod_that_has_run_for_long_stays_until_the_other_waited_as_much() -> None:
    harness = Moving()
    harness.wall = BORN + 4 * 3600.0
    assert harness.later(600) == []
    # A quarter of a card for four hours equals a whole card for one.
    assert harness.later(3600) == [harness.quarter_goes()]


def test_a_disruption_budget_holds_and_costs_nothing() -> None:
    harness = Moving(replace(ON, evictions_per_hour=1))
    [order] = harness.later(60)
    harness.controller.handle(EvictionAnswered(order, "budget"))
    harness.second()
    assert harness.kept == ""
    assert harness.later(60) == [order], "no eviction was counted"


def test_no_more_are_evicted_in_an_hour_than_allowed_and_no_owner_twice() -> None:
    harness = Moving(replace(ON, evictions_per_hour=1))
    [order] = harness.later(60)
    harness.controller.handle(EvictionAnswered(order, "evicted"))
    harness.controller.handle(PodDeleted("uid-quarter"))
    harness.second()
    harness.controller.handle(PodDeleted("uid-large"))
    harness.second()
    harness.runs("again", "4Gi", owner="of-quarter")
    harness.wait(worker("next", "16Gi"))
    assert harness.later(600) == [], "one has been evicted in this hour"
    [other] = harness.later(3600)
    assert other.key == "default/half", "the other's owner is left alone for a day"
