"""Which review is answered next: sources take turns, large ones go one at a time, and none is forgotten."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from webhook.serving.turns import LARGE, Turns

SMALL = 1000


def taken(turns: Turns[str], number: int) -> list[str | None]:
    """The reviews that are answered one after another, all of them small."""
    found = []
    for _ in range(number):
        found.append(turns.take())
        turns.done(SMALL)
    return found


def test_the_requests_of_one_source_do_not_wait_behind_all_of_another() -> None:
    turns: Turns[str] = Turns(1)
    for number in range(100):
        turns.put(f"flood {number}", source="10.0.0.1", size=SMALL)
    turns.put("api server 0", source="10.0.0.2", size=SMALL)
    turns.put("api server 1", source="10.0.0.2", size=SMALL)
    assert taken(turns, 5) == ["flood 0", "api server 0", "flood 1", "api server 1", "flood 2"]


def test_large_ones_go_one_at_a_time_beside_the_others_and_the_smallest_first() -> None:
    turns: Turns[str] = Turns(2)
    for size in (8, 4, 2):
        turns.put(f"large {size}", source="10.0.0.1", size=LARGE * size)
    for number in range(3):
        turns.put(f"small {number}", source="10.0.0.2", size=SMALL)
    assert [turns.take() for _ in range(4)] == ["small 0", "small 1", "large 2", None]
    turns.done(2 * LARGE)
    assert [turns.take() for _ in range(2)] == ["large 4", None]
    turns.done(SMALL)
    assert [turns.take() for _ in range(2)] == ["small 2", None]


def test_a_small_one_overtakes_all_larger_ones_of_its_source() -> None:
    turns: Turns[str] = Turns(1)
    for number in range(48):
        turns.put(f"flood {number}", source="api server", size=60 << 10)
    turns.put("victim", source="api server", size=2 << 10)
    assert taken(turns, 3) == ["victim", "flood 0", "flood 1"]


@pytest.mark.parametrize("large", [60 << 10, 3 << 20], ids=["beside usual ones", "beside large ones"])
def test_one_turn_in_three_goes_to_what_has_waited_longest(large: int) -> None:
    turns: Turns[str] = Turns(1)
    turns.put("large", source="api server", size=large)
    for number in range(10):
        turns.put(f"small {number}", source="api server", size=large // 10)
    order = []
    for _ in range(4):
        order.append(turns.take())
        turns.done(large)
    assert order == ["small 0", "small 1", "large", "small 2"]


def test_what_is_not_wanted_any_more_is_not_answered() -> None:
    turns: Turns[str] = Turns(1)
    turns.put("small", source="a", size=SMALL)
    turns.put("large", source="a", size=LARGE + 1)
    turns.drop("small", source="a", size=SMALL)
    turns.drop("large", source="a", size=LARGE + 1)
    assert turns.take() is None
    for size in (SMALL, LARGE + 1):
        with pytest.raises(ValueError):
            turns.drop("never there", source="a", size=size)


SIZES = st.sampled_from([1, SMALL, LARGE, LARGE + 1, 3 * LARGE])
SOURCES = st.sampled_from(["a", "b", "c"])
PLACES = 3


class Line(RuleBasedStateMachine):
    """Any order of events."""

    def __init__(self) -> None:
        super().__init__()
        self.turns: Turns[int] = Turns(PLACES)
        self.next = 0
        self.waiting: dict[int, tuple[str, int]] = {}
        self.working: dict[int, int] = {}

    @rule(source=SOURCES, size=SIZES)
    def put(self, source: str, size: int) -> None:
        self.turns.put(self.next, source=source, size=size)
        self.waiting[self.next] = source, size
        self.next += 1

    @rule()
    def take(self) -> None:
        found = self.turns.take()
        if found is not None:
            self.working[found] = self.waiting.pop(found)[1]
            return
        small = any(size <= LARGE for _, size in self.waiting.values())
        large = any(size > LARGE for _, size in self.waiting.values())
        assert not small or self.at_work(large=False) == PLACES
        assert not large or self.at_work(large=True) == 1

    @precondition(lambda self: self.working)
    @rule(pick=st.randoms(use_true_random=False))
    def done(self, pick: object) -> None:
        number = pick.choice(sorted(self.working))  # type: ignore[attr-defined]
        self.turns.done(self.working.pop(number))

    @precondition(lambda self: self.waiting)
    @rule(pick=st.randoms(use_true_random=False))
    def drop(self, pick: object) -> None:
        number = pick.choice(sorted(self.waiting))  # type: ignore[attr-defined]
        source, size = self.waiting.pop(number)
        self.turns.drop(number, source=source, size=size)

    def at_work(self, *, large: bool) -> int:
        return sum((size > LARGE) is large for size in self.working.values())

    @invariant()
    def never_more_than_there_are_places(self) -> None:
        assert self.at_work(large=False) <= PLACES
        assert self.at_work(large=True) <= 1


TestLine = Line.TestCase


@given(st.lists(SOURCES, min_size=1, max_size=30))
def test_a_source_waits_at_most_for_one_of_each_other(sources: list[str]) -> None:
    turns: Turns[str] = Turns(1)
    for source in sources:
        turns.put(source, source=source, size=SMALL)
    order = taken(turns, len(sources))
    for source in set(sources):
        places = [-1, *(place for place, each in enumerate(order) if each == source)]
        assert all(later - sooner <= 3 for sooner, later in pairwise(places))
