"""
`python -m nodeagent mps` as its container runs it, with the real NVML bindings and a library that simulates a card.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nodeagent.files import write_atomically
from nodeagent.mps.daemon import session, start_time
from nodeagent.mps.exchange import MpsPaths, Report, report_from_text, wanted_to_text
from playground.programs import mps_control
from playground.waiting import wait_for
from tests.unit.nodeagent.mps.conftest import await_end

ROOT = Path(__file__).parents[4]
UUID = "GPU-aaaa"
CARD = f"driver 590.44\ncuda 13010\ngpu {UUID} NVIDIA A10\nmemory 0 24146608128 0 0\ncapability 0 8 6\n"


class Running:
    """The program, its folder, and what it reports."""

    def __init__(self, library: Path, root: Path, *, wanted: bool = True) -> None:
        self.places = MpsPaths(root)
        source = Path(mps_control.__file__).read_text()
        program = root / "control"
        program.write_text(f"#!{sys.executable} -IS\n{source}")
        program.chmod(0o755)
        (root / "script").write_text(CARD)
        if wanted:
            write_atomically(self.places.wanted, wanted_to_text([UUID]))
        flags = [f"--root={root}", f"--program={program}", f"--nvml-library={library}", "--interval=50ms"]
        plain = {key: value for key, value in os.environ.items() if not key.startswith("GPUFRACTION_")}
        self.environment = {**plain, "PYTHONPATH": str(ROOT), "FAKE_NVML_SCRIPT": str(root / "script")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "nodeagent", "mps", *flags, "--timeout=20s"],
            env=self.environment,
            stderr=subprocess.DEVNULL,
        )

    def report(self) -> Report:
        return report_from_text(self.places.report.read_text(), now=time.time(), patience=1e9) or Report()

    def until(self, holds: Callable[[], bool]) -> None:
        def held() -> bool:
            assert self.process.poll() is None
            return holds()

        wait_for(held, f"{holds} does not hold")

    def serves(self) -> bool:
        return self.places.report.exists() and any(gpu.serving for gpu in self.report().gpus.values())

    def daemon(self) -> int:
        return int((self.places.of(UUID) / "daemon").read_text().split()[0])

    def supervisor(self) -> int:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return next(int(pid) for pid in children if b"mps-supervisor" in Path(f"/proc/{pid}/cmdline").read_bytes())

    def close(self) -> None:
        leaders = [self.daemon()] if (self.places.of(UUID) / "daemon").exists() else []
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(timeout=60)
        for pid in (pid for leader in leaders for pid in session(leader)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def running(library: Path, tmp_path: Path) -> Iterator[Running]:
    made = Running(library, tmp_path)
    yield made
    made.close()


def test_the_daemon_outlives_its_supervisor_and_ends_with_the_container(running: Running) -> None:
    running.until(running.serves)
    assert running.report().gpus[UUID].most_clients == 60
    first, daemon = running.supervisor(), running.daemon()
    at = running.report().at
    os.kill(first, signal.SIGKILL)
    await_end(first)
    running.until(lambda: running.report().at > at and running.serves() and running.report().gpus[UUID].starts == 0)
    assert (running.daemon(), bool(start_time(daemon))) == (daemon, True), "adopted, not started anew"
    os.kill(daemon, signal.SIGKILL)
    # The process that started it has ended, so only the keeper can reap it.
    running.until(lambda: not Path(f"/proc/{daemon}").exists())
    running.until(lambda: not running.serves())
    assert json.loads(running.places.report.read_text())["gpus"][UUID]["why"] == "the MPS daemon ended"
    running.until(running.serves)
    second = running.daemon()
    running.process.terminate()
    assert running.process.wait(timeout=60) == 0
    assert (start_time(second), running.places.report.exists(), second != daemon) == ("", False, True)
