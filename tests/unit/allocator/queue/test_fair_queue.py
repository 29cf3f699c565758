"""
The fair queue at work: which pods are placed when cards become free, the pods' messages, and that `age` is unchanged.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allocator.cache.cache import Cache
from allocator.cache.podinfo import pod_event, read_pod
from allocator.engine.engine import Engine
from allocator.queue.queue import QueueOrder, SchedulingQueue
from allocator.queue.reservation import HoldingBudget
from allocator.scheduler.events import BindSucceeded, PodDeleted, QueueWeighed, TickPhase
from contract import pods
from contract.encoding.protocol import Wait
from contract.model import Allocation
from contract.nodes.attributes import facts, trim
from tests.builders import PodBuilder, node, pod
from tests.examples import examples
from tests.unit.allocator.chosen import chosen
from tests.unit.allocator.harness import SchedulerHarness, admitted, question

SECOND = "2030-01-01T00:00:{:02}Z"


def worker(key: str, *, at: int = 0, priority: int = 0, size: str = "8Gi") -> PodBuilder:
    namespace, name = key.split("/")
    made = pod(name, namespace).uid(key).created(SECOND.format(at)).spec(priority=priority)
    return made.asks("gpufraction.io/gpu-memory", size)


@dataclass
class FairWorld:
    """Cards of 8 GiB, and pods that take one each unless they say otherwise."""

    cards: int
    order: str = "fair"
    starvation_timeout: float = 0.0
    made: dict[str, PodBuilder] = field(default_factory=dict)
    running: list[str] = field(default_factory=list)
    reported: dict[str, str] = field(default_factory=dict)
    allocations: dict[str, Allocation] = field(default_factory=dict)

    def __post_init__(self) -> None:
        options = chosen(queue_order=self.order, starvation_timeout=self.starvation_timeout)
        self.harness = SchedulerHarness([node("n").gpus(self.cards, mib=8192)], options=options)
        self.controller = self.harness.controller

    def wait(self, *made: PodBuilder) -> None:
        for each in made:
            key = str(each.json()["metadata"]["uid"])
            self.made[key] = each
            self.controller.handle(pod_event(admitted(each, gated=True)))

    def cycle(self) -> list[str]:
        """One cycle. Returns the placed pods, in this order."""
        bindings, reports = self.controller.schedule_pending()
        for binding in bindings:
            self.allocations[binding.pod.key] = binding.allocation
            placed = admitted(self.made[binding.pod.key], allocation=binding.allocation)
            self.controller.handle(BindSucceeded(binding, pod_event(placed)))
        self.reported |= {report.key: report.reason for report in reports}
        found = [binding.pod.key for binding in bindings]
        self.running += found
        self.controller.check_invariants()
        return found

    def end(self, key: str) -> None:
        self.running.remove(key)
        self.controller.handle(PodDeleted(key))

    def fill(self, namespace: str) -> None:
        """Give all cards to pods of one namespace."""
        self.wait(*(worker(f"{namespace}/first-{i:02}") for i in range(self.cards)))
        assert len(self.cycle()) == self.cards

    def held(self) -> Counter[str]:
        return Counter(key.split("/")[0] for key in self.running)

    def drain(self, ends: int) -> list[str]:
        """This many cards become free, one after another, starting with those of the namespace that holds most."""
        found = []
        for _ in range(ends):
            held = self.held()
            self.end(next(key for key in self.running if held[key.split("/")[0]] == max(held.values())))
            found += self.cycle()
        return found


def backlog(namespace: str, number: int, *, at: int = 0) -> list[PodBuilder]:
    return [worker(f"{namespace}/p{i:03}", at=at) for i in range(number)]


def test_a_small_backlog_is_served_before_a_large_one_that_is_older() -> None:
    world = FairWorld(cards=8)
    world.fill("a")
    world.wait(*backlog("a", 500, at=1), *backlog("b", 5, at=2))
    assert world.cycle() == []
    assert world.drain(5) == ["b/p000", "b/p001", "b/p002", "b/p003", "a/p000"], "4 of 8 cards each, then by age"
    assert world.held() == {"a": 4, "b": 4}


def test_by_age_the_older_backlog_goes_first() -> None:
    world = FairWorld(cards=8, order="age")
    world.fill("a")
    world.wait(*backlog("a", 20, at=1), *backlog("b", 5, at=2))
    world.cycle()
    assert world.drain(5) == [f"a/p00{i}" for i in range(5)]


def test_within_one_cycle_each_placement_counts_for_the_next() -> None:
    world = FairWorld(cards=6)
    world.wait(*backlog("a", 10), *backlog("b", 2, at=1), *backlog("c", 10, at=2))
    assert [key.split("/")[0] for key in world.cycle()] == ["a", "b", "c", "a", "b", "c"]


def test_weights_follow_the_labels_at_once() -> None:
    world = FairWorld(cards=6)
    world.controller.handle(QueueWeighed({"a": 2}))
    world.wait(*backlog("a", 10), *backlog("b", 10, at=1))
    world.cycle()
    assert world.held() == {"a": 4, "b": 2}
    world.controller.handle(QueueWeighed({"b": 5}))
    for key in [key for key in world.running if key.startswith("a/")][:3]:
        world.end(key)
        world.cycle()
    assert world.held() == {"a": 1, "b": 5}


def test_a_higher_priority_comes_before_all_shares() -> None:
    world = FairWorld(cards=2)
    world.fill("a")
    world.wait(*backlog("b", 2), worker("a/urgent", at=9, priority=10))
    world.cycle()
    assert world.drain(2) == ["a/urgent", "b/p000"]


def test_a_pod_that_does_not_fit_keeps_no_other_from_a_free_card() -> None:
    world = FairWorld(cards=2)
    world.wait(worker("b/large", size="9Gi"), *backlog("a", 2, at=1))
    assert world.cycle() == ["a/p000", "a/p001"]


def test_a_tenant_reads_that_a_namespace_is_before_its_own_and_not_which() -> None:
    world = FairWorld(cards=2)
    world.fill("team-a")
    world.wait(*backlog("team-a", 1), *backlog("team-b", 1, at=1))
    world.cycle()
    reason = "waiting: 0 of 1 GPU nodes fit: 1 short of memory (largest free 0 MiB)"
    assert world.reported["team-b/p000"].startswith("waiting: 0 of 1 GPU nodes fit")
    assert world.reported["team-a/p000"] == (
        f"{world.reported['team-b/p000']}; behind a namespace with a smaller share"
    ), reason
    assert not any("team-b" in text for key, text in world.reported.items())


def test_a_pod_reads_at_its_creation_that_it_is_behind() -> None:
    world = FairWorld(cards=8)
    world.fill("a")
    world.wait(*backlog("b", 1, at=1))
    world.cycle()
    answers = [world.controller.reserve(question(worker(f"{each}/new", at=2))) for each in ("a", "b")]
    messages = [each.reason for each in answers if isinstance(each, Wait)]
    assert messages == [f"{messages[1]}; behind a namespace with a smaller share", messages[1]]


def test_nobody_is_behind_where_shares_are_equal_or_the_order_is_by_age() -> None:
    even = FairWorld(cards=2)
    even.wait(*backlog("a", 2), *backlog("b", 2))
    even.cycle()
    by_age = FairWorld(cards=2, order="age")
    by_age.fill("a")
    by_age.wait(*backlog("a", 1), *backlog("b", 1))
    by_age.cycle()
    assert [text for text in (*even.reported.values(), *by_age.reported.values()) if "behind" in text] == []


def test_nobody_is_behind_while_no_pod_can_be_placed() -> None:
    """A pod holds a card, and another one of the same namespace waits; at first no pod has been counted."""
    cache, queue, one = Cache(engine=Engine()), SchedulingQueue(), node("n").gpus(1, mib=8192)
    cache.put_node(facts(trim(one.json())))
    cache.put_inventory(one.inventory())
    world = FairWorld(1)
    world.fill("a")
    ran = admitted(world.made["a/first-00"], allocation=world.allocations["a/first-00"])
    cache.put_pod(read_pod(pods.trim(ran)), 0.0)
    queue.put(read_pod(pods.trim(admitted(worker("a/next"), gated=True))))
    order, waiting = QueueOrder(cache, queue, fair=True), queue.pod("a/next")
    assert waiting is not None
    assert cache.ledger.held("a").memory == 8 << 30
    assert not order.is_behind(waiting)
    assert list(order.turns(["a/next"], competes=lambda pod: False)) == ["a/next"]
    assert not order.is_behind(waiting)


def test_a_new_leader_has_the_same_order_from_the_pods_alone() -> None:
    world = FairWorld(cards=4)
    world.fill("a")
    world.wait(*backlog("a", 6, at=1), *backlog("b", 3, at=2))
    before = [each.key for each in world.controller.view().queue]
    again = SchedulerHarness([node("n").gpus(4, mib=8192)], options=chosen(queue_order="fair"), synced=False)
    held = world.allocations
    again.sync(
        admitted(made, allocation=held.get(key), gated=key not in held) for key, made in reversed(world.made.items())
    )
    after = [each.key for each in again.controller.view().queue]
    assert [key.split("/")[0] for key in after] == [key.split("/")[0] for key in before] == ["b"] * 3 + ["a"] * 6


# -- properties ---------------------------------------------------------------------------------------------------

BURSTS = st.dictionaries(st.sampled_from("abcd"), st.integers(1, 9), min_size=2)


@given(BURSTS, st.integers(1, 8), st.lists(st.integers(0, 7), max_size=12), st.randoms())
@settings(max_examples=examples(15), deadline=None)
def test_no_namespace_is_given_a_card_while_one_that_waits_holds_less(
    burst: Mapping[str, int], cards: int, ends: list[int], dice: random.Random
) -> None:
    world = FairWorld(cards=cards)
    made = [each for team, number in burst.items() for each in backlog(team, number)]
    dice.shuffle(made)
    world.wait(*made)
    waits, held = Counter(burst), Counter[str]()
    for end in (None, *ends):
        if end is not None and world.running:
            ended = world.running[end % len(world.running)]
            held[ended.split("/")[0]] -= 1
            world.end(ended)
        for key in world.cycle():
            team = key.split("/")[0]
            assert held[team] <= min(held[other] for other, left in waits.items() if left)
            held[team] += 1
            waits[team] -= 1
    assert len(world.running) == min(cards, sum(waits.values()) + len(world.running))


@given(BURSTS, st.integers(1, 8), st.randoms())
@settings(max_examples=examples(15), deadline=None)
def test_what_namespaces_get_of_a_burst_does_not_depend_on_the_order_of_arrival(
    burst: Mapping[str, int], cards: int, dice: random.Random
) -> None:
    made = [each for team, number in burst.items() for each in backlog(team, number)]
    found = []
    for _ in range(2):
        dice.shuffle(made)
        world = FairWorld(cards=cards)
        world.wait(*made)
        world.cycle()
        found.append(world.held())
    assert found[0] == found[1]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.sampled_from((0, 0, 10))), max_size=12))
@settings(max_examples=examples(15), deadline=None)
def test_by_age_pods_are_placed_by_priority_then_age_then_arrival(pods: list[tuple[str, int, int]]) -> None:
    made = [(f"{team}/p{i:02}", at, priority) for i, (team, at, priority) in enumerate(pods)]
    world = FairWorld(cards=12, order="age")
    world.wait(*(worker(key, at=at, priority=priority) for key, at, priority in made))
    want = [key for key, at, priority in sorted(made, key=lambda each: (-each[2], each[1]))]
    assert [each.key for each in world.controller.view().queue] == want
    assert world.cycle() == want


# -- reserved nodes -----------------------------------------------------------------------------------------------


def reserved(world: FairWorld) -> list[str]:
    return [each.uid for each in world.controller.view().reserved]


def ticked(world: FairWorld, seconds: float) -> None:
    world.harness.now += seconds
    world.controller.tick(TickPhase.UPKEEP)


def test_the_reserved_node_follows_the_longest_wait_and_not_the_place() -> None:
    world = FairWorld(cards=2, starvation_timeout=60)
    world.fill("a")
    world.wait(*backlog("a", 3, at=1), *backlog("b", 3, at=2))
    world.cycle()
    assert world.controller.view().queue[0].key == "b/p000"
    ticked(world, 61)
    assert reserved(world) == ["a/p000"]


def test_a_backlog_gets_one_reserved_node_at_a_time_while_others_hold_less() -> None:
    """
    Otherwise one node after another would be reserved for the oldest backlog, and the order would be that of age again.
    """
    world = FairWorld(cards=4, starvation_timeout=60)
    world.wait(*(worker(f"a/first-{i}") for i in range(3)), worker("b/first"))
    world.cycle()
    world.wait(*backlog("a", 20, at=1), *backlog("b", 20, at=2))
    world.cycle()
    ticked(world, 61)
    assert reserved(world) == ["a/p000"]
    assert world.drain(1) == ["a/p000"], "it waited longest, though b holds less"
    ticked(world, 6)
    assert world.drain(1) == ["b/p000"], "and not the next one of a"
    assert world.held() == {"a": 2, "b": 2}


RESTS = {
    "never served": (None, 0, False),
    "just served": (0, 0, True),
    "served a while ago": (0, 59, True),
    "served long ago": (0, 60, False),
}


@pytest.mark.parametrize(("served", "now", "rests"), RESTS.values(), ids=RESTS)
def test_how_long_a_namespace_rests(served: float | None, now: float, rests: bool) -> None:
    budget = HoldingBudget(3600, 60)
    for at in served_at(served):
        budget.begin_rest("a", at)
    assert (budget.rests("a", now), budget.rests("b", now)) == (rests, False)


def served_at(time: float | None) -> Iterable[float]:
    return () if time is None else (time,)
