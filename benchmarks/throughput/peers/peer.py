"""
A side that is not ours: a value that defines how it runs on a control plane of its own, and how it is read.

A peer is one module of this package with a constant `PEER`, and a line in `table.py`. None of its code is here: its
programs are found on the machine.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.throughput.peers.bookings import Booking
from contract.encoding import quantity
from playground.programs.process import Program
from playground.realapi.components import ENVIRONMENT
from playground.realapi.server import RealServer
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube

JSON = dict[str, Any]
FOLDER = "GPUFRACTION_PEERS"
"""The environment variable that names a folder with a folder of programs for each peer."""
KUBERNETES = ENVIRONMENT
CARDS, CARD, SHARE = 8, 80 * quantity.GIB, 8 * quantity.GIB
"""Cards of a node; bytes of a card; bytes that each pod asks for, so that ten pods fill a card."""
MODEL = "NVIDIA A100-SXM4-80GB"


def gib(amount: int) -> str:
    """Bytes, whole GiB of them, as a quantity: `8Gi`."""
    return f"{amount // quantity.GIB}Gi"


@dataclass(frozen=True, slots=True)
class Needed:
    """A program of the peer: a file below the folder that an environment variable names."""

    name: str
    path: str
    variable: str = FOLDER

    def found(self, environment: Mapping[str, str]) -> bool:
        """Whether it is there."""
        folder = environment.get(self.variable, "")
        return bool(folder) and (Path(folder) / self.path).is_file()


@dataclass(frozen=True, slots=True)
class Host:
    """A control plane with its nodes, on which a peer starts its programs. Namespaces and nodes are there."""

    server: RealServer
    kube: Kube
    nodes: Sequence[str]
    namespace: str
    """Where the pods of the benchmark will be."""
    folders: Mapping[str, str]
    """The environment variables by which programs are found."""

    def start(
        self, needed: Needed, flags: Sequence[str], environment: Mapping[str, str] | None = None, *, name: str = ""
    ) -> Program:
        """Start a program of the peer. It is stopped with the control plane, and its log lies in the directory."""
        name = name or needed.name
        directory = self.server.directory
        command = (str(Path(self.folders[needed.variable]) / needed.path),)
        program = Program(
            name, flags, log=directory / f"{name}.log", environment=dict(environment or {}), command=command
        )
        self.server.programs[name] = program
        program.start()
        return program


@dataclass(frozen=True, slots=True)
class Reading:
    """
    How a side's stored objects show a pod's card.

    `shown(namespace)` is the path of the collection to watch. `known(object)` is the name of the pod whose card this
    object of it shows, empty where it shows none yet. `booked(kube, namespace)` lists what all pods there hold that
    have a node. `counted`: the side counts the memory of each card at all.
    """

    known: Callable[[JSON], str]
    booked: Callable[[Kube, str], Sequence[Booking]]
    shown: Callable[[str], str] = paths.pods
    counted: bool = True


@dataclass(frozen=True, slots=True)
class Peer:
    """
    A way to share GPUs alongside ours.

    - `programs`: what must be on the machine.
    - `dress(node)` puts on a Node, in place and before it is created, what the peer's agents report of its cards.
    - `acting(host)`: meanwhile, what the peer needs of its node agents is played. It begins before `start`.
    - `start(host)` creates the peer's other objects and whatever pods name, starts its programs, waits until they work,
      and returns them by the names by which their processor time is told.
    - `kills` names those that are its scheduler.
    - `pod(pod)` makes a small pod, in place, one that asks for a share of SHARE bytes.
    - `idle_writes`: an API server that was requested fewer writes in a second has settled.
    """

    name: str
    title: str
    programs: tuple[Needed, ...]
    dress: Callable[[JSON], None]
    start: Callable[[Host], Mapping[str, Program]]
    kills: tuple[str, ...]
    pod: Callable[[JSON], None]
    reading: Reading
    acting: Callable[[Host], AbstractContextManager[None]] = field(default=lambda host: contextlib.nullcontext())
    idle_writes: int = 6

    def missing(self, environment: Mapping[str, str]) -> str:
        """One line on the programs that are not on the machine; empty where all are."""
        lacking: dict[str, list[str]] = {}
        for each in self.programs:
            if not each.found(environment):
                lacking.setdefault(each.variable, []).append(each.path)
        return "; ".join(f"{_folder(name, environment)} has no {', '.join(files)}" for name, files in lacking.items())


def _folder(variable: str, environment: Mapping[str, str]) -> str:
    return f"the folder that {variable} names" if environment.get(variable) else f"{variable}, which is not set,"
