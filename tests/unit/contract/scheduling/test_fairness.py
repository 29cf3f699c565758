"""The next pod in the fair order: the namespace that holds least for its weight, and in it the oldest pod."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.model import FractionRequest, PodRequest
from contract.scheduling import fairness
from contract.scheduling.demand import Demand
from contract.scheduling.fairness import NOTHING, Held, QueuePlace, Shares

CARDS = 16
ONE = Held(100, 100)
TOTAL = Held(CARDS * 100, CARDS * 100)


@dataclass(frozen=True)
class Waiting:
    """`team/name priority`. Requests a whole card unless it says otherwise."""

    team: str
    name: str = ""
    priority: int = 0
    created: float = 0.0
    asks: Held = ONE


def place(pod: Waiting) -> QueuePlace:
    return QueuePlace(pod.priority, pod.team, pod.created)


def by_age(pods: list[Waiting]) -> list[Waiting]:
    return sorted(pods, key=lambda pod: (-pod.priority, pod.created))


def order(pods: list[Waiting], held: dict[str, Held] | None = None, weights: dict[str, int] | None = None) -> str:
    shares = Shares(TOTAL, weights or {})
    found = fairness.if_placed(by_age(pods), place, lambda pod: pod.asks, shares, held or {})
    return " ".join(f"{pod.team}{pod.name}" for pod in found)


def cards(number: int) -> Held:
    return Held(number * 100, number * 100)


A, B = [Waiting("a", str(i)) for i in range(4)], [Waiting("b", str(i), created=1) for i in range(2)]
ORDERS = {
    "nobody holds anything: by turns": (A + B, {}, {}, "a0 b0 a1 b1 a2 a3"),
    "who holds nothing catches up first": (A + B, {"a": cards(2)}, {}, "b0 b1 a0 a1 a2 a3"),
    "and no further": (A + B, {"a": cards(1)}, {}, "b0 a0 b1 a1 a2 a3"),
    "twice the weight, twice the cards": (A + B, {}, {"a": 2}, "a0 b0 a1 a2 b1 a3"),
    "a priority comes before all shares": (
        [*A[:2], Waiting("b", "0", priority=10), Waiting("b", "1", priority=10)],
        {"b": cards(8)},
        {},
        "b0 b1 a0 a1",
    ),
    "the larger of memory and cores counts": (
        [*A[:1], *B[:1]],
        {"a": Held(memory=100), "b": Held(memory=50, cores=200)},
        {},
        "a0 b0",
    ),
    "what a pod asks for counts and not the number of pods": (
        [Waiting("a", "0"), *(Waiting("b", str(i), asks=Held(25, 25)) for i in range(5))],
        {"a": cards(1)},
        {},
        "b0 b1 b2 b3 a0 b4",
    ),
    "equal shares: the oldest pod": (
        [Waiting("a", "0", created=2), Waiting("b", "0", created=1)],
        {},
        {},
        "b0 a0",
    ),
    "equal shares and seconds: the name": ([Waiting("b", "0"), Waiting("a", "0")], {}, {}, "a0 b0"),
    "one namespace: by age": ([Waiting("a", "1", created=1), Waiting("a", "0")], {}, {}, "a0 a1"),
    "an empty cluster has no shares to compare": ([*A[:1], *B[:1]], {}, {}, "a0 b0"),
}


@pytest.mark.parametrize(("pods", "held", "weights", "want"), ORDERS.values(), ids=ORDERS)
def test_the_order(pods: list[Waiting], held: dict[str, Held], weights: dict[str, int], want: str) -> None:
    assert order(pods, held, weights) == want


WEIGHTS = {None: 1, "1": 1, "3": 3, "1000": 1000, "0": None, "1001": None, "-1": None, "0.5": None, "many": None}
MISREAD = "namespace a: the label gpufraction.io/queue-weight=0.5 counts as 1; it must be a whole number from 1 to 1000"


@pytest.mark.parametrize(("text", "weight"), [*WEIGHTS.items(), ("", None), ("٣", None), ("03", None)])
def test_the_weight_on_a_label(text: str | None, weight: int | None) -> None:
    assert fairness.weight_of(text) == weight


def test_an_unreadable_weight_is_reported() -> None:
    assert fairness.misread("a", "0.5") == MISREAD


REQUESTED = {
    "by memory": ([FractionRequest("c", memory=40)], Held(40, 0)),
    "by percent, of the cluster's mean card": ([FractionRequest("c", percent=50, cores=20)], Held(50, 20)),
    "several cards": ([FractionRequest("c", count=3, memory=40, cores=10)], Held(120, 30)),
    "a card alone takes all its cores": ([FractionRequest("c", memory=40, exclusive=True)], Held(40, 100)),
    "containers add up": ([FractionRequest("a", memory=40), FractionRequest("b", memory=10)], Held(50, 0)),
    "an init container ends first": (
        [FractionRequest("i", memory=70, init=True), FractionRequest("b", memory=10)],
        Held(70, 0),
    ),
    "a claim's pods ask for nothing more": ([], NOTHING),
}


@pytest.mark.parametrize(("containers", "want"), REQUESTED.values(), ids=REQUESTED)
def test_what_a_pod_will_hold(containers: list[FractionRequest], want: Held) -> None:
    assert fairness.requested(PodRequest("native", tuple(containers)), card=100) == want


def test_what_is_held_adds_up_over_cards() -> None:
    assert fairness.held_of([Demand(40, 10, False), Demand(30, 0, True)]) == Held(70, 110)


TEAMS = st.sampled_from("abcde")
QUEUES = st.lists(
    st.builds(
        Waiting,
        TEAMS,
        st.text("xyz", max_size=2),
        st.sampled_from((0, 0, 10)),
        st.sampled_from((0.0, 0.0, 1.0)),
        st.sampled_from((cards(1), cards(2), Held(30, 5))),
    ),
    max_size=30,
)
HELD = st.dictionaries(TEAMS, st.integers(0, 6).map(cards))
WEIGHED = st.dictionaries(TEAMS, st.sampled_from((1, 2, 3, 10)))


@given(QUEUES, HELD, WEIGHED)
def test_the_fair_order_keeps_all_pods_their_priorities_and_each_teams_order(
    pods: list[Waiting], held: dict[str, Held], weights: dict[str, int]
) -> None:
    waiting = by_age(pods)
    found = list(fairness.if_placed(waiting, place, lambda pod: pod.asks, Shares(TOTAL, weights), held))
    assert Counter(found) == Counter(pods)
    assert [pod.priority for pod in found] == [pod.priority for pod in waiting]
    for team in "abcde":
        for priority in (0, 10):
            mine = [pod for pod in found if (pod.team, pod.priority) == (team, priority)]
            assert mine == [pod for pod in waiting if (pod.team, pod.priority) == (team, priority)]


@given(st.lists(TEAMS, max_size=40), HELD, WEIGHED, st.integers(0, 40))
def test_max_min_fairness_among_backlogged_namespaces(
    teams: list[str], held: dict[str, Held], weights: dict[str, int], free: int
) -> None:
    """No namespace gets a card while a waiting one has fewer for its weight."""
    pods = [Waiting(team, str(i)) for i, team in enumerate(teams)]
    shares = Shares(TOTAL, weights)
    has, backlog = Counter({team: each.memory // 100 for team, each in held.items()}), Counter(teams)
    for pod in islice(fairness.if_placed(pods, place, lambda pod: pod.asks, shares, held), free):
        mine = has[pod.team] / weights.get(pod.team, 1)
        rivals = [has[team] / weights.get(team, 1) for team, left in backlog.items() if left]
        assert mine <= min(rivals) + 1e-9
        has[pod.team] += 1
        backlog[pod.team] -= 1
        if not weights:
            given_some = [has[team] for team in has if has[team] > held.get(team, NOTHING).memory // 100]
            assert all(most <= has[team] + 1 for most in given_some for team, left in backlog.items() if left)


@given(st.lists(st.builds(Waiting, TEAMS), max_size=30), HELD, WEIGHED, st.randoms())
def test_within_a_burst_the_order_of_arrival_makes_no_difference(
    pods: list[Waiting], held: dict[str, Held], weights: dict[str, int], dice: random.Random
) -> None:
    arrived = list(pods)
    dice.shuffle(arrived)
    assert order(arrived, held, weights) == order(pods, held, weights)


@given(
    st.lists(st.integers(0, 12), min_size=2, max_size=5), st.integers(1, 5), st.lists(st.integers(0, 4), max_size=60)
)
def test_nobody_starves_though_pods_of_others_keep_coming(backlogs: list[int], cluster: int, ends: list[int]) -> None:
    """
    Each card becomes free after a while, and with each placement a new pod of every namespace arrives. A pod waits only
    for older pods and for the turns of the other namespaces.
    """
    teams = [f"team-{i}" for i in range(len(backlogs))]
    older = [Waiting(team, created=0) for team, number in zip(teams, backlogs, strict=True) for _ in range(number)]
    mine = Waiting(teams[0], "mine", created=1)
    waiting, running, clock = [*older, mine], [teams[-1]] * cluster, 2
    for turn in range(len(older) + 2 * len(teams) * cluster + 2):
        end = (
            ends[turn] % cluster if turn < len(ends) and turn % 2 else 0
        )  # the longest running one at least every second time
        running.pop(end)
        held = {team: cards(number) for team, number in Counter(running).items()}
        shares = Shares(TOTAL, {})
        chosen = next(iter(fairness.if_placed(by_age(waiting), place, lambda pod: pod.asks, shares, held)))
        if chosen == mine:
            return
        waiting.remove(chosen)
        waiting += [Waiting(team, created=clock + i) for i, team in enumerate(teams)]
        clock += len(teams)
        running.append(chosen.team)
    raise AssertionError(f"{mine} still waits")


def test_shares_are_evaluated_again_after_each_pod() -> None:
    held = {"a": 0, "b": 0}
    found = []
    for pod in fairness.in_turn(A + B, place, lambda team: held[team]):
        found.append(f"{pod.team}{pod.name}")
        if pod.name != "0":  # the first of each does not fit, and is not placed
            held[pod.team] += 1
    assert found == ["a0", "a1", "b0", "b1", "a2", "a3"]


def test_a_namespace_that_is_given_more_by_others_meanwhile_steps_back() -> None:
    held = {"a": 0, "b": 1}
    turns = fairness.in_turn(A + B, place, lambda team: held[team])
    first = next(turns)
    held["a"] = 5
    assert (first.team, next(turns).team) == ("a", "b")
