"""A large pod is served even if small ones keep coming: a node is reserved for it while that is necessary."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allocator.cache.podinfo import pod_event
from allocator.engine.reference import Policy
from allocator.queue import reservation
from allocator.scheduler.events import BindSucceeded, InventoryDeleted, PodDeleted, TickPhase
from allocator.scoring import estimator
from allocator.scoring.classes import Demanded, supply_of
from allocator.server import debug
from allocator.table import tie
from contract.encoding.protocol import Placed
from contract.encoding.quantity import GIB
from contract.model import FractionRequest, PodRequest
from contract.scheduling.filters import Limits
from contract.scheduling.needs import PodNeeds, SchedulingRequest
from tests.builders import NodeBuilder, PodBuilder, node, pod
from tests.examples import examples
from tests.unit.allocator.chosen import chosen
from tests.unit.allocator.harness import SchedulerHarness, admitted, question, remade

JSON = dict[str, Any]
AFTER = 60.0


def worker(name: str, size: str, *, priority: int = 0, count: int = 1) -> PodBuilder:
    made = pod(name).uid(f"uid-{name}").asks("gpufraction.io/gpu-memory", size).spec(priority=priority)
    return made.asks("gpufraction.io/gpu-count", count) if count > 1 else made


@dataclass
class World:
    """A cluster in which small pods arrive at admission whenever there is room, and run for a while."""

    nodes: tuple[NodeBuilder, ...]
    starvation_timeout: float = AFTER
    ends: dict[str, float] = field(default_factory=dict)
    made: int = 0

    def __post_init__(self) -> None:
        self.harness = SchedulerHarness(self.nodes, options=chosen(starvation_timeout=self.starvation_timeout))

    def fill(self, runs: Iterator[float], size: str = "8Gi") -> None:
        while True:
            name = f"small-{self.made}"
            answer = self.harness.controller.reserve(question(worker(name, size)))
            if not isinstance(answer, Placed):
                return
            self.made += 1
            running = worker(name, size).on(answer.allocation.node)
            self.harness.controller.handle(pod_event(admitted(running, allocation=answer.allocation)))
            self.ends[f"uid-{name}"] = self.harness.now + next(runs)

    def tick(self, runs: Iterator[float]) -> list[str]:
        """
        A second passes: some pods end, then the queue moves, then new pods take what is left. Returns the placed pods.
        """
        self.harness.now += 1
        for uid in [uid for uid, at in self.ends.items() if at <= self.harness.now]:
            del self.ends[uid]
            self.harness.controller.handle(PodDeleted(uid))
        self.harness.controller.tick(TickPhase.UPKEEP)
        bindings, _ = self.harness.controller.schedule_pending()
        for binding in bindings:
            placed = admitted(remade(binding), allocation=binding.allocation)
            self.harness.controller.handle(BindSucceeded(binding, pod_event(placed)))
        self.fill(runs)
        self.harness.controller.check_invariants()
        return [binding.pod.key for binding in bindings]

    def wait(self, builder: PodBuilder) -> None:
        self.harness.controller.handle(pod_event(admitted(builder, gated=True)))

    @property
    def kept(self) -> str:
        kept = self.harness.controller.view().reserved
        return ", ".join(one.node for one in kept)


def forever(*lengths: float) -> Iterator[float]:
    while True:
        yield from lengths


def test_without_a_kept_node_small_pods_starve_a_large_one() -> None:
    world, runs = World((node("n").gpu(mib=16384),), starvation_timeout=0), chain((5.0,), forever(10))
    world.fill(runs)
    world.wait(worker("large", "16Gi"))
    assert [key for _ in range(300) for key in world.tick(runs)] == []


@given(
    cards=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    lengths=st.lists(st.integers(1, 40), min_size=3, max_size=7),
    count=st.integers(1, 2),
)
@settings(max_examples=examples(8), deadline=None)
def test_a_large_pod_waits_for_the_bound_and_the_longest_run_at_most(
    cards: list[int], lengths: list[int], count: int
) -> None:
    world = World(tuple(node(f"n{i}").gpus(gpus, mib=16384) for i, gpus in enumerate(cards)))
    runs = forever(*(float(length) for length in lengths))
    world.fill(runs)
    large = worker("large", "16Gi", count=min(count, max(cards)))
    world.wait(large)
    waited = 0
    while "default/large" not in world.tick(runs):
        waited += 1
        assert waited <= AFTER + 2 * max(lengths) + 10
    world.tick(runs)
    assert world.kept == "", "nothing is kept once it is placed"


def test_many_large_pods_each_have_their_turn() -> None:
    world, runs = World((node("n").gpu(mib=16384),)), forever(10, 15, 7)
    world.fill(runs)
    for i in range(3):
        world.wait(worker(f"large-{i}", "16Gi"))
    placed: list[str] = []
    for _ in range(200):
        for key in world.tick(runs):
            placed.append(key)
            world.ends[f"uid-{key.split('/')[1]}"] = world.harness.now + 20
    assert placed == ["default/large-0", "default/large-1", "default/large-2"]


def kept_world() -> World:
    """The node `b` is reserved for a pod that needs all of it; on `a` and `b` small pods run forever."""
    world = World((node("a").gpu(mib=16384), node("b").gpu(mib=16384)))
    for name, at in (("a1", "a"), ("a2", "a"), ("b1", "b")):
        answer = world.harness.controller.reserve(question(worker(name, "8Gi").spec(nodeSelector={_HOST: at})))
        assert isinstance(answer, Placed)
        world.harness.controller.handle(pod_event(admitted(worker(name, "8Gi").on(at), allocation=answer.allocation)))
    world.wait(worker("large", "16Gi"))
    world.harness.controller.schedule_pending()
    world.harness.now += AFTER
    world.harness.controller.tick(TickPhase.UPKEEP)
    assert world.kept == "b"
    text = "0 of 2 GPU nodes fit: 2 short of memory (largest free 8192 MiB, wanted 16384)"
    (outcome,) = debug.one_cycle(world.harness.controller.view())
    assert outcome.reason == f"waiting: {text}", "it is not told that others hold what is kept for it"
    return world


_HOST = "kubernetes.io/hostname"


def test_no_pod_of_equal_priority_gets_a_held_node_and_all_have_the_reason() -> None:
    world = kept_world()
    answer = world.harness.controller.reserve(question(worker("small", "1Gi")))
    text = "0 of 2 GPU nodes fit: 1 reserved for a pod ahead in the queue, 1 short of memory (largest free 0 MiB, "
    assert getattr(answer, "reason", "") == text + "wanted 1024)"


def test_a_pod_of_higher_priority_may_go_there() -> None:
    world = kept_world()
    answer = world.harness.controller.reserve(question(worker("urgent", "1Gi", priority=5)))
    assert isinstance(answer, Placed)
    assert answer.allocation.node == "b"


def test_it_is_placed_elsewhere_if_that_comes_first() -> None:
    world = kept_world()
    for uid in ("uid-a1", "uid-a2"):
        world.harness.controller.handle(PodDeleted(uid))
    assert [c.allocation.node for c in world.harness.controller.schedule_pending()[0]] == ["a"]
    world.harness.controller.tick(TickPhase.UPKEEP)
    assert world.kept == ""


def test_a_snapshot_with_a_kept_node_is_replayed_as_it_was_decided() -> None:
    world = kept_world()
    for name, size, priority in (("small", "1Gi", 0), ("urgent", "1Gi", 5), ("other", "2Gi", 0)):
        world.wait(worker(name, size, priority=priority))
    view = debug.from_json(json.loads(json.dumps(debug.to_json(world.harness.controller.view()))))
    outcomes = {outcome.pod.key: outcome for outcome in debug.one_cycle(view)}
    bindings, updates = world.harness.controller.schedule_pending()
    assert [(c.pod.key, c.allocation.node) for c in bindings] == [("default/urgent", "b")]
    assert outcomes["default/urgent"].reason == "placed on node b (main: GPU-b-0)"
    assert [(t.key, t.reason) for t in updates] == [(t.key, outcomes[t.key].reason) for t in updates]
    assert {t.key for t in updates} == {"default/large", "default/small", "default/other"}


LEAVES = {
    "is deleted": lambda harness: harness.controller.handle(PodDeleted("uid-large")),
    "is finished": lambda harness: harness.controller.handle(pod_event({**_large(), "status": {"phase": "Failed"}})),
    "is no longer ours to decide": lambda harness: setattr(harness, "leads", False),
}


def _large() -> JSON:
    return admitted(worker("large", "16Gi"), gated=True)


@pytest.mark.parametrize("leave", LEAVES.values(), ids=LEAVES.keys())
def test_nothing_is_kept_for_a_pod_that(leave: Any) -> None:
    world = kept_world()
    leave(world.harness)
    world.harness.now += 5
    world.harness.controller.tick(TickPhase.UPKEEP)
    assert world.kept == ""


def test_a_kept_node_that_can_no_longer_serve_it_is_let_go_for_another() -> None:
    world = kept_world()
    world.harness.controller.handle(InventoryDeleted("b"))
    world.harness.now += 5
    world.harness.controller.tick(TickPhase.UPKEEP)
    assert world.kept == "a"


def ask(memory: int, *, count: int = 1, exclusive: bool = False) -> SchedulingRequest:
    fraction = FractionRequest("main", count, memory * GIB, cores=100 if exclusive else 0, exclusive=exclusive)
    return SchedulingRequest(PodRequest("native", (fraction,)), PodNeeds())


def gpus(name: str, *used: int) -> NodeBuilder:
    made = node(name)
    for gib in used:
        made = made.gpu(mib=16384, used_mib=gib * 1024)
    return made


SOONEST: dict[str, tuple[tuple[NodeBuilder, ...], SchedulingRequest, str, str | None]] = {
    "the node that lacks least": ((gpus("a", 16), gpus("b", 8), gpus("c", 12)), ask(16), "", "b"),
    "over all the GPUs it needs": ((gpus("a", 0, 16), gpus("b", 6, 6)), ask(16, count=2), "", "b"),
    "a tie goes to the lesser name": ((gpus("b", 8), gpus("a", 8)), ask(16), "", "a"),
    "a tie does not move it": ((gpus("b", 8), gpus("a", 8)), ask(16), "b", "b"),
    "less lacking moves it": ((gpus("b", 9), gpus("a", 8)), ask(16), "b", "a"),
    "a whole GPU needs an empty one": ((gpus("a", 1, 1), gpus("b", 0)), ask(16, exclusive=True), "", "b"),
    "not a cordoned node": ((gpus("a", 8).cordoned(), gpus("b", 16)), ask(16), "", "b"),
    "not one that is too small even when empty": ((gpus("a", 8), gpus("b", 16, 16)), ask(16, count=2), "", "b"),
    "nobody could ever serve it": ((gpus("a", 8),), ask(20), "", None),
    "no node at all": ((), ask(1), "", None),
}


@pytest.mark.parametrize("case", SOONEST.values(), ids=SOONEST.keys())
def test_the_node_that_will_serve_it_soonest(
    case: tuple[tuple[NodeBuilder, ...], SchedulingRequest, str, str | None],
) -> None:
    builders, wanted, kept, want = case
    assert reservation.soonest((b.state() for b in builders), wanted, Limits(), kept) == want


def test_other_pods_spare_nodes_of_free_cards_while_a_pod_waits_for_several() -> None:
    """This applies from the next tick on, not only when the pod starves, and a snapshot shows it."""
    first, second = sorted("ab", key=tie)
    nodes = [node(name).gpus(4, mib=16384).labelled("pool", name) for name in (first, second)]
    harness = SchedulerHarness(nodes, policy=Policy("value"))
    card = pod("card").uid("uid-card").asks("gpufraction.io/gpu-count", 1)

    def chosen() -> str:
        answer = harness.controller.reserve(question(card, dry_run=True))
        assert isinstance(answer, Placed)
        return answer.allocation.node

    for name, cards in ((first, 1), (second, 3)):
        holder = pod(f"on-{name}").uid(f"on-{name}").asks("gpufraction.io/gpu-count", cards).selects(pool=name)
        answer = harness.controller.reserve(question(holder))
        assert isinstance(answer, Placed)
        harness.controller.handle(pod_event(admitted(holder.on(name), allocation=answer.allocation)))
    supply = supply_of({state.name: state for state in harness.controller.nodes()}, harness.limits)
    learnt = estimator.make("value", {Demanded(0, percent=100, cores=100, exclusive=True): 1.0}, supply)
    assert learnt is not None
    harness.controller.adopt(replace(learnt, roomy=False))
    found = [(chosen(), harness.controller.view().awaited)]
    four = pod("four").uid("uid-four").asks("gpufraction.io/gpu-count", 4)
    harness.controller.handle(pod_event(admitted(four, gated=True)))
    for _ in range(2):
        harness.controller.tick(TickPhase.UPKEEP)
        harness.controller.schedule_pending()
        found.append((chosen(), harness.controller.view().awaited))
        harness.controller.handle(PodDeleted("uid-four"))
    assert found == [(first, 0), (second, 4), (first, 0)]
    harness.controller.check_invariants()
