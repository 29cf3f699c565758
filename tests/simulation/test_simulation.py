"""
A minute of simulation for every change: the plans that once failed, some drawn plans, and some of the points of writes.
With the marker `long`, more of the last two.

Each test runs in its own process, because the programs are loaded with simulated modules there. `make simulate`, `make
simulate-points` and `make simulate-mutants` do all of it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(600)
TOP = Path(__file__).resolve().parents[2]
FEW_RUNS = (
    "placed-at-admission",
    "claims",
    "objects-deleted",
    "programs-rolled",
    "shares-by-claims",
    "nodes-asked-for",
)
KEPT = sorted((Path(__file__).parent / "kept").glob("*.json"))


def simulate(*arguments: str) -> str:
    """What it prints. The test fails with that output if something is violated."""
    command = [sys.executable, "-m", "tests.simulation", "--jobs", "1", *arguments]
    done = subprocess.run(command, cwd=TOP, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout[-8000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def test_plans_that_once_failed_violate_nothing() -> None:
    assert KEPT
    printed = simulate(*(argument for path in KEPT for argument in ("--plan", str(path))))
    assert printed.startswith(f"{len(KEPT)} plans, ")


def test_drawn_plans_violate_nothing() -> None:
    assert simulate("--plans", "2", "--anew").startswith("2 plans, ")


@pytest.mark.long
def test_more_drawn_plans_violate_nothing() -> None:
    assert simulate("--plans", "24", "--anew").startswith("24 plans, ")


def test_writes_that_are_struck_violate_nothing() -> None:
    """Strikes some points of the reference runs that have the most kinds of writes, and of the shortest one."""
    named = (argument for name in FEW_RUNS for argument in ("--reference", name))
    printed = simulate("--enumerate", "--every", "192", *named)
    assert printed.count(" points, 0 violations") == len(FEW_RUNS)


@pytest.mark.long
def test_writes_that_are_struck_in_every_reference_run_violate_nothing() -> None:
    """Strikes more points, and checks that every kind of write is done."""
    assert " points, 0 violations" in simulate("--enumerate", "--every", "24")
