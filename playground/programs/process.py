"""
Runs the three programs as child processes, as a cluster would: each has its own process, account and log.

The playground never imports a program, so it shows the behaviour of the command lines. It ends a program by its process
id, first with SIGTERM.
"""

from __future__ import annotations

import ctypes
import functools
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_PATIENCE = 10.0
_TOP = Path(__file__).resolve().parents[2]


class ProgramFailed(Exception):
    """A program ended by itself; the message has the end of its log."""


PYTHON_MODULE = (sys.executable, "-m")


class Program:
    """One child process. `log` gets all of its output. `command` is the command to which the arguments are appended."""

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        *,
        log: Path,
        environment: Mapping[str, str],
        command: Sequence[str] = PYTHON_MODULE,
    ) -> None:
        self.name = name
        self.log = log
        self.arguments = tuple(arguments)
        self.environment = dict(environment)
        self._arguments = [*command, *arguments]
        self._environment = {**_inherited(), **environment, "PYTHONUNBUFFERED": "1"}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; at most one process runs at a time."""
        if self.alive():
            raise RuntimeError(f"{self.name} is running")
        self._process = _spawner().submit(self._spawn).result()

    def _spawn(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen(
                self._arguments,
                cwd=_TOP,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_parent if sys.platform == "linux" else None,
            )

    @property
    def pid(self) -> int:
        """Its process id; 0 before it was started."""
        return self._process.pid if self._process is not None else 0

    def alive(self) -> bool:
        """Whether its process runs."""
        return self._process is not None and self._process.poll() is None

    def check(self) -> None:
        """Raise `ProgramFailed` if it was started and has ended."""
        if self._process is not None and self._process.poll() is not None:
            raise ProgramFailed(f"{self.name} ended with status {self._process.returncode}:\n{self.tail()}")

    def run(self, timeout: float = 60.0) -> None:
        """Run it until it ends. Raises `ProgramFailed` unless it succeeds in time."""
        self.start()
        assert self._process is not None
        try:
            status = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ProgramFailed(f"{self.name} took longer than {timeout:.0f} s:\n{self.tail()}") from None
        if status:
            raise ProgramFailed(f"{self.name} ended with status {status}:\n{self.tail()}")

    def terminate(self) -> None:
        """Ask it to end (SIGTERM); `wait` waits for it."""
        if self.alive() and self._process is not None:
            self._process.terminate()

    def wait(self) -> None:
        """Wait until it ends, and kill it if it takes too long."""
        if self._process is None:
            return
        try:
            self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """Kill it and its children at once (SIGKILL), as a node's crash would."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def tail(self, lines: int = 20) -> str:
        """The end of its log."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])


@functools.cache
def _spawner() -> ThreadPoolExecutor:
    """
    The one thread that starts programs, living as long as this process.

    Linux signals a child when the thread that started it ends, not when the process ends (prctl(2), PR_SET_PDEATHSIG).
    """
    return ThreadPoolExecutor(1, thread_name_prefix="spawner")


_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Runs in the child: SIGTERM when its parent ends, so that a killed playground leaves nothing behind."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _inherited() -> dict[str, str]:
    """The environment that a process needs to run. The caller's own settings must not reach the programs."""
    kept = ("PATH", "HOME", "LANG", "TMPDIR", "VIRTUAL_ENV", "LD_LIBRARY_PATH")
    return {name: os.environ[name] for name in kept if name in os.environ}
