"""The page of settings is what the programs say of them."""

from __future__ import annotations

from playground import settingspage


def test_the_page_is_what_the_programs_say() -> None:
    """`make docs` writes it."""
    assert settingspage.PAGE.read_text(encoding="utf-8") == settingspage.page()


def test_every_program_is_on_it() -> None:
    text = settingspage.page()
    for variable in ("GPUFRACTION_ALLOCATOR_TIMEOUT", "GPUFRACTION_DAYS", "GPUFRACTION_ASSUME_TTL", "GPUFRACTION_MIG"):
        assert f"`{variable}`" in text
