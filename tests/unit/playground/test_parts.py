"""The table of parts in the playground's README names every package, and the users of a part that it names exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
ROWS = re.findall(
    r"^\| `(playground[\w.]*)` \| [^|]+ \| ([^|]+) \|$", (ROOT / "playground" / "README.md").read_text(), re.MULTILINE
)


def test_every_package_has_a_row() -> None:
    packages = {file.parent.relative_to(ROOT) for file in (ROOT / "playground").rglob("__init__.py")}
    assert sorted(name for name, _ in ROWS) == sorted(".".join(package.parts) for package in packages)


def test_what_needs_a_part_is_there() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for name, needed_by in ROWS:
        commands = re.findall(r"`make ([\w-]+)`", needed_by)
        files = re.findall(r"`((?:tests|samples|benchmarks)/[^`]+)`", needed_by)
        assert set(commands) <= targets, name
        assert [file for file in files if not (ROOT / file).is_file()] == [], name


def test_every_part_is_needed_by_something() -> None:
    assert [name for name, needed_by in ROWS if not re.search(r"`(make|tests|samples|benchmarks)[ /]", needed_by)] == [
        "playground.machinery.client"  # used by every other part of the machinery
    ]
