"""Prices of shares: known cutting-stock problems solved by hand, and what must hold for any demand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allocator.scoring import pricing
from allocator.scoring.classes import CARD, place
from tests.examples import examples

BY_HAND = {
    "halves cost a half": ({500: 10.0}, {500: 1 / 2}),
    "three of them fill a card, with a waste that each shares": ({320: 9.0}, {320: 1 / 3}),
    "nothing fits beside it, so it costs the whole card": ({810: 5.0}, {810: 1.0}),
    "what only fills the holes of others is free": ({810: 10.0, 160: 3.0}, {810: 1.0, 160: 0.0}),
    "more of them than holes: they pay for cards of their own, and fill these": (
        {810: 1.0, 160: 100.0},
        {810: 5 / 6, 160: 1 / 6},
    ),
    "nobody asks": ({}, {}),
}


@pytest.mark.parametrize(("amounts", "want"), BY_HAND.values(), ids=BY_HAND.keys())
def test_prices(amounts: dict[int, float], want: dict[int, float]) -> None:
    assert pricing.prices(amounts) == pytest.approx(want)


demands = st.dictionaries(st.integers(1, CARD - 1), st.floats(0.1, 1000), min_size=1, max_size=12)


@settings(max_examples=examples(20), deadline=None)
@given(demands)
def test_no_cut_of_a_card_is_worth_more_than_the_card(amounts: dict[int, float]) -> None:
    prices = pricing.prices(amounts)
    values = {size: np.array([round(1_000_000 * price)], np.int32) for size, price in prices.items()}
    worth = pricing.fillings(values, 1)[:, 0]
    assert worth[CARD] <= 1_000_000 + CARD  # a millionth of rounding per share
    assert list(worth) == sorted(worth)


@settings(max_examples=examples(20), deadline=None)
@given(demands)
def test_the_demand_costs_at_least_its_volume_and_at_most_one_size_a_card(amounts: dict[int, float]) -> None:
    prices = pricing.prices(amounts)
    cost = sum(amounts[size] * price for size, price in prices.items())
    volume = sum(size * amount for size, amount in amounts.items()) / CARD
    alone = sum(amount / (CARD // size) for size, amount in amounts.items())
    assert volume * (1 - 1e-6) <= cost <= alone * (1 + 1e-6)


def test_fillings_take_the_best_of_each_lane() -> None:
    values = {300: np.array([4, 1], np.int32), 500: np.array([5, 9], np.int32)}
    worth = pricing.fillings(values, 2)
    assert worth[[299, 300, 500, 600, 800, 1000]].tolist() == [[0, 0], [4, 1], [5, 9], [8, 9], [9, 10], [12, 18]]


def test_too_many_sizes_are_counted_on_a_coarser_grid() -> None:
    assert pricing.coarse(range(10, 600, 10)) == 1
    assert pricing.coarse(range(1, 100)) == 2
    assert pricing.coarse(range(1, CARD)) == 20


def test_two_shares_that_fill_one_card_share_its_price() -> None:
    """Neither fits together with another of its own kind."""
    assert pricing.prices_by_sides({(70, 10): 1.0, (10, 70): 3.0}) == pytest.approx({(70, 10): 0.0, (10, 70): 1.0})
    assert sum(pricing.prices_by_sides({(70, 10): 1.0, (10, 70): 1.0}).values()) == pytest.approx(1.0)


AMOUNTS = st.dictionaries(st.integers(5, 95), st.integers(1, 9), min_size=1, max_size=6)


@given(AMOUNTS)
@settings(max_examples=examples(20), deadline=None)
def test_both_sides_alike_are_priced_as_one_side(amounts: dict[int, int]) -> None:
    """The total price of a card is the same, whichever of several optimal prices the linear program returns."""
    one = pricing.prices({10 * size: float(amount) for size, amount in amounts.items()})
    two = pricing.prices_by_sides({(size, size): float(amount) for size, amount in amounts.items()})
    costs = [
        sum(price * amounts[size] for size, price in zip(sorted(amounts), by.values(), strict=True))
        for by in (one, two)
    ]
    assert costs[0] == pytest.approx(costs[1])


@given(AMOUNTS)
@settings(max_examples=examples(20), deadline=None)
def test_both_sides_alike_fill_a_card_as_one_side(values: dict[int, int]) -> None:
    one = pricing.fillings({10 * size: np.array([value], np.int32) for size, value in values.items()}, 1)[:, 0]
    two = pricing.fillings_by_sides({(size, size): value for size, value in values.items()})
    assert [int(two[place(10 * left, 10 * left)]) for left in range(101)] == one[::10].tolist()


def test_the_scarcer_side_decides_what_is_left() -> None:
    """A share of 20% and 50%: by memory five fit, by cores two."""
    worth = pricing.fillings_by_sides({(20, 50): 7})
    assert [int(worth[place(*left)]) for left in ((1000, 1000), (1000, 990), (399, 1000), (200, 500))] == [14, 7, 7, 7]
    assert worth[place(0, 1000)] == worth[place(1000, 0)] == 0
