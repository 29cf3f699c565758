"""What scenes observe, run in a process whose modules are those of the simulation."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest

JSON = dict[str, Any]
TOP = Path(__file__).resolve().parents[3]


class Played:
    """Scenes as the process delivers them. A test waits only for its own scene."""

    def __init__(self, lines: IO[str]) -> None:
        self._lines = lines
        self.names: list[str] = json.loads(lines.readline())
        self._seen: dict[str, JSON] = {}

    def of(self, scene: str) -> JSON:
        """What a scene has observed. The test fails if its run violated an invariant, or did not come to rest."""
        while scene not in self._seen:
            self._seen.update(json.loads(self._lines.readline()))
        assert not self._seen[scene]["violation"]
        found: JSON = self._seen[scene]["seen"]
        return found


@pytest.fixture(scope="session")
def played() -> Iterator[Played]:
    """The process that runs all scenes, one after another."""
    command = [sys.executable, "-m", "tests.unit.simulation_faults.staging"]
    with subprocess.Popen(command, cwd=TOP, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield Played(process.stdout)
        process.terminate()


@pytest.fixture(scope="session")
def seen(played: Played) -> Callable[[str], JSON]:
    """What a scene has observed."""
    return played.of
