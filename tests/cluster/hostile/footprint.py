"""
Holds the memory of a cluster's programs to the limits of the shipped manifests, as a node's kernel does.

A container's limit counts all its processes, and counts pages that they share once. So this adds up the proportional
set size of a program and of everything that it started (proc(5), `Pss`). The kernel counts that page by page, which
takes 2 ms for each process. The resident set size counts shared pages in full, so it is never less, and reading it
costs almost nothing. It is read at every look, and decides when the proportional size must be read.
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
"""Seconds between two looks. Shorter peaks are not seen, but a kernel would kill only for longer ones."""
_AT_LEAST = 1.0
"""
Seconds after which the proportional size is counted again even if nothing has grown, because pages stop being shared.
"""
_GROWN = 1 << 20
"""Bytes by which the resident size grows before the proportional one is counted again."""
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Running(Protocol):
    """The cluster, or the part of one, to monitor."""

    @property
    def programs(self) -> Mapping[str, Program]: ...


@dataclass
class _Seen:
    """One program at the time when its proportional size was last counted."""

    at: float
    tree: tuple[int, ...]
    resident: int

    def still(self, tree: tuple[int, ...], limit: int) -> bool:
        """
        Whether that count is still good enough: no process is new or has grown, and none is large enough to be killed.
        """
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
    """Samples every program on a thread. A program that exceeds its limit is killed, as on a node."""

    def __init__(self, cluster: Running) -> None:
        self._cluster, self._limits = cluster, limits()
        self.peaks: dict[str, int] = {}
        """The maximum that was seen, in bytes, by the program's name."""
        self.killed: list[str] = []
        """Programs that exceeded their limits, with the figures."""
        self._stop, self._looking = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="footprint", daemon=True)

    def start(self) -> None:
        """Start sampling."""
        self._looking.set()
        self._thread.start()

    def pause(self) -> None:
        """Stop sampling until `resume`: no test runs on this cluster, which lives until all have run."""
        self._looking.clear()

    def resume(self) -> None:
        """Sample again."""
        self._looking.set()

    def stop(self) -> None:
        """Stop sampling."""
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
                # The name ends with the node or the replica's number.
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
    The process and all its descendants, without those that end during the search. `of_main`: only children of main
    threads, which is where our programs fork. This takes a tenth of the time.
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
    """Resident bytes of all of them. Shared pages count for each process, and an ended process counts as nothing."""
    return sum(int(text.split()[1]) * _PAGE for pid in tree if (text := _read(f"/proc/{pid}/statm")))


def _proportional(pid: int) -> int:
    """Proportional bytes of the process; 0 if it has ended."""
    lines = _read(f"/proc/{pid}/smaps_rollup").splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(b"Pss:")), 0)


def _read(path: str) -> bytes:
    """A file of `/proc`; empty if the process has ended. Does not use `pathlib`, which takes longer than the kernel."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read()
    except OSError:
        return b""
