"""The page of settings equals what the programs say about them."""

from __future__ import annotations

from functools import cache

import pytest

from playground import settingspage

WRITTEN = settingspage.PAGE.read_text(encoding="utf-8")


@cache
def page() -> str:
    """The page's text. It asks each program, which takes seconds."""
    return settingspage.page(WRITTEN)


def test_the_page_is_what_the_programs_say() -> None:
    """`make docs` writes it."""
    assert page() == WRITTEN


def test_what_people_wrote_stays_and_an_old_reference_goes() -> None:
    head = WRITTEN.partition(settingspage.MADE)[0]
    assert settingspage.page(f"{head}{settingspage.MADE}old") == page()


def test_a_page_without_the_mark_is_refused() -> None:
    with pytest.raises(ValueError, match="must have the line"):
        settingspage.page("# Settings")


def test_every_program_is_on_it() -> None:
    for variable in ("GPUFRACTION_HIDE_GPUS", "GPUFRACTION_DAYS", "GPUFRACTION_ASSUME_TTL", "GPUFRACTION_XID_QUIET"):
        assert f"`{variable}`" in page()
