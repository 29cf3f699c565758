"""A budget for each namespace and cycle: which pods are skipped, for which others, and that every pod gets a turn."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from allocator.cache.podinfo import pod_event
from allocator.queue.queue import QueuedPodInfo, Rounds, namespace_of, weight
from allocator.scheduler.events import PodDeleted
from contract.encoding.protocol import Placed, Wait
from contract.model import FractionRequest, PodRequest, Wishes
from contract.scheduling.needs import PodNeeds, SchedulingRequest
from tests.examples import examples
from tests.unit.allocator.harness import SchedulerHarness, question
from tests.unit.allocator.one_gpu import keys, occupied, waiting, worker

NEEDS = PodNeeds()


def entry(
    uid: str, *, namespace: str = "team", shape: int = 1, priority: int = 0, containers: int = 1
) -> QueuedPodInfo:
    fractions = tuple(FractionRequest(f"c{i}", memory=shape) for i in range(containers))
    return QueuedPodInfo(
        uid, f"{namespace}/{uid}", SchedulingRequest(PodRequest("native", fractions), NEEDS), priority, 0.0, {}
    )


def many(count: int, namespace: str = "flood") -> list[QueuedPodInfo]:
    return [entry(f"{namespace}-{i:04}", namespace=namespace, shape=i + 1) for i in range(count)]


def cycle(rounds: Rounds, line: list[QueuedPodInfo]) -> list[str]:
    chosen = rounds.choose(line, lambda each: False)
    for uid in chosen:
        rounds.tried(uid)
    return chosen


def test_a_line_within_the_budget_is_tried_whole() -> None:
    rounds, line = Rounds(budget=100, least=8), many(100)
    rounds.begin()
    assert (cycle(rounds, line), rounds.unfinished) == ([each.uid for each in line], False)


def test_a_namespace_beyond_its_budget_takes_cycles_and_delays_nobody_else() -> None:
    rounds = Rounds(budget=40, least=8)
    other = entry("other", namespace="other", shape=10_000)
    line = [*many(100), other]
    rounds.begin()
    cycles = [cycle(rounds, line)]
    while rounds.unfinished:
        cycles.append(cycle(rounds, line))
    assert [len(each) for each in cycles] == [21, 40, 40]
    assert "other" in cycles[0]
    assert sorted(uid for each in cycles for uid in each) == sorted(each.uid for each in line), "each once"


def test_pods_of_one_shape_count_once() -> None:
    rounds = Rounds(budget=20, least=8)
    line = [entry(f"same-{i}") for i in range(1_000)]
    rounds.begin()
    assert (len(cycle(rounds, line)), rounds.unfinished) == (1_000, False)


def test_half_is_for_the_head_of_the_queue_and_half_for_the_longest_untried() -> None:
    """Something becomes free all the time, so that every cycle starts a new round."""
    rounds, line = Rounds(budget=8, least=8), many(20)
    tried = []
    for _ in range(4):
        rounds.begin()
        tried.append([int(uid[-4:]) for uid in cycle(rounds, line)])
    assert tried == [
        [0, 1, 2, 3, 4, 5, 6, 7],
        [0, 1, 2, 3, 8, 9, 10, 11],
        [0, 1, 2, 3, 12, 13, 14, 15],
        [0, 1, 2, 3, 16, 17, 18, 19],
    ]


def test_what_a_decision_costs() -> None:
    ordered = FractionRequest("c", memory=1, wishes=Wishes(use_models=("a", "b"), ordered=True))
    by_order = replace(entry("x"), ask=SchedulingRequest(PodRequest("native", (ordered,)), NEEDS))
    assert [weight(each) for each in (entry("x"), entry("x", containers=3), by_order)] == [1, 20, 3]


def test_expressions_and_alternatives_cost_decisions() -> None:
    """An expression must first be compiled and evaluated; each combination of alternatives is a decision."""
    found = [
        weight(replace(entry("x"), ask=SchedulingRequest(PodRequest("resourceclaims", (fraction,)), NEEDS)))
        for fraction in (
            FractionRequest("c", memory=1, wishes=Wishes(selectors=("true",))),
            FractionRequest("c", memory=1, wishes=Wishes(selectors=("x" * 640,))),
            FractionRequest("c", memory=1, wishes=Wishes(alternatives=(("true",), (), ("true",)))),
        )
    ]
    assert found == [1, 11, 4]


@st.composite
def lines(draw: st.DrawFn) -> list[QueuedPodInfo]:
    counts = draw(st.lists(st.integers(1, 60), min_size=1, max_size=4))
    made = [each for i, count in enumerate(counts) for each in many(count, f"ns{i}")]
    priorities = draw(st.randoms(use_true_random=False))
    return sorted((replace(each, priority=priorities.choice((0, 0, 10))) for each in made), key=lambda each: each.order)


@given(line=lines(), seed=st.integers(0, 1000))
@settings(max_examples=examples(30), deadline=None)
def test_every_pod_has_a_turn_and_only_its_own_namespace_passes_it(line: list[QueuedPodInfo], seed: int) -> None:
    rng, rounds = random.Random(seed), Rounds(budget=24, least=6)
    namespaces = len({namespace_of(each) for each in line})
    each_has = max(6, 24 // namespaces)
    since = {each.uid: 0 for each in line}
    for _ in range(60):
        if rng.random() < 0.7 or not rounds.unfinished:
            rounds.begin()
        left = [each for each in line if not rounds.has_tried(each.uid)]
        chosen = cycle(rounds, line)
        assert chosen == [each.uid for each in line if each.uid in set(chosen)], "in the order of the line"
        counted = Counter(namespace_of(each) for each in left)
        for name, number in Counter(uid.split("-")[0] for uid in chosen).items():
            assert number == min(counted[name], max(6, 24 // len(counted))), "all of its budget, and nobody else's"
        for each in line:
            since[each.uid] = 0 if each.uid in chosen else since[each.uid] + 1
            assert since[each.uid] <= 2 * (60 // (each_has // 2) + 2)


# -- in the allocator ---------------------------------------------------------------------------------------------


def flooded(shapes: int = 1_000) -> SchedulerHarness:
    """One tenant's pods with as many shapes, none of which fits, in the queue before all others."""
    harness, _ = occupied()
    for i in range(shapes):
        harness.controller.handle(pod_event(waiting(worker(f"w{i:04}", mib=12_000 + i))))
    return harness


def test_a_neighbours_pod_is_placed_in_the_first_cycle() -> None:
    harness = flooded()
    neighbour = waiting(worker("x", mib=1000, created="2031-01-01T00:00:00Z"))
    neighbour["metadata"]["namespace"] = "other"
    harness.controller.handle(pod_event(neighbour))
    woken = harness.woken
    bindings, news = harness.controller.schedule_pending()
    assert (keys(bindings), len(news), harness.woken > woken) == (["other/x"], 200, True)
    reported = len(news)
    for _ in range(5):
        reported += len(harness.controller.schedule_pending()[1])
    assert reported == 1_000, "and everybody is told why it waits"
    harness.controller.check_invariants()


def test_a_new_pod_is_not_placed_before_untried_pods_of_its_namespace() -> None:
    harness = flooded()
    harness.controller.schedule_pending()
    mine = question(worker("x", mib=1000))
    assert isinstance(harness.controller.reserve(mine), Wait)
    assert isinstance(harness.controller.reserve(replace(mine, namespace="other")), Placed)
    for _ in range(5):
        harness.controller.schedule_pending()
    assert isinstance(harness.controller.reserve(question(worker("y", mib=1000))), Placed)


def test_a_freed_share_goes_to_the_head_of_the_queue_in_the_next_cycle() -> None:
    harness = flooded()
    harness.controller.schedule_pending()
    harness.controller.handle(PodDeleted("uid-first"))
    bindings, _ = harness.controller.schedule_pending()
    assert keys(bindings) == ["default/w0000"]
