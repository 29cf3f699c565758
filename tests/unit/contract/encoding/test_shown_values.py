"""A value that others wrote is repeated briefly, whatever it is."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.encoding.reading import shown


def nested(depth: int) -> list[Any]:
    inner: list[Any] = []
    for _ in range(depth):
        inner = [inner]
    return inner


SHOWN = {
    "text in quotation marks": ("5Gi", "'5Gi'"),
    "a number": (5, "5"),
    "null": (None, "None"),
    "line ends do not break the line": ("a\nb", r"'a\nb'"),
    "long text loses its middle": ("a" * 500 + "z" * 500, "'" + "a" * 37 + "..." + "z" * 37 + "'"),
    "a number that Python refuses to print": (10**5000, "<int too large to show>"),
    "an object nested deeper than Python prints": (nested(100_000), "<list too large to show>"),
}


@pytest.mark.parametrize(("value", "wanted"), SHOWN.values(), ids=SHOWN.keys())
def test_shown(value: object, wanted: str) -> None:
    assert shown(value) == wanted


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(JSON, st.integers(10, 100))
def test_values_are_never_longer_than_allowed_and_on_one_line(value: object, most: int) -> None:
    text = shown(value, most=most)
    assert len(text) <= most
    assert len(text.splitlines()) == 1
