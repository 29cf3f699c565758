"""
Writes docs/settings.md: what each program prints of its settings with `--help`, on one page.

The programs are asked as a user would ask them, since the playground imports none of them.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

_TOP = Path(__file__).resolve().parent.parent
PAGE = _TOP / "docs" / "settings.md"
_INTRO = """# Settings

<!-- Made by `python -m playground.settingspage`; change the code, not this page. -->

Each is a flag (`placement.pin` is `--placement-pin`), a variable, and a key of the YAML file that `--settings` names
(`placement: {pin: affinity}`). A flag counts before a variable, a variable before the file. Durations are written
`500ms`, `30s` or `1m30s`, amounts of memory `256Mi`. What is unknown or wrong stops the program at its start, with one
line for each mistake. In a cluster you give variables, in the ConfigMap of the program ([configuring](configuring.md)).
How GPUs are shared is not here but in the ConfigMap `gpufraction-options`
([operations](operations.md#options-and-node-pools)).
"""
_ASKED = {
    "Webhook": ("webhook", "serve", "the webhook, and the keeper of its certificate (`certs`)"),
    "Allocator": ("allocator", "run", "the allocator"),
    "Node agent": ("nodeagent", "run", "the node agent"),
    "Holders": ("nodeagent", "hold", "the pods that hold GPUs against a device plugin"),
    "MPS supervisor": ("nodeagent", "mps", "the supervisor of the MPS daemons"),
}


def page() -> str:
    """The page as it should be."""
    parts = [_INTRO]
    for title, (program, command, what) in _ASKED.items():
        parts.append(f"\n## {title}\n\n`python -m {program} {command}`: {what}.\n")
        parts += (f"\n{heading}{table}" for heading, table in _tables(_help(program, command)))
    return "".join(parts)


def _help(program: str, command: str) -> list[str]:
    asked = [sys.executable, "-m", program, command, "--help"]
    done = subprocess.run(asked, cwd=_TOP, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout.splitlines()


def _tables(lines: list[str]) -> Iterator[tuple[str, str]]:
    """Each table, and the heading that stands right before it where there are several."""
    rows: list[str] = []
    heading = ""
    for before, line in zip(["", *lines], [*lines, ""], strict=True):
        if line.startswith("|"):
            if not rows and before.endswith(":"):
                heading = f"### {before.removesuffix(':')}\n\n"
            rows.append(line)
        elif rows:
            yield heading, "\n".join(rows) + "\n"
            rows = []


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
