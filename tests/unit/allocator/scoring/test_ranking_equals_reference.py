"""Remembered results give the plain decision, ties included, for any requests, releases and changes of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from allocator.engine import reference
from allocator.engine.engine import Engine
from allocator.engine.reference import Placement, Policy
from allocator.scoring import constants, estimator
from allocator.scoring import reference as scoring
from allocator.scoring.classes import Demanded, demanded, supply_of
from allocator.scoring.estimator import Learner
from allocator.scoring.tables import without_cpu
from allocator.table import tie
from contract.encoding.quantity import GIB
from contract.model import Compute, FractionRequest, Gpu, NodeState, PodRequest, PoolSharing, Usage, Wishes
from contract.scheduling import nodeinfo
from contract.scheduling.filters import Limits
from contract.scheduling.needs import PodNeeds, SchedulingRequest
from tests.examples import examples

LIMITS = Limits(max_sharers=4, memory_factor=1.25)
NAMES = tuple("abcdefg")
MODELS = (("T4", 15), ("V100", 32), ("A10", 23))
WISHES = (Wishes(), Wishes(), Wishes(use_models=("t4",)), Wishes(avoid_models=("T4",)), Wishes(use_uuids=("GPU-a-1",)))


@st.composite
def asks(draw: st.DrawFn) -> SchedulingRequest:
    whole, count = draw(st.booleans()), draw(st.sampled_from((1, 1, 1, 1, 2, 4)))
    by_bytes = draw(st.booleans()) and not whole
    fraction = FractionRequest(
        "main",
        count,
        memory=draw(st.sampled_from((1, 3, 7, 12))) * GIB if by_bytes else 0,
        percent=0 if by_bytes else 100 if whole else draw(st.sampled_from((10, 30, 50, 80))),
        cores=100 if whole else draw(st.sampled_from((0, 10, 30, 50))),
        exclusive=whole,
        wishes=draw(st.sampled_from(WISHES)),
        one_numa=draw(st.integers(0, 7)) == 0,
    )
    containers: tuple[FractionRequest, ...] = (fraction,)
    form = draw(st.sampled_from(("one", "one", "one", "none", "same", "apart")))
    if form == "none":
        containers = ()
    elif form != "one":
        small = replace(fraction, memory=2 * GIB, percent=0, cores=10, exclusive=False)
        if form == "apart" and draw(st.booleans()):
            small = replace(small, memory=0, percent=33)
        other = replace(small, container="other", init=draw(st.booleans()))
        containers = (small, replace(other, memory=GIB) if small.memory else replace(other, percent=21))
    choice = st.sampled_from(("", "", "", "spread"))
    request = PodRequest("any", containers, form == "same", draw(choice), draw(choice))
    return SchedulingRequest(request, PodNeeds(Compute(cpu=draw(st.sampled_from((0, 2000, 6000))), pods=1)))


@st.composite
def nodes(draw: st.DrawFn, name: str) -> NodeState:
    common = draw(st.sampled_from(MODELS))
    gpus = []
    for index in range(draw(st.integers(0, 4))):
        model, size = draw(st.sampled_from(MODELS)) if draw(st.integers(0, 5)) == 0 else common
        well = draw(st.integers(0, 9)) > 0
        reason, links = "" if well else "XID 79", ((f"GPU-{name}-{index ^ 2}", "NVLink"),)
        gpus.append(Gpu(f"GPU-{name}-{index}", index, model, size * GIB, size * GIB, well, reason, links=links))
    pool = draw(st.sampled_from((PoolSharing(), PoolSharing(), PoolSharing(2, 3.0))))
    gpus = [replace(gpu, sharing=pool, numa=gpu.index % 2) for gpu in gpus]
    return NodeState(name, tuple(gpus), (Usage(),) * len(gpus), allocatable=Compute(cpu=16_000, pods=40))


def _preferred(liked: set[str], nodes: Sequence[NodeState]) -> list[int]:
    return [node.name in liked for node in nodes]


class Sequences(RuleBasedStateMachine):
    policy = "value"

    def __init__(self) -> None:
        super().__init__()
        self.chosen = Policy(self.policy)
        self.nodes: dict[str, NodeState] = {}
        self.fast = Engine(limits=LIMITS, policy=self.chosen)
        self.learner = Learner()

    def _put(self, node: NodeState) -> None:
        self.nodes[node.name] = node
        self.fast.put(node)

    @rule(data=st.data(), name=st.sampled_from(NAMES))
    def node_joins_or_changes(self, data: st.DataObject, name: str) -> None:
        self._put(data.draw(nodes(name)))

    @rule(name=st.sampled_from(NAMES))
    def node_leaves(self, name: str) -> None:
        self.nodes.pop(name, None)
        self.fast.drop(name)

    @rule(name=st.sampled_from(NAMES))
    def everybody_leaves_the_node(self, name: str) -> None:
        if name in self.nodes:
            node = self.nodes[name]
            self._put(replace(node, usage=(Usage(),) * len(node.gpus), requested=Compute()))

    @rule()
    def learn(self) -> None:
        self.fast.adopt(estimator.make(self.policy, self.learner.target(), supply_of(self.nodes, LIMITS)))

    @rule(cards=st.sets(st.integers(1, 5), max_size=2))
    def some_wait(self, cards: set[int]) -> None:
        self.fast.spare(cards)

    @rule(ask=asks(), times=st.integers(1, 4), liked=st.none() | st.sets(st.sampled_from(NAMES)))
    def ask_for(self, ask: SchedulingRequest, times: int, liked: set[str] | None) -> None:
        for _ in range(times):
            self.learner.see(ask.request, ask.needs.compute.cpu)
            prefer = None if liked is None else partial(_preferred, liked)
            found = self.fast.decide(ask, prefer=prefer)
            assert found == reference.decide(
                self.nodes, ask, limits=LIMITS, policy=self.chosen, tables=self.fast.tables, prefer=prefer
            )
            if isinstance(found, Placement):
                self._put(nodeinfo.booked(self.nodes[found.node], ask, found.containers))


class Published(Sequences):
    policy = "fragmentation"


class Roomy(Sequences):
    """Tables of a cluster in which CPU and models are not scarce, whatever was requested."""

    @rule()
    def learn(self) -> None:
        bare = {replace(each, use_models=(), avoid_models=()): 1.0 for each in self.learner.target()}
        made = estimator.make(self.policy, without_cpu(bare), supply_of(self.nodes, LIMITS))
        assert made is None or made.roomy
        self.fast.adopt(made)


APART = {Demanded(0, percent=70, cores=10): 50.0, Demanded(0, percent=10, cores=70): 50.0}
"""Shares that differ enough in the two dimensions for both dimensions to count."""


class TwoSided(Sequences):
    """Tables by both dimensions of a card."""

    @rule()
    def learn(self) -> None:
        bare = {replace(each, use_models=(), avoid_models=()): 1.0 for each in self.learner.target()}
        made = estimator.make(self.policy, without_cpu({**bare, **APART}), supply_of(self.nodes, LIMITS))
        assert made is None or made.sided is not None
        self.fast.adopt(made)


TestValue = Sequences.TestCase
TestFragmentation = Published.TestCase
TestRoomy = Roomy.TestCase
TestTwoSided = TwoSided.TestCase
TestValue.settings = settings(max_examples=examples(20), stateful_step_count=30, deadline=None)
TestFragmentation.settings = TestRoomy.settings = TestTwoSided.settings = TestValue.settings


def test_nothing_learnt_is_best_fit() -> None:
    small, large = (
        NodeState(name, (Gpu(f"GPU-{name}", 0, "T4", 16 * GIB, 16 * GIB),), (Usage(memory=used * GIB),),
                  allocatable=Compute(pods=9))
        for name, used in (("a", 2), ("b", 9))
    )  # fmt: skip
    ask = SchedulingRequest(PodRequest("any", (FractionRequest("main", memory=GIB),)), PodNeeds())
    snapshot = {node.name: node for node in (small, large)}
    found = reference.decide(snapshot, ask, policy=Policy("value"))
    assert found == reference.decide(snapshot, ask)
    assert isinstance(found, Placement)
    assert found.node == "b"


@pytest.mark.parametrize("policy", ["value", "fragmentation"])
def test_no_demand_or_no_cards_teach_nothing(policy: str) -> None:
    assert estimator.make(policy, {}, supply_of({}, LIMITS)) is None


ONE_CARD = SchedulingRequest(
    PodRequest("any", (FractionRequest("main", percent=100, cores=100, exclusive=True),)), PodNeeds()
)


def cards(name: str, number: int, *, taken: int) -> NodeState:
    """A node with this many cards, of which the first are allocated as a whole."""
    gpus = tuple(Gpu(f"GPU-{name}-{at}", at, "T4", 16 * GIB, 16 * GIB) for at in range(number))
    usage = (Usage(16 * GIB, 100, 1, True),) * taken + (Usage(),) * (number - taken)
    return NodeState(name, gpus, usage, allocatable=Compute(pods=9))


WAITS = {
    "nobody waits: the order between equals decides": ("value", (), "first"),
    "a pod waits for one card, which any node may give": ("value", (1,), "first"),
    "a pod waits for four: the node with fewer free cards is used": ("value", (1, 4), "second"),
    "a pod waits for eight, which neither node has": ("value", (8,), "first"),
    "one waits for four beside it": ("value", (4, 8), "second"),
    "the published policy stays as published": ("fragmentation", (4,), "first"),
}
NAMES_T4 = replace(ONE_CARD.request, containers=(replace(ONE_CARD.request.containers[0], wishes=WISHES[2]),))


@pytest.mark.parametrize(("policy", "awaited", "expected"), WAITS.values(), ids=WAITS.keys())
def test_free_cards_are_spared_while_a_pod_waits_for_several(
    policy: str, awaited: tuple[int, ...], expected: str
) -> None:
    first, second = sorted("ab", key=tie)
    both = {first: cards(first, 4, taken=1), second: cards(second, 4, taken=3)}
    engine, learner = Engine(limits=LIMITS, policy=Policy(policy)), Learner()
    for node in both.values():
        engine.put(node)
    learner.see(ONE_CARD.request, 0)
    made = estimator.make(policy, learner.target(), supply_of(both, LIMITS))
    assert made is not None
    tables = replace(made, roomy=False)
    engine.adopt(tables)
    assert engine.decide(ONE_CARD) == reference.decide(both, ONE_CARD, policy=Policy(policy), tables=tables)
    engine.spare(awaited)
    for _ in engine.adopting(tables):
        pass
    found = engine.decide(ONE_CARD)
    assert isinstance(found, Placement)
    assert found.node == {"first": first, "second": second}[expected], "what was told outlives new tables"


def test_no_cards_are_spared_where_some_requests_name_a_model() -> None:
    both = {name: cards(name, 4, taken=1) for name in "ab"}
    other = NodeState("c", (Gpu("GPU-c", 0, "A10", 16 * GIB, 16 * GIB),), (Usage(),), allocatable=Compute(pods=9))
    found = {}
    for request in (ONE_CARD.request, NAMES_T4):
        learner = Learner()
        learner.see(request, 0)
        tables = estimator.make("value", learner.target(), supply_of({**both, "c": other}, LIMITS))
        assert tables is not None
        found[request] = scoring.spared(both["a"], LIMITS, replace(tables, awaited=4))
    assert found == {ONE_CARD.request: constants.PER_SPARED_NODE + 3 * constants.PER_FREE_CARD, NAMES_T4: 0}


def test_before_anything_is_learned_nothing_is_reported() -> None:
    engine = Engine(limits=LIMITS, policy=Policy("value"))
    engine.spare((4,))
    assert engine.tables is None


def test_between_equals_smaller_nodes_rank_by_a_quarter_of_the_hash() -> None:
    """By the whole hash the larger node would be first; by a quarter of it the smaller one is."""
    names = sorted((f"n{number}" for number in range(40)), key=tie)
    large_name, small_name = next((large, small) for large, small in pairwise(names) if tie(small) >> 2 < tie(large))
    # One card is free on each, and only whole cards are requested, so the cost is the same.
    both = {large_name: cards(large_name, 4, taken=3), small_name: cards(small_name, 2, taken=1)}
    learner = Learner()
    learner.see(ONE_CARD.request, 0)
    found = {}
    for policy in ("value", "fragmentation"):
        tables = estimator.make(policy, learner.target(), supply_of(both, LIMITS))
        assert tables is not None
        scarce = replace(tables, roomy=False)
        decision = reference.decide(both, ONE_CARD, limits=LIMITS, policy=Policy(policy), tables=scarce)
        assert isinstance(decision, Placement)
        found[policy] = decision.node
    assert found == {"value": small_name, "fragmentation": large_name}, "the published policy's ties stay as published"


def test_between_equals_a_roomy_cluster_fills_the_fullest_node() -> None:
    first, second = sorted("ab", key=tie)
    both = {first: cards(first, 4, taken=1), second: cards(second, 4, taken=2)}
    learner = Learner()
    learner.see(ONE_CARD.request, 0)
    made = estimator.make("value", learner.target(), supply_of(both, LIMITS))
    assert made is not None
    assert made.roomy
    found = {}
    for tables in (made, replace(made, roomy=False)):
        decision = reference.decide(both, ONE_CARD, limits=LIMITS, policy=Policy("value"), tables=tables)
        assert isinstance(decision, Placement)
        found[tables.roomy] = decision.node
    assert found == {True: second, False: first}, "the node with fewer free cards; elsewhere the hash decides"


def test_between_equals_a_roomy_cluster_fills_the_fullest_card() -> None:
    """No share has any value here, so all cards cost the same."""
    node = cards("a", 2, taken=0)
    node = replace(node, usage=(Usage(1 * GIB, 0, 1), Usage(2 * GIB, 0, 1)))
    ask = SchedulingRequest(PodRequest("any", (FractionRequest("main", memory=GIB),)), PodNeeds())
    made = estimator.make("value", {next(demanded(ONE_CARD.request, 0)): 1.0}, supply_of({"a": node}, LIMITS))
    assert made is not None
    found = {}
    for tables in (made, replace(made, roomy=False)):
        decision = reference.decide({"a": node}, ask, limits=LIMITS, policy=Policy("value"), tables=tables)
        assert isinstance(decision, Placement)
        found[tables.roomy] = [share.index for share in decision.containers[0].shares]
    assert found == {True: [1], False: [0]}


def test_a_share_goes_beside_one_that_takes_the_other_side() -> None:
    """By the larger dimension both cards are equally full; next to 70% of memory there is room for 70% of cores."""
    node = cards("a", 2, taken=0)
    usage = tuple(Usage(16 * GIB * memory // 100, cores, 1) for memory, cores in ((10, 70), (70, 10)))
    node = replace(node, usage=usage)
    made = estimator.make("value", APART, supply_of({"a": node}, LIMITS))
    found = []
    for memory, cores_ in ((70, 10), (10, 70)):
        share = FractionRequest("main", percent=memory, cores=cores_)
        ask = SchedulingRequest(PodRequest("any", (share,)), PodNeeds())
        decision = reference.decide({"a": node}, ask, limits=LIMITS, policy=Policy("value"), tables=made)
        assert isinstance(decision, Placement)
        found.append([given.index for given in decision.containers[0].shares])
    assert found == [[0], [1]]


def test_a_small_share_leaves_room_for_two_that_belong_together() -> None:
    """25% of both would spoil the card of 70% and 10% for the frequent share of the other dimension: open a card."""
    node = replace(cards("a", 2, taken=0), usage=(Usage(16 * GIB * 70 // 100, 10, 1), Usage()))
    ask = SchedulingRequest(PodRequest("any", (FractionRequest("main", percent=25, cores=25),)), PodNeeds())
    demand = {**APART, Demanded(0, percent=10, cores=70): 99.0, Demanded(0, percent=25, cores=25): 10.0}
    made = estimator.make("value", demand, supply_of({"a": node}, LIMITS))
    decision = reference.decide({"a": node}, ask, limits=LIMITS, policy=Policy("value"), tables=made)
    assert isinstance(decision, Placement)
    assert [given.index for given in decision.containers[0].shares] == [1]
