"""From requests to tables: classes, sizes by both dimensions, when to learn, and what the tables then prefer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from allocator.engine import reference
from allocator.engine.reference import Placement, Policy, policy_of
from allocator.scoring import constants, estimator, tables
from allocator.scoring.classes import CARD, Demanded, Kind, Stock, Supply, demanded, kind_of, left, supply_of
from allocator.scoring.constants import FIRST
from allocator.scoring.estimator import Learner
from contract.encoding.quantity import GIB
from contract.model import Compute, FractionRequest, Gpu, NodeState, PodRequest, Usage, Wishes
from contract.scheduling import fit
from contract.scheduling.filters import DEFAULT_LIMITS
from contract.scheduling.needs import PodNeeds, SchedulingRequest

T4 = Kind("Tesla T4", 15 * GIB, 15 * GIB, 16 * GIB)
A100 = Kind("A100", 80 * GIB, 80 * GIB, 80 * GIB)
SUPPLY = Supply({T4: Stock(4, 8000), A100: Stock(4, 8000)}, 16_000)

SIZES = {
    "bytes are a larger part of a smaller card": (Demanded(0, memory=3 * GIB), (200, 37)),
    "percent are the same of both": (Demanded(0, percent=30), (300, 300)),
    "cores, where they are the larger side": (Demanded(0, memory=3 * GIB, cores=50), (500, 500)),
    "a card for itself is whole": (Demanded(0, memory=GIB, exclusive=True), (CARD, CARD)),
    "what does not fit is more than a card": (Demanded(0, memory=16 * GIB), (1066, 200)),
    "nothing at all still takes a place": (Demanded(0), (1, 1)),
}


@pytest.mark.parametrize(("demand", "want"), SIZES.values(), ids=SIZES.keys())
def test_size_on_a_card(demand: Demanded, want: tuple[int, int]) -> None:
    assert (demand.size_on(T4), demand.size_on(A100)) == want


def test_what_is_left_is_what_the_scarcer_side_leaves() -> None:
    assert left(10 * GIB, 4 * GIB, 10) == 600
    assert left(10 * GIB, 1 * GIB, 60) == 400
    assert left(10 * GIB, 11 * GIB, 0) == 0


def _request(*fractions: FractionRequest, same: bool = False) -> PodRequest:
    return PodRequest("any", fractions, same)


CLASSES = {
    "a pod without a share takes CPU only": (_request(), [Demanded(3000, 0)]),
    "one container": (_request(FractionRequest("a", 2, percent=50, cores=10)), [Demanded(3000, 2, 0, 50, 10)]),
    "containers on the same card are one share": (
        _request(FractionRequest("a", memory=GIB, cores=10), FractionRequest("b", memory=2 * GIB, cores=20), same=True),
        [Demanded(3000, 1, 3 * GIB, 0, 30)],
    ),
    "containers apart, without the one that ends first": (
        _request(FractionRequest("i", memory=GIB, init=True), FractionRequest("a", memory=GIB, wishes=Wishes(("t4",)))),
        [Demanded(3000, 1, GIB, use_models=("t4",))],
    ),
    "a wish for a large card": (
        _request(FractionRequest("a", memory=GIB, wishes=Wishes(least_memory=40 * GIB))),
        [Demanded(3000, 1, GIB, least_memory=40 * GIB)],
    ),
}


@pytest.mark.parametrize(("request_", "want"), CLASSES.values(), ids=CLASSES.keys())
def test_classes_of_a_pod(request_: PodRequest, want: list[Demanded]) -> None:
    assert list(demanded(request_, 3000)) == want


def test_tables_are_due_at_each_doubling() -> None:
    learner = Learner()
    half = _request(FractionRequest("a", percent=50))
    due = [number for number in range(1, 5 * FIRST) if learner.see(half, 1000)]
    assert due == [FIRST, 2 * FIRST, 4 * FIRST]


def test_a_number_of_cards_not_seen_before_is_learnt_soon() -> None:
    learner = Learner()
    half, pair = (_request(FractionRequest("a", count, percent=100)) for count in (1, 2))
    for _ in range(3 * FIRST):
        learner.see(half, 1000)
    assert learner.see(pair, 1000)
    assert not any(learner.see(pair, 1000) for _ in range(FIRST))


def test_what_was_requested_long_ago_counts_less() -> None:
    learner = Learner(half_life=100)
    old, new = (_request(FractionRequest("a", percent=percent)) for percent in (30, 70))
    for request in [old] * 200 + [new] * 200:
        learner.see(request, 0)
    target = learner.target()
    (was,), (now,) = demanded(old, 0), demanded(new, 0)
    assert target[was] == pytest.approx(target[now] / 4, rel=0.01)


def test_pressure_begins_where_cpu_comes_short() -> None:
    def pressed(cpu: int) -> float:
        return tables.pressure({Demanded(cpu, exclusive=True): 1.0}, SUPPLY)[0]

    assert [pressed(1000), pressed(1480), pressed(9000)] == pytest.approx([0.0, 0.05, 0.1])


_SHARE, _WHOLE = Demanded(1000, percent=50), Demanded(500, exclusive=True)
ROOMY = {
    "half of the CPU is requested": ({Demanded(1000, exclusive=True): 1.0}, True),
    "most of the CPU is requested": ({Demanded(1300, exclusive=True): 1.0}, False),
    "shares need all CPU, and nobody requested a whole card yet": ({_SHARE: 2.0}, False),
    "shares need much, whole cards little, and whole nodes may come": ({_SHARE: 2.0, _WHOLE: 1.0}, True),
    "the same where whole nodes came": (
        {_SHARE: 2.0, _WHOLE: 1.0, Demanded(5000, 4, exclusive=True): 0.01}, False
    ),
    "one in fifty names a model": ({_WHOLE: 49.0, Demanded(500, exclusive=True, use_models=("t4",)): 1.0}, False),
    "one in a hundred does": ({_WHOLE: 99.0, Demanded(500, exclusive=True, use_models=("t4",)): 1.0}, True),
}  # fmt: skip


@pytest.mark.parametrize(("target", "want"), ROOMY.values(), ids=ROOMY.keys())
def test_a_cluster_is_roomy_where_neither_cpu_nor_models_are_scarce(target: dict[Demanded, float], want: bool) -> None:
    """The cluster has 2000 thousandths of CPU for each card."""
    stocks = {T4: Stock(4, 8000, together=4), A100: Stock(4, 8000, together=4)}
    assert tables.is_roomy(target, Supply(stocks, 16_000, 4)) == want


def test_a_cluster_is_not_roomy_where_many_cards_are_beside_little_cpu() -> None:
    """There is twice as much CPU as is requested, but most of it is on the nodes of half of the cards."""
    stocks = {T4: Stock(4, 12_000, together=4), A100: Stock(4, 4000, together=4)}
    found = [
        tables.is_roomy({Demanded(cpu, 4, exclusive=True): 1.0}, Supply(stocks, 16_000, 4)) for cpu in (4000, 4100)
    ]
    assert found == [True, False]


def test_pods_of_several_cards_are_kept_for_where_models_are_named() -> None:
    """The T4 nodes have two cards each, so pods of four cards fit only on the A100."""
    supply = Supply({T4: Stock(4, 8000, together=2), A100: Stock(4, 8000, together=4)}, 16_000)
    named, large = Demanded(0, exclusive=True, use_models=("t4",)), Demanded(0, 4, exclusive=True)
    assert tables.scarce({named: 4.0, large: 1.0}, supply, A100) == pytest.approx(1.0)
    assert tables.scarce({_WHOLE: 4.0, large: 1.0}, supply, A100) == 0.0, "small nodes come sooner, which suffices"


def test_scarce_is_what_is_requested_by_name_or_by_size() -> None:
    anything = Demanded(0, exclusive=True)
    assert tables.scarce({anything: 9.0}, SUPPLY, A100) == 0
    named = Demanded(0, exclusive=True, use_models=("a100",))
    assert tables.scarce({anything: 1.0, named: 1.0}, SUPPLY, A100) == pytest.approx(1.0)
    assert tables.scarce({anything: 1.0, named: 1.0}, SUPPLY, T4) == 0
    assert tables.scarce({Demanded(0, memory=40 * GIB): 1.0}, SUPPLY, A100) == pytest.approx(2.0)
    large_card = Demanded(0, memory=GIB, least_memory=40 * GIB)
    assert tables.scarce({large_card: 1.0}, SUPPLY, A100) == pytest.approx(2.0)
    assert tables.scarce({large_card: 1.0}, SUPPLY, T4) == 0


def test_scarce_goes_by_what_is_free() -> None:
    anything, named = Demanded(0, exclusive=True), Demanded(0, exclusive=True, use_models=("a100",))
    demand = {anything: 1.0, named: 1.0}

    def scarce(t4: int, a100: int) -> float:
        """The scarcity with this many thousandths of the four cards of either kind allocated."""
        supply = Supply({T4: Stock(4, 8000, t4), A100: Stock(4, 8000, a100)}, 16_000)
        return tables.scarce(demand, supply, A100)

    assert [scarce(0, 0), scarce(2000, 2000)] == pytest.approx([1.0, 1.0])
    assert scarce(4000, 2000) == pytest.approx(0.5), "nobody else has anywhere to go, so nothing is to be kept for"
    assert scarce(0, 3000) == pytest.approx(2.5)
    assert scarce(0, 4000) == 8.0, "bounded"
    assert scarce(4000, 4000) == 0.0


def test_scarcity_counts_in_thirds() -> None:
    demand = {Demanded(0, exclusive=True): 8.0, Demanded(0, exclusive=True, use_models=("a100",)): 1.0}

    def scarcity(a100: int) -> tuple[float, list[int], bool]:
        """The scarcity with this many thousandths of the four A100 allocated."""
        supply = Supply({T4: Stock(4, 8000), A100: Stock(4, 8000, a100)}, 16_000)
        made = tables.value(demand, supply)
        return tables.scarce(demand, supply, A100), made.scarcity.tolist(), made.limited

    exact, counted, limited = scarcity(0)
    a_third = constants.ONE * (A100.capacity / ((T4.capacity + A100.capacity) / 2)) / 3
    assert [exact, max(counted)] == pytest.approx([2 / 9, a_third], abs=1e-6 * a_third)
    assert limited
    exact, counted, limited = scarcity(3999)
    assert [exact, max(counted)] == pytest.approx([8, 24 * a_third], abs=1e-6 * a_third)
    none = tables.value({Demanded(0, exclusive=True): 8.0}, SUPPLY)
    assert (max(none.scarcity), none.limited) == (0, False)


def test_the_cluster_has_filled_when_a_tenth_more_is_taken() -> None:
    def supply(taken: int) -> Supply:
        return Supply({T4: Stock(4, 8000, taken)}, 16_000)

    found = [estimator.filled(supply(1000), supply(taken)) for taken in (0, 700, 1000, 1300, 1500)]
    assert found == [True, False, False, False, True]
    assert not estimator.filled(Supply({}, 0), supply(1000))


def _node(name: str, *cards: tuple[int, int], cpu: int = 64_000) -> NodeState:
    """A node with T4s; for each the allocated GiB and percent of cores."""
    gpus = tuple(Gpu(f"GPU-{name}-{at}", at, T4.model, T4.memory, T4.usable) for at in range(len(cards)))
    usage = tuple(Usage(memory * GIB, cores, bool(memory or cores)) for memory, cores in cards)
    return NodeState(name, gpus, usage, allocatable=Compute(cpu=cpu, pods=50))


def _chosen(policy: str, target: dict[Demanded, float], ask: FractionRequest, *nodes: NodeState) -> tuple[str, int]:
    snapshot = {node.name: node for node in nodes}
    learnt = estimator.make(policy, target, supply_of(snapshot, DEFAULT_LIMITS))
    found = reference.decide(
        snapshot, SchedulingRequest(_request(ask), PodNeeds(Compute(pods=1))), policy=Policy(policy), tables=learnt
    )
    assert isinstance(found, Placement)
    return found.node, found.containers[0].shares[0].index


THIRDS_AND_FIFTHS = {Demanded(0, memory=5 * GIB): 5.0, Demanded(0, memory=3 * GIB): 5.0}


def test_a_share_goes_where_it_spoils_no_larger_one() -> None:
    """
    Best fit would take the card with 5 GiB left, which is all that the seen requests need; 8 minus 3 leave that too.
    """
    share = FractionRequest("main", memory=3 * GIB)
    cards = _node("n", (10, 0), (7, 0))
    assert _chosen("value", {Demanded(0, memory=5 * GIB): 1.0}, share, cards) == ("n", 1)
    assert _chosen("fragmentation", {Demanded(0, memory=5 * GIB): 1.0}, share, cards) == ("n", 1)


TOGETHER = {
    "two shares that add up to the one that spoils nothing": ((1 * GIB, 2 * GIB), {"a": 1, "b": 1}),
    "too much for one card": ((4 * GIB, 7 * GIB), {"a": 0, "b": 1}),
}


@pytest.mark.parametrize(("demand", "want"), TOGETHER.values(), ids=TOGETHER)
def test_containers_that_may_share_a_card(demand: tuple[int, int], want: dict[str, int]) -> None:
    node = _node("n", (10, 0), (7, 0))
    request = _request(*(FractionRequest(name, memory=memory) for name, memory in zip("ab", demand, strict=True)))
    learnt = estimator.make("value", {Demanded(0, memory=5 * GIB): 1.0}, supply_of({"n": node}, DEFAULT_LIMITS))
    found = reference.decide({"n": node}, SchedulingRequest(request, PodNeeds()), policy=Policy("value"), tables=learnt)
    assert isinstance(found, Placement)
    assert {c.container: c.shares[0].index for c in found.containers} == want


JOINED = {
    "bytes add up": (_request(FractionRequest("a", memory=GIB), FractionRequest("b", memory=GIB)), True),
    "percent add up": (_request(FractionRequest("a", percent=50), FractionRequest("b", percent=50)), True),
    "more than all of a card": (_request(FractionRequest("a", percent=50), FractionRequest("b", percent=51)), False),
    "more than all of its cores": (
        _request(FractionRequest("a", memory=GIB, cores=60), FractionRequest("b", memory=GIB, cores=60)),
        False,
    ),
    "one after the other": (
        _request(FractionRequest("a", percent=90, init=True), FractionRequest("b", percent=90)),
        True,
    ),
    "bytes and percent": (_request(FractionRequest("a", memory=GIB), FractionRequest("b", percent=50)), False),
    "unlike numbers of cards": (_request(FractionRequest("a", 2, GIB), FractionRequest("b", 1, GIB)), False),
    "unlike wishes": (
        _request(FractionRequest("a", 1, GIB, wishes=Wishes(("t4",))), FractionRequest("b", memory=GIB)),
        False,
    ),
    "one alone": (_request(FractionRequest("a", memory=GIB)), False),
}


@pytest.mark.parametrize(("request_", "may"), JOINED.values(), ids=JOINED)
def test_which_containers_may_share_a_card(request_: PodRequest, may: bool) -> None:
    found = fit.joined(request_)
    assert found == (replace(request_, same_gpus=True) if may else None)


def test_two_sides_that_disagree() -> None:
    """More than half the memory and no cores: one card has the memory, but no cores left for the requested halves."""
    halves = {Demanded(0, percent=50, cores=50): 1.0}
    memory_only = FractionRequest("main", percent=60)
    spoilt, good = (1, 80), (0, 0)
    assert _chosen("value", halves, memory_only, _node("n", good, spoilt)) == ("n", 1)
    assert _chosen("fragmentation", halves, memory_only, _node("n", good, spoilt)) == ("n", 1)


def test_a_kind_of_card_that_joined_after_the_lesson_can_be_used() -> None:
    old, new = _node("old", (15, 0)), _node("new", (0, 0))
    new_cards = tuple(Gpu(g.uuid, g.index, "H100", 80 * GIB, 80 * GIB) for g in new.gpus)
    joined = NodeState("new", new_cards, new.usage, allocatable=new.allocatable)
    learnt = estimator.make("value", THIRDS_AND_FIFTHS, supply_of({"old": old}, DEFAULT_LIMITS))
    assert learnt is not None
    assert kind_of(joined.gpus[0], DEFAULT_LIMITS) not in learnt.kinds
    ask = SchedulingRequest(_request(FractionRequest("main", memory=5 * GIB)), PodNeeds())
    found = reference.decide({"old": old, "new": joined}, ask, policy=Policy("value"), tables=learnt)
    assert isinstance(found, Placement)
    assert found.node == "new"


def test_a_tenant_who_chooses_gets_what_was_chosen() -> None:
    request = PodRequest("any", (FractionRequest("main", percent=10),), node_policy="spread")
    assert policy_of(SchedulingRequest(request, PodNeeds()), Policy("value")) == Policy("spread", "binpack")
    assert policy_of(SchedulingRequest(_request(), PodNeeds()), Policy("value", "spread")) == Policy("value", "spread")


def test_worth_is_convex_in_the_price_of_cpu() -> None:
    """`ranks` relies on this: if no neighbouring price is lower, no price is."""
    target = {
        Demanded(cpu, memory=gib * GIB, percent=0, cores=cores): float(gib + cpu % 7)
        for gib, cpu, cores in ((1, 300, 0), (2, 4000, 10), (3, 700, 0), (5, 2500, 40), (7, 7900, 0), (7, 100, 0))
    }
    made = tables.value(target, SUPPLY)
    worth = made.worth.astype(int).reshape(len(made.kinds) + 1, CARD + 1, 2, tables.LANES)
    prices = np.array(constants.CPU_PRICES)
    rise = np.diff(worth) / np.diff(prices)
    assert worth.any()
    assert (np.diff(rise) >= -1e-9).all()
