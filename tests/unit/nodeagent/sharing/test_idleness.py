"""Since when shares have computed nothing, and when that is published."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.model import Allocation, ContainerAllocation, GpuShare
from contract.nodes.idle import IdleShare
from nodeagent.gpus.library import Card
from nodeagent.sharing.idleness import IdleTracker, computing_nothing
from nodeagent.sharing.residents import Resident
from nodeagent.sharing.usage import NodeUsage, Use, measure
from tests.unit.nodeagent.builders import card

ONE, TWO = "a" * 64, "b" * 64
DATA = {"processes": (), "active": (), "utilisation": 0}


def pod(name: str, cid: str, *gpus: str) -> Resident:
    shares = tuple(GpuShare(gpu, 0, 100, 30, 1 << 34) for gpu in gpus)
    allocation = Allocation("a", "n1", (ContainerAllocation("main", shares),))
    return Resident(name, "team", name, allocation, containers=((cid, "main"),) if cid else ())


P, Q = pod("p", ONE, "GPU-0", "GPU-1"), pod("q", TWO, "GPU-0")


def groups(pid: int) -> str:
    return {1: f"0::/kubepods/pod1/{ONE}", 2: f"0::/kubepods/pod2/{TWO}"}.get(pid, "")


def quiet(cards: tuple[Card, ...], *residents: Resident) -> set[str]:
    return set(computing_nothing(measure(cards, residents or (P, Q), groups)))


LOOKS = {
    "nobody computes": ((card(0, **DATA), card(1, **DATA)), {"p", "q"}),
    "one computes on one of its cards": ((card(0, **DATA), card(1, **{**DATA, "active": (1,)})), {"q"}),
    "memory alone is no computing": ((card(0, **{**DATA, "processes": ((2, 99),)}), card(1, **DATA)), {"p", "q"}),
    "the driver does not tell who computes on a card": ((card(0, **{**DATA, "active": None}), card(1, **DATA)), set()),
    "a card is not there": ((card(0, **DATA),), {"q"}),
    "a card lists no processes": ((card(0, **DATA), card(1, **{**DATA, "processes": None})), {"q"}),
    "somebody unknown computes": ((card(0, **{**DATA, "active": (9,)}), card(1, **DATA)), set()),
    "the card is busy and nobody has been": ((card(0, **{**DATA, "utilisation": 3}), card(1, **DATA)), set()),
    "the card is busy by one of them": (
        (card(0, **{**DATA, "active": (2,), "utilisation": 3}), card(1, **DATA)),
        {"p"},
    ),
}


@pytest.mark.parametrize(("cards", "want"), LOOKS.values(), ids=LOOKS.keys())
def test_a_share_is_quiet_only_where_that_is_known(cards: tuple[Card, ...], want: set[str]) -> None:
    assert quiet(cards) == want


def test_a_container_that_has_not_started_is_not_quiet() -> None:
    assert quiet((card(0, **DATA),), pod("r", "", "GPU-0"), Q) == {"q"}


def usage(active: bool | None) -> NodeUsage:
    return NodeUsage((Use(Q, "main", "GPU-0", 100, 30, 0, active=active),))


def published(tracker: IdleTracker, *looks: tuple[float, bool | None]) -> list[int | None]:
    """Since when the share is published as idle, after each look."""
    found = []
    for at, active in looks:
        tracker.see(usage(active), at)
        found.append(next((share.since for share in tracker.idle(at)), None))
    return found


def test_a_share_is_published_as_idle_after_a_minute_from_its_first_idle_look() -> None:
    looks = [(float(at), False) for at in range(0, 80, 10)]
    assert published(IdleTracker(), *looks) == [None] * 6 + [0, 0]


def test_what_is_not_known_begins_the_time_again() -> None:
    looks = [(float(at), None if at == 50 else False) for at in range(0, 130, 10)]
    assert published(IdleTracker(), *looks) == [None] * 12 + [60]


def test_two_looks_too_far_apart_say_nothing_of_the_time_between() -> None:
    tracker = IdleTracker()
    assert published(tracker, (0, False), (61, False), (121, False)) == [None, None, 61]
    assert tracker.idle(181.0) == {IdleShare(61, "q")}
    assert not tracker.idle(182.0), "the agent has not looked for too long"
    assert published(tracker, (100, False)) == [None], "the clock was set back"


def test_a_share_that_computes_now_and_then_is_published_later_each_time() -> None:
    tracker, writes = IdleTracker(), 0
    for at in range(0, 4 * 3600, 10):
        # It computes once in 100 s.
        writes += tracker.see(usage(at % 100 == 0), float(at))
    assert writes == 8, "once an hour it is published and withdrawn"


@given(st.lists(st.sampled_from((True, False, False, False, None)), max_size=200), st.integers(1, 60))
def test_an_idle_share_has_been_quiet_at_every_look_since(history: list[bool | None], apart: int) -> None:
    tracker, seen = IdleTracker(), list[tuple[int, bool | None]]()
    for number, active in enumerate(history):
        at = number * apart
        seen.append((at, active))
        before = tracker.idle(at - apart) if number else frozenset()
        assert tracker.see(usage(active), float(at)) == (tracker.idle(at) != before)
        for share in tracker.idle(at):
            assert at - share.since >= 60
            assert all(was is False for when, was in seen if when >= share.since)
