"""A dialect's own priority orders the pods of one namespace, and takes no place from another namespace's pods."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from hypothesis import given
from hypothesis import strategies as st

from contract.scheduling import fairness
from contract.scheduling.fairness import Held, QueuePlace, Shares

ONE = Held(100, 100)
SHARES = Shares(Held(800, 800), {})


@dataclass(frozen=True)
class Waiting:
    """A pod that requests a card. `age`: its position among all pods by creation time."""

    team: str
    age: int
    priority: int = 0
    preferred: bool = False


def place(pod: Waiting) -> QueuePlace:
    return QueuePlace(pod.priority, pod.team, pod.age, pod.preferred)


def by_age(pods: list[Waiting]) -> list[Waiting]:
    return sorted(pods, key=lambda pod: (-pod.priority, pod.age))


def own(pods: list[Waiting]) -> list[Waiting]:
    return list(fairness.own_order(by_age(pods), place))


def fair(pods: list[Waiting], held: dict[str, Held]) -> list[Waiting]:
    return list(fairness.if_placed(own(pods), place, lambda pod: ONE, SHARES, held))


def plain(pods: list[Waiting]) -> list[Waiting]:
    """The same pods without any annotation."""
    return [replace(pod, preferred=False) for pod in pods]


QUEUES = st.lists(
    st.builds(
        Waiting, st.sampled_from("abc"), st.integers(0, 99), st.sampled_from((0, 0, 10)), st.sampled_from((False, True))
    ),
    max_size=24,
    unique_by=lambda pod: pod.age,
)
HELD = st.dictionaries(st.sampled_from("abc"), st.integers(0, 4).map(lambda cards: Held(100 * cards, 100 * cards)))


def test_a_preferred_pod_comes_before_the_older_ones_of_its_namespace_only() -> None:
    pods = [Waiting("a", 1), Waiting("b", 2), Waiting("a", 3, preferred=True), Waiting("b", 4), Waiting("a", 5)]
    assert [f"{pod.team}{pod.age}" for pod in own(pods)] == ["b2", "a3", "a1", "b4", "a5"]


@given(QUEUES)
def test_no_pod_comes_earlier_among_others_than_by_its_age(pods: list[Waiting]) -> None:
    """A pod is behind every older pod of a namespace that does not delay its own pods."""
    found, prefer = own(pods), {(pod.priority, pod.team) for pod in pods if pod.preferred}
    assert Counter(found) == Counter(pods)
    for at, pod in enumerate(found):
        passed = [pod for pod in found[at + 1 :] if (pod.priority, pod.team) not in prefer]
        assert [each for each in passed if each.priority == pod.priority and each.age < pod.age] == []


@given(QUEUES, st.sampled_from("abc"))
def test_whatever_a_namespace_prefers_others_come_no_later(pods: list[Waiting], team: str) -> None:
    """Compared with the same queue in which this namespace prefers nothing."""
    others = [replace(pod, preferred=pod.preferred and pod.team != team) for pod in pods]
    before, after = own(others), own(pods)
    for victim in (pod for pod in pods if pod.team != team):
        ahead = {pod.age for pod in after[: after.index(victim)] if pod.team == team}
        assert ahead <= {pod.age for pod in before[: before.index(victim)] if pod.team == team}


@given(QUEUES)
def test_within_a_namespace_the_preferred_are_first_then_the_oldest(pods: list[Waiting]) -> None:
    for team in "abc":
        found = [pod for pod in own(pods) if pod.team == team]
        assert found == sorted(found, key=lambda pod: (-pod.priority, not pod.preferred, pod.age))


@given(QUEUES, HELD)
def test_in_the_fair_order_a_turn_is_still_of_who_holds_least(pods: list[Waiting], held: dict[str, Held]) -> None:
    has = Counter({team: each.memory // 100 for team, each in held.items()})
    waits = Counter((pod.priority, pod.team) for pod in pods)
    for pod in fair(pods, held):
        rivals = [has[team] for (priority, team), left in waits.items() if left and priority == pod.priority]
        assert has[pod.team] == min(rivals)
        has[pod.team] += 1
        waits[pod.priority, pod.team] -= 1


@given(QUEUES)
def test_the_time_that_counts_as_created_sorts_as_the_order_does(pods: list[Waiting]) -> None:
    counts = fairness.counts_as_created(map(place, pods))
    found = [(-pod.priority, counts(place(pod))) for pod in own(pods)]
    assert found == sorted(found)


@given(QUEUES)
def test_without_a_preferred_pod_it_is_the_order_of_age(pods: list[Waiting]) -> None:
    assert own(plain(pods)) == by_age(plain(pods))
