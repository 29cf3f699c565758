"""
Where the MPS daemons, their supervisor, the node agent and the containers meet: files below one folder of the host.

    <root>/wanted.json          which GPUs are to have a daemon: written by the node agent
    <root>/report.json          how the daemons are: written by their supervisor
    <root>/shm                  what daemons and clients share as /dev/shm
    <root>/<uuid>/pipe          the daemon's sockets; in a container: `PIPE_IN_CONTAINER`
    <root>/<uuid>/keys          the socket by which it takes every command, which is no container's
    <root>/<uuid>/log           what it says
    <root>/<uuid>/daemon        its process id and start time
    <root>/<uuid>/claimed       that it was us who set the card's compute mode

Must not: decide anything.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

ROOT = "/run/gpufraction/mps"
"""On the host. Short, since the path of a socket may have 107 characters; and gone after the host's restart."""
PIPE_IN_CONTAINER = "/tmp/nvidia-mps"
"""MPS's default, so that a client needs no variable to find it."""


@dataclass(frozen=True, slots=True)
class MpsPaths:
    """The folder's parts."""

    root: Path

    @property
    def wanted(self) -> Path:
        return self.root / "wanted.json"

    @property
    def report(self) -> Path:
        return self.root / "report.json"

    def of(self, uuid: str) -> Path:
        """The folder of one GPU."""
        return self.root / uuid

    def known(self) -> tuple[str, ...]:
        """GPUs that have a folder: those that a daemon was ever started for since the host's start."""
        with contextlib.suppress(OSError):
            return tuple(sorted(path.name for path in self.root.iterdir() if path.name.startswith("GPU-")))
        return ()
