"""
The memory that the programs of a cluster use, held to the limits of the shipped manifests as a node's kernel would.

A container's limit counts all its processes, and pages that they share once: so what is added up is the proportional
set size of a program and of everything that it started (proc(5), `Pss`). The kernel counts that page by page, which
takes 2 ms for a process. The resident set size, which counts shared pages in full and so is never less, costs next to
nothing: it is read at every look, and says when the other has to be.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from contract.encoding import quantity
from playground.programs import installing
from playground.programs.process import Program

_EVERY = 0.1
"""Seconds between two looks. What comes and goes faster is not seen; what a kernel would kill for stays longer."""
_AT_LEAST = 1.0
"""Seconds after which the proportional size is counted again although nothing has grown: pages come to be unshared."""
_GROWN = 1 << 20
"""Bytes by which the resident size grows before the proportional one is counted again."""
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Running(Protocol):
    """What is looked at: a cluster, or a part of one."""

    @property
    def programs(self) -> Mapping[str, Program]: ...


@dataclass
class _Seen:
    """One program at the last time that its proportional size was counted."""

    at: float
    tree: tuple[int, ...]
    resident: int

    def still(self, tree: tuple[int, ...], limit: int) -> bool:
        """Whether what was counted then tells enough: nothing has come or grown, or is so large as to be killed for."""
        fresh = time.monotonic() - self.at < _AT_LEAST
        return fresh and set(tree) <= set(self.tree) and _resident(self.tree) <= min(limit, self.resident + _GROWN)


def limits() -> Mapping[str, int]:
    """The memory limit in bytes of each container of the shipped workloads, by the container's name."""
    found: dict[str, int] = {}
    for document in installing.shipped(installing.BASE):
        spec = (((document.get("spec") or {}).get("template") or {}).get("spec")) or {}
        for container in (*spec.get("initContainers", ()), *spec.get("containers", ())):
            limit = ((container.get("resources") or {}).get("limits") or {}).get("memory")
            if limit:
                found[container["name"]] = quantity.integer(limit)
    return found


class Footprint:
    """Samples every program on a thread; one that passes its limit is killed, as it would be on a node."""

    def __init__(self, cluster: Running) -> None:
        self._cluster, self._limits = cluster, limits()
        self.peaks: dict[str, int] = {}
        """The most that was seen, in bytes, by the program's name."""
        self.killed: list[str] = []
        """Programs that passed their limits, with the figures."""
        self._stop, self._looking = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="footprint", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._looking.set()
        self._thread.start()

    def pause(self) -> None:
        """Look no longer until `resume`: no test runs on this cluster, which lives until all have run."""
        self._looking.clear()

    def resume(self) -> None:
        """Look again."""
        self._looking.set()

    def stop(self) -> None:
        """Look no longer."""
        self._stop.set()
        self._looking.set()
        self._thread.join()

    def _run(self) -> None:
        seen: dict[str, _Seen] = {}
        while not self._stop.wait(_EVERY):
            self._looking.wait()
            for name, program in tuple(self._cluster.programs.items()):
                if name == "certs" or not program.alive():
                    continue
                # A name has the node or the replica's number behind it.
                limit = self._limits[name.split("-")[0]]
                last = seen.get(name)
                if last is not None and last.still(tuple(_tree(program.pid, of_main=True)), limit):
                    continue
                tree = tuple(_tree(program.pid))
                seen[name] = _Seen(time.monotonic(), tree, _resident(tree))
                used = sum(map(_proportional, tree))
                self.peaks[name] = max(self.peaks.get(name, 0), used)
                if used > limit:
                    self.killed.append(f"{name}: {used >> 20} MiB, its manifest allows {limit >> 20} MiB")
                    program.kill()


def _tree(pid: int, *, of_main: bool = False) -> Iterator[int]:
    """
    The process and everything below it; what ends meanwhile is left out. `of_main`: only what main threads started,
    where our programs fork, which takes a tenth of the time.
    """
    yield pid
    threads = [str(pid)] if of_main else _threads(pid)
    for thread in threads:
        for child in _read(f"/proc/{pid}/task/{thread}/children").split():
            yield from _tree(int(child), of_main=of_main)


def _threads(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []


def _resident(tree: tuple[int, ...]) -> int:
    """Bytes of all of them, shared pages counted for each; nothing for a process that has ended."""
    return sum(int(text.split()[1]) * _PAGE for pid in tree if (text := _read(f"/proc/{pid}/statm")))


def _proportional(pid: int) -> int:
    """Bytes; 0 for a process that has ended."""
    lines = _read(f"/proc/{pid}/smaps_rollup").splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(b"Pss:")), 0)


def _read(path: str) -> bytes:
    """A file of `/proc`; empty for a process that has ended. Without `pathlib`, which takes longer than the kernel."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read()
    except OSError:
        return b""
