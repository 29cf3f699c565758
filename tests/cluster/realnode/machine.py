"""
The machine that a node runs on: its files, devices, control groups and programs.

`NamespaceMachine` is a part of this machine, separated by namespaces: it has its own files, devices and control groups,
but no separate network. `machine.sh` creates it. Its file system is this machine's with a layer above, so a kubelet and
a container runtime write to /etc, /run and /var as on a real node, and nothing of it stays. At the end only the
processes that are left in its control groups are killed. `tests.cluster.realnode.virtual` has the other kind.

Must not: know about Kubernetes.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from playground.programs.process import Program
from playground.waiting import wait_for

_HERE = Path(__file__).resolve().parent
_TOP = _HERE.parents[2]
_GROUPS = Path("/sys/fs/cgroup")
_READY_SECONDS = 30.0
_PAUSE = 0.05


class NoMachine(Exception):
    """The machine did not start, or did not end; the message has the end of its log."""


class Machine(Protocol):
    """
    What a node needs from its machine. `folder`: for its files and logs, the same folder on both sides. `environment`:
    for every program that runs there. `cgroup_driver`: what creates the control groups of pods, as kubelet names it.
    `python`: an interpreter there that has the agent's packages. `selinux`: whether containers are labelled.
    """

    folder: Path
    environment: dict[str, str]
    cgroup_driver: str
    python: str
    selinux: bool

    def start(self) -> None:
        """Create it. Raises `NoMachine`."""
        ...

    def stop(self) -> None:
        """End everything that runs on it, and remove what the node wrote."""
        ...

    def path(self, path: str) -> Path:
        """A file of the machine, as seen from here. Every machine shows at least the logs of pods."""
        ...

    def read(self, path: str) -> str:
        """The text of a file there. Raises `FileNotFoundError`."""
        ...

    def write(self, path: str, text: str | bytes, *, mode: int = 0o644) -> None:
        """Write a file there, and create its folders."""
        ...

    def program(self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> Program:
        """A program to run there. It is ended with the machine."""
        ...

    def run(self, command: Sequence[str], *, seconds: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Run a program there to its end. Returns what it prints."""
        ...

    def reach(self, port: int) -> None:
        """Let the machine reach this port of the loopback interface here."""
        ...

    def expose(self, port: int) -> None:
        """Make this port of the machine's loopback interface reachable at the loopback interface here."""
        ...


class NamespaceMachine:
    """
    `folder`: for its files and logs. `gpus`: how many cards are in its /dev. `keep`: folders that are not layered.
    """

    cgroup_driver = "cgroupfs"
    python = sys.executable
    selinux = False

    def __init__(self, folder: Path, *, gpus: int, keep: Sequence[Path]) -> None:
        self.folder = folder
        self.environment: dict[str, str] = {}
        """For every program that runs there."""
        self.name = f"realnode-{os.getpid()}-{id(self):x}"
        kept = [str(path.resolve()) for path in (_TOP, Path(sys.prefix), *keep)]
        self._init = Program(
            "machine",
            [str(_HERE / "machine.sh"), str(folder), self.name, str(gpus), *kept],
            log=folder / "machine.log",
            environment={},
            command=("unshare", "--mount", "sh"),
        )
        self._programs: list[Program] = []

    def start(self) -> None:
        """Create it. Raises `NoMachine`."""
        self._init.start()
        ready = self.folder / "ready"
        wait_for(
            lambda: ready.exists() or not self._init.alive(),
            lambda: f"no machine: {self._init.tail()}",
            _READY_SECONDS,
        )
        if not self._init.alive():
            raise NoMachine(f"no machine: {self._init.tail()}")

    def stop(self) -> None:
        """End everything that runs on it, and remove its control groups and files."""
        for program in reversed(self._programs):
            program.terminate()
        for program in reversed(self._programs):
            program.wait()
        groups = list(self._groups())
        wait_for(lambda: not self._kill(groups), lambda: f"processes in {groups}", _READY_SECONDS)
        self._init.wait()
        for top in groups:
            for group in sorted((path for path in top.rglob("*") if path.is_dir()), reverse=True):
                group.rmdir()
            top.rmdir()
        shutil.rmtree(self.folder / "var", ignore_errors=True)

    def path(self, path: str) -> Path:
        """
        A file of the machine, as seen from here. A symbolic link would lead out of it, hence `/run` for `/var/run`.
        """
        if path.startswith("/var/run/"):
            path = path.removeprefix("/var")
        return Path(f"/proc/{self._init.pid}/root", path.lstrip("/"))

    def read(self, path: str) -> str:
        """The text of a file there. Raises `FileNotFoundError`."""
        return self.path(path).read_text(encoding="utf-8")

    def write(self, path: str, text: str | bytes, *, mode: int = 0o644) -> None:
        """Write a file there, and create its folders."""
        there = self.path(path)
        there.parent.mkdir(parents=True, exist_ok=True)
        there.write_bytes(text.encode() if isinstance(text, str) else text)
        there.chmod(mode)

    def program(self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> Program:
        """A program to run there. It is ended with the machine."""
        made = Program(
            name,
            [str(self._init.pid), *command],
            log=self.folder / f"{name}.log",
            environment={**self.environment, **(environment or {})},
            command=("sh", str(_HERE / "enter.sh")),
        )
        self._programs.append(made)
        return made

    def run(self, command: Sequence[str], *, seconds: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Run a program there to its end. Returns what it prints."""
        return subprocess.run(
            ["sh", str(_HERE / "enter.sh"), str(self._init.pid), *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds,
            env={**os.environ, **self.environment},
        )

    def reach(self, port: int) -> None:
        """Does nothing: it has the network of this machine."""

    def expose(self, port: int) -> None:
        """Does nothing: it has the network of this machine."""

    def _groups(self) -> Iterator[Path]:
        for hierarchy in (_GROUPS, *(path for path in _GROUPS.iterdir() if path.is_dir() and not path.is_symlink())):
            if (hierarchy / self.name).is_dir():
                yield hierarchy / self.name

    @staticmethod
    def _kill(groups: Sequence[Path]) -> set[int]:
        """Kill the processes that are left."""
        found: set[int] = set()
        for top in groups:
            for group in (top, *(path for path in top.rglob("*") if path.is_dir())):
                with contextlib.suppress(OSError):
                    found.update(map(int, (group / "cgroup.procs").read_text().split()))
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return found
