"""Pages that guide readers through the playground, typed from top to bottom: each command prints what the page says."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.acceptance.reader import Reader, follow
from tests.cluster.system.test_playground_command import playground

pytestmark = [pytest.mark.system, pytest.mark.kubectl, pytest.mark.long]
FOLLOWED = ("tutorial.md", "fire-drill.md")


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    if shutil.which("kubectl") is None:
        pytest.skip("needs kubectl 1.30 or newer on PATH")
    with playground(tmp_path / "run", tmp_path / "said"):
        yield Reader(tmp_path)


@pytest.mark.timeout(600)
def test_the_tutorial_prints_what_its_page_says(reader: Reader) -> None:
    follow(reader, FOLLOWED[0])


@pytest.mark.timeout(600)
def test_the_fire_drill_prints_what_its_page_says(reader: Reader) -> None:
    """`test_playground_command.py` breaks and repairs one part in less time."""
    follow(reader, FOLLOWED[1])
