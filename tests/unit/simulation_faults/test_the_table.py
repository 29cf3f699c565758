"""Each fault says what holds, and has a scene that shows what it does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.simulation_faults.conftest import Played

TOP = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def rows() -> list[list[str]]:
    """The cells of `python -m tests.simulation --table`, without its header."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation", "--table"], cwd=TOP, capture_output=True, text=True, check=True
    )
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in done.stdout.splitlines()[2:]]


ENUMERATED = frozenset({"crash-at", "hide-at", "pod.stored-late"})
"""Faults that strike a chosen write; `tests/unit/simulation_enumeration` shows what they do."""


def test_no_cell_of_the_table_of_faults_is_empty(rows: list[list[str]]) -> None:
    assert rows
    assert all(len(row) == 4 and all(row) for row in rows)


def test_each_fault_is_there_once(rows: list[list[str]]) -> None:
    names = [row[0] for row in rows]
    assert len(names) == len(set(names))


def test_each_fault_has_a_scene(rows: list[list[str]], played: Played) -> None:
    known = {scene.partition(" ")[0] for scene in played.names}
    assert {row[0].strip("`") for row in rows} - ENUMERATED <= known
