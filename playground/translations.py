"""
Translated pages: the original of each, and whether the original has changed since the translation.

    make translations                               which translations are older than their originals
    make translations PAGES=docs/zh/tutorial.md     this one was brought up to date: write the original's blocks of
                                                    code and the digest of its text into it

The first line of a translation has the digest of the text that it translates. Blocks of code are not part of the text:
they are the same in both pages, and compared as they are.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
_DIGITS = 16
_DIGEST = re.compile(r"(?<=the digest )[0-9a-f]+")


def translations(top: Path = TOP) -> dict[Path, Path]:
    """Every translated page and its original."""
    found = {page: top / "docs" / page.name for page in sorted((top / "docs" / "zh").glob("*.md"))}
    return {top / "README_zh.md": top / "README.md", **found}


def outdated(translation: Path, original: Path) -> list[str]:
    """The problems of a translated page, and their cure; empty if it is up to date."""
    page, text = (path.read_text(encoding="utf-8") for path in (translation, original))
    names = [str(path.relative_to(TOP)) if path.is_relative_to(TOP) else path.name for path in (translation, original)]
    renew = f"then: make translations PAGES={names[0]}"
    wrong = []
    carried = _DIGEST.search(page.partition("\n")[0])
    if carried is None or carried[0] != digest(text):
        wrong.append(
            f"{names[0]}: the text of {names[1]} has changed since this translation "
            f"(git log -p {names[1]}); translate what changed, {renew}"
        )
    if blocks(page) != blocks(text):
        wrong.append(
            f"{names[0]}: its blocks of code are not those of {names[1]}, in that order; have as many, {renew}"
        )
    return wrong


def renewed(page: str, original: str) -> str:
    """The translation with the original's blocks of code and digest. Raises `ValueError` where it has fewer or more."""
    code, wanted = blocks(page), blocks(original)
    if len(code) != len(wanted):
        raise ValueError(f"it has {len(code)} blocks of code, and its original {len(wanted)}")
    rest = iter(wanted)
    text = "".join(next(rest) if is_code else part for is_code, part in _parts(page))
    first, _, body = text.partition("\n")
    return f"{_DIGEST.sub(digest(original), first)}\n{body}"


def digest(page: str) -> str:
    """The digest of a page's text, without its blocks of code."""
    text = "".join("\n" if is_code else part for is_code, part in _parts(page))
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def blocks(page: str) -> list[str]:
    """The code blocks of a page: fenced blocks, and paragraphs that are indented by four columns."""
    return [part for is_code, part in _parts(page) if is_code]


def _parts(page: str) -> Iterator[tuple[bool, str]]:
    """The parts of a page: text, and each code block with its fences."""
    for number, lines in groupby(_numbered(page), key=lambda each: each[0]):
        yield number > 0, "".join(line for _, line in lines)


def _numbered(page: str) -> Iterator[tuple[int, str]]:
    """Each line, and the number of the block of code that it is in; 0 for text."""
    number, fenced, before, code = 0, False, "", False
    for line in page.splitlines(keepends=True):
        fence = line.lstrip().startswith("```")
        indented = line.startswith("    ") and (code or not before.strip())
        number += (fence and not fenced) or (not fence and not fenced and indented and not code)
        is_code = fence or fenced or indented
        yield (number if is_code else 0), line
        fenced ^= fence
        before, code = line, is_code and not fence


def main(arguments: Sequence[str] | None = None) -> int:
    """Renew the named pages, or list those that are older than their originals. Returns the exit status."""
    given = [Path(name).resolve() for name in (sys.argv[1:] if arguments is None else arguments)]
    pages = translations()
    for page in given:
        original = pages[page].read_text(encoding="utf-8")
        page.write_text(renewed(page.read_text(encoding="utf-8"), original), encoding="utf-8")
    wrong = [line for page, original in pages.items() for line in outdated(page, original)]
    print("\n".join(wrong) or "Every translation has the text of its original.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
