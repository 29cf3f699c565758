"""The arithmetic behind the benchmark's figures, and how they are printed."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.figures import WIDTH, Spread, exponent, machine_line, percentile, table

PERCENTILES = {
    "the median of an odd number is the middle one": ([3, 1, 2], 0.5, 2),
    "the median of an even number is the lower of the two": ([4, 1, 3, 2], 0.5, 2),
    "the 99th of a hundred is the last but one": (list(range(1, 101)), 0.99, 99),
    "the 99th of a hundred and one is the last but one": (list(range(1, 102)), 0.99, 100),
    "the 99th of ten is the largest": (list(range(1, 11)), 0.99, 10),
    "a product that floating point makes a little too large stays in its place": (list(range(1, 101)), 0.07, 7),
    "nothing is below the 0th but it is still a value": ([5, 7], 0.0, 5),
    "the 100th is the largest": ([5, 7], 1.0, 7),
}


@pytest.mark.parametrize(("values", "share", "want"), PERCENTILES.values(), ids=PERCENTILES)
def test_percentile(values: list[float], share: float, want: float) -> None:
    assert percentile(values, share) == want


@given(st.lists(st.integers(0, 50), min_size=1), st.floats(0.001, 1))
def test_a_percentile_is_the_least_value_that_so_many_do_not_exceed(values: list[int], share: float) -> None:
    found = percentile(values, share)
    enough = [v for v in values if sum(other <= v for other in values) >= share * len(values) - 1e-9]
    assert found == min(enough)


@pytest.mark.parametrize(("values", "share"), [([], 0.5), ([1], 1.1), ([1], -0.1)])
def test_there_is_no_percentile_of_nothing_or_beyond_the_ends(values: list[float], share: float) -> None:
    with pytest.raises(ValueError, match="percentile"):
        percentile(values, share)


def test_a_spread_shows_its_unit() -> None:
    spread = Spread.of([1_000_000, 2_000_000, 4_000_000])
    assert spread == Spread(count=3, p50=2_000_000, p99=4_000_000, most=4_000_000)
    assert spread.cells(1e6) == ("2.00", "4.00", "4.00")


@given(st.floats(0.1, 3), st.floats(0.1, 1000))
def test_the_exponent_of_a_pure_power_is_its_own(power: float, factor: float) -> None:
    points = [(size, factor * size**power) for size in (100, 1_000, 5_000, 20_000)]
    assert math.isclose(exponent(points), power, rel_tol=1e-9)


EXPONENTS = {
    "constant": ([(100, 3.0), (1_000, 3.0), (10_000, 3.0)], 0.0),
    "linear": ([(100, 1.0), (1_000, 10.0)], 1.0),
    "errors that cancel out": ([(10, 20.0), (100, 100.0), (1_000, 2_000.0)], 1.0),
}


@pytest.mark.parametrize(("points", "want"), EXPONENTS.values(), ids=EXPONENTS)
def test_exponent(points: list[tuple[float, float]], want: float) -> None:
    assert math.isclose(exponent(points), want, abs_tol=1e-9)


def test_one_size_has_no_growth() -> None:
    with pytest.raises(ValueError, match="two different sizes"):
        exponent([(100, 1.0), (100, 2.0)])


def test_a_table_is_aligned() -> None:
    assert table("What", ("name", "p50"), [("a", "1.25"), ("longer", "10.00")]).splitlines() == [
        "What",
        "name      p50",
        "-------------",
        "a        1.25",
        "longer  10.00",
    ]


def test_a_table_that_is_too_wide_is_refused() -> None:
    with pytest.raises(ValueError, match=f"at most {WIDTH}"):
        table("What", ("name", "p50"), [("x" * WIDTH, "1")])


def test_a_machine_line_is_one_line_of_pairs() -> None:
    assert machine_line("decision", {"nodes": 1000, "p50_us": "176"}) == "bench decision nodes=1000 p50_us=176"
