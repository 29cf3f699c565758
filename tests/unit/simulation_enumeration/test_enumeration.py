"""The reference runs do every kind of write, and the points find planted defects."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[3]


def ran(*arguments: str) -> tuple[int, str]:
    """Runs in its own process, because the simulation loads our packages differently."""
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=TOP,
        env={**os.environ, "PYTHONPATH": str(TOP)},
        capture_output=True,
        text=True,
        timeout=110,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.long
def test_the_reference_runs_do_every_kind_of_write_and_violate_nothing() -> None:
    code, said = ran("tests.simulation", "--enumerate", "--learn", "--jobs", "1")
    assert code == 0, said


@pytest.mark.long
@pytest.mark.parametrize(
    "defect",
    ["a new leader does not list pods again", "a new leader does not fence what the leader before has sent"],
)
def test_a_planted_defect_is_found(defect: str) -> None:
    code, said = ran("tests.simulation.enumeration.planted", defect, "--jobs", "1")
    assert code == 0, said
    assert "no card is booked twice" in said


@pytest.mark.long
def test_without_a_defect_the_same_points_violate_nothing() -> None:
    code, said = ran("tests.simulation.enumeration.planted", "none", "--jobs", "1")
    assert code == 1, said


def test_a_forked_point_is_the_run_that_it_is_from_its_beginning() -> None:
    code, said = ran("tests.simulation.enumeration.planted", "none", "--jobs", "1", "--twice")
    assert code == 0, said
