"""
A version's part of `CHANGELOG.md`, as the text of its release.

    python -m release.notes     # of the version in pyproject.toml; fails where it has none

Must not: need anything beyond the standard library.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from release.version import PROJECT, version

CHANGELOG = "CHANGELOG.md"
UNRELEASED = "Unreleased"
_HEADING = re.compile(r"(?m)^## (?P<name>\S+).*$")


def sections(text: str) -> dict[str, str]:
    """The text below each heading of a version, in the file's order."""
    found = list(_HEADING.finditer(text))
    ends = [match.start() for match in found[1:]] + [len(text)]
    return {match["name"]: text[match.end() : end].strip() for match, end in zip(found, ends, strict=True)}


def notes(project: Path) -> str | None:
    """The changelog's text about the current version; None if it has none."""
    return sections((project / CHANGELOG).read_text(encoding="utf-8")).get(version(project)) or None


def main(project: Path = PROJECT) -> int:
    """Print them; the exit status."""
    found = notes(project)
    if found is None:
        print(f"{CHANGELOG} has no section `## {version(project)}`; write there what users notice", file=sys.stderr)
        return 1
    print(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
