"""Quantities are exact, and no text of a tenant makes them hang or raise another error."""

from __future__ import annotations

import contextlib
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.encoding.quantity import BadQuantity, format_bytes, integer, mib, milli, parse, rounded_up, written

READ = {
    "a plain number": ("5", Fraction(5)),
    "a number, as JSON has it": (5, Fraction(5)),
    "a decimal number, as JSON has it": (0.1, Fraction(1, 10)),
    "a decimal number that Python writes with an exponent": (1e22, Fraction(10**22)),
    "binary suffix": ("8Gi", Fraction(8 << 30)),
    "decimal suffix": ("8G", Fraction(8 * 10**9)),
    "thousandths": ("500m", Fraction(1, 2)),
    "billionths": ("1n", Fraction(1, 10**9)),
    "a fraction of a binary suffix": ("1.5Ki", Fraction(1536)),
    "digits behind the point only": (".5", Fraction(1, 2)),
    "a point without digits behind": ("5.", Fraction(5)),
    "a plus sign": ("+5", Fraction(5)),
    "negative": ("-5Mi", Fraction(-5 << 20)),
    "exa": ("2E", Fraction(2 * 10**18)),
    "an exponent that looks like exa": ("2E3", Fraction(2000)),
    "a small exponent": ("2e-3", Fraction(1, 500)),
    "what Kubernetes makes of 3000": ("3k", Fraction(3000)),
}


@pytest.mark.parametrize(("text", "wanted"), READ.values(), ids=READ.keys())
def test_read_exactly(text: object, wanted: Fraction) -> None:
    assert parse(text) == wanted


REFUSED = {
    "nothing": "",
    "words": "five",
    "an unknown unit": "5Gb",
    "kilo with a capital letter": "5K",
    "a blank before the unit": "5 Gi",
    "a blank at the end": "5 ",
    "a line feed at the end": "5\n",
    "two signs": "--5",
    "a thousands separator": "1_000",
    "a comma": "1,5",
    "digits of another script": "\u0665",
    "hexadecimal": "0x10",
    "not a number": "NaN",
    "infinity": "Infinity",
    "not a number, as Python's JSON reads it": float("nan"),
    "infinity, as Python's JSON reads it": float("inf"),
    "an exponent that would fill memory": "1e1000000000",
    "10 to the 1000": "1e1000",
    "a thousand digits": "1" * 1000,
    "more digits than Python prints": 10**5000,
    "true": True,
    "null": None,
    "a list": ["5"],
    "an object": {"5": 5},
}


@pytest.mark.parametrize("value", REFUSED.values(), ids=REFUSED.keys())
def test_what_is_no_quantity_is_refused_briefly(value: object) -> None:
    for read in (parse, integer, milli, rounded_up):
        with pytest.raises(BadQuantity) as caught:
            read(value)
        assert str(caught.value).endswith("is not a quantity such as 5, 500m or 8Gi")
        assert len(str(caught.value)) < 150


def test_what_was_read_before_changes_no_answer() -> None:
    for read in (parse, integer, milli, rounded_up):
        assert read(1) == read("1") == read(1.0) == read(1)
        with pytest.raises(BadQuantity):
            read(True)


def test_the_largest_exponent_that_is_read_takes_no_time() -> None:
    assert integer("1e999") == 10**999


@given(st.text() | st.integers() | st.floats() | st.none() | st.booleans() | st.lists(st.integers()))
def test_total(value: object) -> None:
    with contextlib.suppress(BadQuantity):
        assert isinstance(parse(value), Fraction)


@given(st.text(alphabet="0123456789.eE+-numkKMGTPi", max_size=12))
def test_total_near_quantities(text: str) -> None:
    with contextlib.suppress(BadQuantity):
        assert milli(text) >= parse(text) * 1000 > milli(text) - 1


WHOLE = {"5": 5, "1e3": 1000, "2Ki": 2048, "1500m": None, "0.5": None, "0.5Ki": 512, "-3": -3}


@pytest.mark.parametrize(("text", "wanted"), WHOLE.items())
def test_integer_takes_whole_numbers_only(text: str, wanted: int | None) -> None:
    if wanted is None:
        with pytest.raises(BadQuantity, match="is not a whole number"):
            integer(text)
    else:
        assert integer(text) == wanted


ROUNDED = {"1": (1, 1000), "1500m": (2, 1500), "100u": (1, 1), "0": (0, 0), "0.0015": (1, 2), "-1500m": (-1, -1500)}


@pytest.mark.parametrize(("text", "wanted"), ROUNDED.items())
def test_requests_round_up_as_in_kubernetes(text: str, wanted: tuple[int, int]) -> None:
    assert (rounded_up(text), milli(text)) == wanted


FORMATTED = {
    0: "0",
    1: "1",
    1000: "1000",
    1024: "1Ki",
    1536: "1536",
    15109 << 20: "15109Mi",
    8 << 30: "8Gi",
    1 << 60: "1Ei",
}


@pytest.mark.parametrize(("amount", "wanted"), FORMATTED.items())
def test_bytes_are_written_with_the_largest_unit_that_divides_them(amount: int, wanted: str) -> None:
    assert format_bytes(amount) == wanted


@given(
    st.integers(-(1 << 70), 1 << 70) | st.builds(lambda n, shift: n << shift, st.integers(0, 5000), st.integers(0, 60))
)
def test_bytes_come_back_exactly(amount: int) -> None:
    assert integer(format_bytes(amount)) == amount


def test_a_limit_in_mib_never_exceeds_the_share() -> None:
    assert [mib((1 << 20) - 1), mib(1 << 20), mib((5 << 30) + 1)] == [0, 1, 5120]


WRITTEN = {"8k": "'8000'", "8000": "'8000'", "8M": "'8M'", "8Gi": "'8Gi'", "8kk": "'8kk'"}


@pytest.mark.parametrize(("text", "wanted"), WRITTEN.items())
def test_an_amount_is_shown_as_its_author_wrote_it(text: str, wanted: str) -> None:
    assert written(text) == wanted
    assert written(8000) == "8000"
