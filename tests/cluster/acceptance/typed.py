"""
Pages whose commands readers type: the commands, the output below each of them, and the page with new output.

A block begins with ```` ```console ````. A line that begins with `$ ` is a command; it prints the lines up to the next
one. Ages, addresses, generated names and the width of columns are not compared. kubectl's warnings are left out,
because the warning at the creation of a waiting pod depends on which replica the API server asked.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_BLOCK = re.compile(r"(?<=^```console\n)(.*?)(?=^```$)", re.MULTILINE | re.DOTALL)
_WARNING = "Warning: "
_CHANCE = (
    (re.compile(rf"^{_WARNING}.*\n", re.MULTILINE), ""),
    (re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"), "TIME"),
    (re.compile(r"(?: \(x\d+ over [\dhms]+\))"), ""),
    (re.compile(r"(?<![\w.=-])(?:\d+d)?(?:\d+h)?(?:\d+m)?\d+[smhd](?![\w-])"), "AGE"),
    (re.compile(r"\b\d+ (?:s|min|h|d) ago\b"), "AGE ago"),
    (re.compile(r"http://127\.0\.0\.1:\d+/[\w-]+/"), "URL"),
    (re.compile(r"\b10\.\d+\.\d+\.\d+\b"), "ADDRESS"),
    (re.compile(r"\breplica-\d\b"), "REPLICA"),
    (re.compile(r"egpu-[0-9a-f-]{36}"), "egpu-UID"),
    (re.compile(r" +$", re.MULTILINE), ""),
    (re.compile(r" {2,}"), "  "),
)


@dataclass(frozen=True, slots=True)
class Typed:
    """One command of a page, and the output that the page shows for it."""

    command: str
    prints: str


def commands(page: str) -> list[Typed]:
    """The commands that a page tells readers to type, in order."""
    found: list[Typed] = []
    for block in _BLOCK.findall(page):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, prints = part.partition("\n")
            found.append(Typed(command, prints))
    return found


def compared(printed: str) -> str:
    """The output without the parts that vary at random."""
    for pattern, instead in _CHANCE:
        printed = pattern.sub(instead, printed)
    return printed.strip()


def renewed(page: str, printed: Sequence[str]) -> str:
    """The page with what its commands printed, in order."""
    rest = iter(printed)

    def block(match: re.Match[str]) -> str:
        lines = [line for line in match[1].splitlines() if line.startswith("$ ")]
        return "".join(f"{line}\n{_shown(next(rest))}" for line in lines)

    return _BLOCK.sub(block, page)


def _shown(printed: str) -> str:
    lines = [line.rstrip() for line in printed.strip().splitlines() if not line.startswith(_WARNING)]
    return "".join(f"{line}\n" for line in lines)
