"""The smallest set that gives enough, and the least important such set, as a search through all subsets finds it."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allocator.preemption.set_cover import Budget, cover
from tests.examples import examples

Amounts = tuple[int, ...]
AMOUNTS = st.lists(st.tuples(*[st.integers(0, 4)] * 3), max_size=7)


def by_hand(gains: list[Amounts], lacks: Amounts, most: int) -> tuple[int, ...] | None:
    """Every subset, the smallest first; of equal size, the one with the earliest last member, then second to last."""
    for count in range(most + 1):
        fitting = [
            chosen
            for chosen in combinations(range(len(gains)), count)
            if all(sum(gains[i][amount] for i in chosen) >= lack for amount, lack in enumerate(lacks))
        ]
        if fitting:
            return min(fitting, key=lambda chosen: chosen[::-1])
    return None


@given(gains=AMOUNTS, lacks=st.tuples(*[st.integers(-2, 12)] * 3), most=st.integers(0, 7))
@settings(max_examples=examples(100), deadline=None)
def test_it_finds_what_a_search_through_all_finds(gains: list[Amounts], lacks: Amounts, most: int) -> None:
    places = (range(0, 1), range(1, 3))
    want = by_hand(gains, lacks, most)
    assert (cover(gains, lacks, most), cover(gains, lacks, most, places=places)) == (want, want)


@given(gains=AMOUNTS, lacks=st.tuples(*[st.integers(-2, 12)] * 3), steps=st.integers(0, 3))
@settings(max_examples=examples(80), deadline=None)
def test_past_the_bound_it_still_covers_and_nobody_is_to_spare(
    gains: list[Amounts], lacks: Amounts, steps: int
) -> None:
    chosen = cover(gains, lacks, len(gains), budget=Budget(steps))
    assert (chosen is None) == (by_hand(gains, lacks, len(gains)) is None)

    def enough(of: tuple[int, ...]) -> bool:
        return all(sum(gains[i][amount] for i in of) >= lack for amount, lack in enumerate(lacks))

    if chosen is not None:
        assert enough(chosen)
        assert not any(enough(tuple(i for i in chosen if i != one)) for one in chosen)


CASES: dict[str, tuple[list[Amounts], Amounts, tuple[int, ...] | None]] = {
    "nothing lacks": ([(1,)], (0,), ()),
    "nobody can give enough": ([(1,), (1,)], (3,), None),
    "one large before two small": ([(1,), (1,), (2,)], (2,), (2,)),
    "the first of equals": ([(2,), (2,)], (2,), (0,)),
    "one amount each": ([(2, 0), (0, 2), (1, 1)], (2, 2), (0, 1)),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_cover(case: tuple[list[Amounts], Amounts, tuple[int, ...] | None]) -> None:
    gains, lacks, want = case
    assert cover(gains, lacks, len(gains)) == want
