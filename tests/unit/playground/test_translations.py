"""Every translated page translates its original's current text, and tells readers to type the same commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from playground.translations import TOP, blocks, digest, outdated, renewed, translations

ORIGINAL = """# A page

Text.

    indented

1. A list:
   more of it

   ```sh
   ls
   ```

```console
$ a

b
```
End.
"""
TRANSLATION = (
    "<!-- Translates a.md, of which the text has the digest 0 -->\n# 页\n\n    old\n\n```\n$ old\n```\n\n```\n```\n"
)


@pytest.mark.parametrize("page", translations(), ids=lambda page: str(page.relative_to(TOP)))
def test_a_translation_has_the_text_and_the_commands_of_its_original(page: Path) -> None:
    assert outdated(page, translations()[page]) == []


def test_blocks_of_code_are_those_between_fences_and_the_indented_ones() -> None:
    assert blocks(ORIGINAL) == ["    indented\n", "   ```sh\n   ls\n   ```\n", "```console\n$ a\n\nb\n```\n"]


def test_a_digest_is_that_of_the_text_alone() -> None:
    assert digest(ORIGINAL) == digest(ORIGINAL.replace("$ a", "$ another"))
    assert digest(ORIGINAL) != digest(ORIGINAL.replace("End", "The end"))


def test_what_changed_is_named_with_the_command_that_renews(tmp_path: Path) -> None:
    page, original = tmp_path / "a_zh.md", tmp_path / "a.md"
    page.write_text(TRANSLATION, encoding="utf-8")
    original.write_text(ORIGINAL, encoding="utf-8")
    assert outdated(page, original) == [
        "a_zh.md: the text of a.md has changed since this translation (git log -p a.md); translate what changed, "
        "then: make translations PAGES=a_zh.md",
        "a_zh.md: its blocks of code are not those of a.md, in that order; have as many, "
        "then: make translations PAGES=a_zh.md",
    ]
    page.write_text(renewed(TRANSLATION, ORIGINAL), encoding="utf-8")
    assert outdated(page, original) == []


def test_a_translation_with_fewer_blocks_is_refused() -> None:
    with pytest.raises(ValueError, match="it has 1 blocks of code, and its original 3"):
        renewed("<!-- the digest 0 -->\n\n```\n```\n", ORIGINAL)
