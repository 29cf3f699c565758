"""The page of settings is what the programs say of them."""

from __future__ import annotations

from functools import cache

from playground import settingspage


@cache
def page() -> str:
    """It asks each program, which takes seconds."""
    return settingspage.page()


def test_the_page_is_what_the_programs_say() -> None:
    """`make docs` writes it."""
    assert settingspage.PAGE.read_text(encoding="utf-8") == page()


def test_every_program_is_on_it() -> None:
    for variable in ("GPUFRACTION_HIDE_GPUS", "GPUFRACTION_DAYS", "GPUFRACTION_ASSUME_TTL", "GPUFRACTION_XID_QUIET"):
        assert f"`{variable}`" in page()
