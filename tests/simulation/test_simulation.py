"""
A minute of simulation for every change: the plans that once failed, some drawn ones, and some of the points of writes.
With the marker `long`, more of both.

Each is a process of its own, since the programs are loaded with simulated modules there. `make simulate`,
`make simulate-points` and `make simulate-mutants` do all of it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(600)
TOP = Path(__file__).resolve().parents[2]
KEPT = sorted((Path(__file__).parent / "kept").glob("*.json"))


def simulate(*arguments: str) -> str:
    """What it prints; the test fails with that where something is violated."""
    command = [sys.executable, "-m", "tests.simulation", "--jobs", "1", *arguments]
    done = subprocess.run(command, cwd=TOP, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout[-8000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def test_plans_that_once_failed_violate_nothing() -> None:
    assert KEPT
    printed = simulate(*(argument for path in KEPT for argument in ("--plan", str(path))))
    assert printed.startswith(f"{len(KEPT)} plans, ")


def test_drawn_plans_violate_nothing() -> None:
    assert simulate("--plans", "3", "--anew").startswith("3 plans, ")


@pytest.mark.long
def test_more_drawn_plans_violate_nothing() -> None:
    assert simulate("--plans", "24", "--anew").startswith("24 plans, ")


@pytest.mark.parametrize("every", [pytest.param(384, id="few"), pytest.param(24, marks=pytest.mark.long, id="many")])
def test_writes_that_are_struck_violate_nothing(every: int) -> None:
    """One in so many of all points, in each of the reference runs."""
    printed = simulate("--enumerate", "--every", str(every))
    assert " points, 0 violations" in printed
