"""
Writes the reference of docs/settings.md: the settings that each program prints with `--help`.

It runs the programs as a user does, because the playground imports none of them. The text above the mark is written
by hand.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

_TOP = Path(__file__).resolve().parent.parent
PAGE = _TOP / "docs" / "settings.md"
MADE = "<!-- The rest is made by `python -m playground.settingspage`; change the code, not this part. -->\n"
_ASKED = {
    "Webhook": ("webhook", "serve", "the webhook, and the keeper of its certificate (`certs`)"),
    "Allocator": ("allocator", "run", "the allocator"),
    "Node agent": ("nodeagent", "run", "the node agent"),
    "Holders": ("nodeagent", "hold", "the pods that hold GPUs against a device plugin"),
    "MPS supervisor": ("nodeagent", "mps", "the supervisor of the MPS daemons"),
}


def page(written: str) -> str:
    """The page with its current reference. `written`: the existing page, whose text above the mark stays."""
    above, mark, _ = written.partition(MADE)
    if not mark:
        raise ValueError(f"the page must have the line {MADE!r}")
    parts = [above, mark]
    for title, (program, command, what) in _ASKED.items():
        parts.append(f"\n### {title}\n\n`python -m {program} {command}`: {what}.\n")
        parts += (f"\n{heading}{table}" for heading, table in _tables(_help(program, command)))
    return "".join(parts)


def _help(program: str, command: str) -> list[str]:
    asked = [sys.executable, "-m", program, command, "--help"]
    done = subprocess.run(asked, cwd=_TOP, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout.splitlines()


def _tables(lines: list[str]) -> Iterator[tuple[str, str]]:
    """Each table, with the heading before it if there are several."""
    rows: list[str] = []
    heading = ""
    for before, line in zip(["", *lines], [*lines, ""], strict=True):
        if line.startswith("|"):
            if not rows and before.endswith(":"):
                heading = f"#### {before.removesuffix(':')}\n\n"
            rows.append(line)
        elif rows:
            yield heading, "\n".join(rows) + "\n"
            rows = []


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
