"""What all scenes have seen, played once, in a process whose modules are those of the simulation."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

JSON = dict[str, Any]
TOP = Path(__file__).resolve().parents[3]
LONGEST = 900.0
"""Seconds for all scenes, on a machine that is busy."""


@pytest.fixture(scope="session")
def played() -> JSON:
    """By scene, what was seen and what the run violated."""
    command = [sys.executable, "-m", "tests.unit.simulation_faults.staging"]
    done = subprocess.run(command, cwd=TOP, capture_output=True, text=True, timeout=LONGEST, check=False)
    assert done.returncode == 0, done.stderr
    found: JSON = json.loads(done.stdout)
    return found


@pytest.fixture(scope="session")
def seen(played: JSON) -> Callable[[str], JSON]:
    """What a scene has seen. The test fails where its run violated an invariant, or did not come to rest."""

    def of(scene: str) -> JSON:
        assert not played[scene]["violation"]
        found: JSON = played[scene]["seen"]
        return found

    return of
