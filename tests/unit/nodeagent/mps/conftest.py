"""A machine with one GPU, simulated modes, and a real process that simulates the MPS daemon."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from nodeagent.files import write_atomically
from nodeagent.gpus.library import Card, LibraryBroken
from nodeagent.mps.daemon import session, start_time
from nodeagent.mps.exchange import GpuReport, MpsPaths, wanted_to_text
from nodeagent.mps.lifecycle import RestartPace
from nodeagent.mps.supervisor import Supervisor
from playground.programs import mps_control
from playground.waiting import wait_for
from tests.unit.nodeagent.builders import card

UUID = "GPU-0"


@dataclass
class Cards:
    """The driver, as far as the supervisor uses it."""

    card: Card = field(default_factory=lambda: card(0, capability="8.6", processes=()))
    mode: bool = False
    refusal: str = ""
    broken: bool = False
    driver: str = "580.95.05"

    def driver_version(self) -> str:
        return self.driver

    def cuda_version(self) -> str:
        return "13.0"

    def gpus(self) -> tuple[Card, ...]:
        if self.broken:
            raise LibraryBroken("the driver failed")
        return (self.card,)

    def exclusive(self, uuid: str) -> bool | None:
        return self.mode

    def set_exclusive(self, uuid: str, exclusive: bool) -> str:
        if not self.refusal:
            self.mode = exclusive
        return self.refusal


class Node:
    """A folder for MPS, and its supervisors, one after another. `now` is their clock."""

    def __init__(self, root: Path) -> None:
        self.root, self.places, self.cards, self.now = root, MpsPaths(root), Cards(), 0.0
        self.program = root / "nvidia-cuda-mps-control"
        source = Path(mps_control.__file__).read_text()
        self.program.write_text(f"#!{sys.executable} -IS\n{source}")
        self.program.chmod(0o755)
        self.seen: set[int] = set()
        self.wants(UUID)
        self.restart()

    def restart(self) -> None:
        """A new supervisor without any memory."""
        self.supervisor = Supervisor(
            self.cards,
            self.root,
            command=(str(self.program),),
            timeout=20.0,
            pace=RestartPace(patience=30.0),
            clock=lambda: self.now,
            wall=lambda: 1000.0 + self.now,
        )

    def wants(self, *uuids: str) -> None:
        write_atomically(self.places.wanted, wanted_to_text(uuids))

    def scripted(self, **state: Any) -> None:
        """What the daemon does from now on."""
        (self.places.of(UUID) / "pipe").mkdir(parents=True, exist_ok=True)
        write_atomically(self.places.of(UUID) / "pipe" / "fake.json", json.dumps(state))

    def pid(self) -> int:
        """The process id in the daemon's file."""
        return int((self.places.of(UUID) / "daemon").read_text().split()[0])

    def look(self) -> GpuReport:
        found = self.supervisor.step().gpus[UUID]
        self.seen.add(self.supervisor._gpu(UUID).daemon.pid())
        return found

    def until(self, holds: Callable[[GpuReport], bool]) -> GpuReport:
        """Look until it holds. The supervisor's clock does not move meanwhile."""
        found: list[GpuReport] = []

        def held() -> bool:
            found[:] = [self.look()]
            return holds(found[0])

        wait_for(held, lambda: f"{found[0]}", every=0.01)
        return found[0]

    def serves(self) -> GpuReport:
        return self.until(lambda report: report.serving)

    def close(self) -> None:
        for pid in (pid for leader in self.seen - {0} for pid in session(leader)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def await_end(pid: int) -> None:
    """Wait until a process has ended."""
    wait_for(lambda: not start_time(pid), f"process {pid} goes on", every=0.01)


def computing(cards: Cards, *pids: int) -> None:
    """These processes compute on the card."""
    cards.card = replace(cards.card, processes=tuple((pid, 1) for pid in pids))


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    made.close()
