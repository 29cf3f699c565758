"""
The memory that the programs of a cluster use, held to the limits of the shipped manifests as a node's kernel would.

A container's limit counts all its processes, and pages that they share once: so what is added up is the proportional
set size of a program and of everything that it started (proc(5), `Pss`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

from contract.encoding import quantity
from playground.cluster import Cluster
from playground.programs import installing

_EVERY = 0.1
"""Seconds between two looks. What comes and goes faster is not seen; what a kernel would kill for stays longer."""


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

    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self._limits = cluster, limits()
        self.peaks: dict[str, int] = {}
        """The most that was seen, in bytes, by the program's name."""
        self.killed: list[str] = []
        """Programs that passed their limits, with the figures."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="footprint", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Look no longer."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(_EVERY):
            for name, program in tuple(self._cluster.programs.items()):
                if name == "certs" or not program.alive():
                    continue
                used = sum(_proportional(pid) for pid in _tree(program.pid))
                self.peaks[name] = max(self.peaks.get(name, 0), used)
                # A name has the node or the replica's number behind it.
                limit = self._limits[name.split("-")[0]]
                if used > limit:
                    self.killed.append(f"{name}: {used >> 20} MiB, its manifest allows {limit >> 20} MiB")
                    program.kill()


def _tree(pid: int) -> Iterator[int]:
    """The process and everything below it; what ends meanwhile is left out."""
    yield pid
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            below = children.read_text().split()
        except OSError:
            continue
        for child in below:
            yield from _tree(int(child))


def _proportional(pid: int) -> int:
    """Bytes; 0 for a process that has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)
