"""Text that others wrote is shown on one line, harmless and bounded, whatever it is."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.dialects import DIALECTS
from contract.encoding.plain import MESSAGE, is_plain, plain, plain_values, stand_in
from contract.encoding.reading import is_label, is_subdomain
from contract.model import UNKNOWN_DIALECT
from tests.odd import TEXT, VALUES, is_fit

SHOWN = {
    "text as it is": ("8 GiB of GPU 0 (Tesla T4)", "8 GiB of GPU 0 (Tesla T4)"),
    "other letters": ("größer, 显存", "größer, 显存"),
    "line ends and tabs": ("a\nb\tc", "a b c"),
    "an escape sequence": ("\x1b[2J", "\N{REPLACEMENT CHARACTER}[2J"),
    "half a character": ("a\ud800b", "a\N{REPLACEMENT CHARACTER}b"),
    "a mark of direction": ("\u202egpj", "\N{REPLACEMENT CHARACTER}gpj"),
    "too much": ("x" * 2_000, "x" * 997 + "…"),
    "too many bytes": ("é" * 1_000, "é" * 498 + "…"),
}


@pytest.mark.parametrize(("text", "wanted"), SHOWN.values(), ids=SHOWN.keys())
def test_plain(text: str, wanted: str) -> None:
    assert plain(text) == wanted


@given(TEXT, st.integers(3, 2_000))
def test_any_text_is_fit_to_be_shown_and_shown_text_stays(text: str, most: int) -> None:
    found = plain(text, most)
    assert is_fit(found, most)
    assert plain(found, most) == found
    assert is_plain(text, most) == (found == text)


@given(VALUES)
def test_any_document_keeps_its_form_and_its_texts_are_fit(document: object) -> None:
    found = plain_values(document, MESSAGE)
    assert json.dumps(found).isprintable()
    assert plain_values(found, MESSAGE) == found or found != found or "NaN" in json.dumps(found)


@given(TEXT, TEXT)
def test_what_stands_for_a_text_is_a_name_and_no_other_texts(first: str, second: str) -> None:
    assert is_subdomain(stand_in(first))
    assert (stand_in(first) == stand_in(second)) == (first == second)


def test_the_name_of_each_dialect_is_one_that_stored_requests_may_have() -> None:
    assert all(is_label(dialect.name) for dialect in DIALECTS)
    assert DIALECTS.known(UNKNOWN_DIALECT) == UNKNOWN_DIALECT
    assert DIALECTS.named(UNKNOWN_DIALECT) is None
