"""
The sides of one run, each on its control plane, and their work by turns.

A peer whose programs fail is left out from then on, and the others go on. A failure of ours, or of the control plane
that all are compared with, ends the run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TypeVar

from benchmarks.progress import say
from benchmarks.throughput import sides
from benchmarks.throughput.peers import ours
from benchmarks.throughput.peers.peer import Host
from benchmarks.throughput.plane import Nodes, with_peer
from benchmarks.throughput.sides import Bench, Side
from playground.cluster import Cluster
from playground.programs.process import Program, ProgramFailed
from playground.realapi.components import Assets
from playground.waiting import NotInTime
from runtime.kubernetes.client import KubeError

T = TypeVar("T")
CONTROL_PLANE = ("kube-apiserver", "etcd", "kube-scheduler")
OURS = ("webhook", "allocator")
_FAILURES = (KubeError, NotInTime, OSError, ProgramFailed)
"""The errors that a peer's programs can cause; TimeoutError is an OSError."""


class Turns:
    """
    A context in which the control planes run. `sides` are those that did not fail yet.

    `start` makes the control plane of a side, which others may share. Raises whatever a side of ours raises.
    """

    def __init__(self, wanted: Sequence[Side], start: Callable[[Side], AbstractContextManager[Bench]]) -> None:
        self.sides = list(wanted)
        self._make = start
        self._benches: dict[str, Bench] = {}
        self._failed: dict[str, str] = {}
        self._held = contextlib.ExitStack()

    def __enter__(self) -> Turns:
        with contextlib.ExitStack() as begun:
            self._held = begun
            list(self._each(self._start))
            self._held = begun.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def each(
        self,
        what: str,
        work: Callable[[Bench, Side], T],
        *,
        of: Callable[[Side], bool] = lambda side: True,
        once: bool = False,
    ) -> Iterator[tuple[Side, T]]:
        """The result of each such side's work; `once`: of those that share a control plane only the first one's."""
        worked: set[str] = set()

        def one(side: Side) -> T:
            say(f"{what}: {side.title}")
            return work(self._benches[side.plane], side)

        for side, found in self._each(one, lambda side: of(side) and not (once and side.plane in worked)):
            worked.add(side.plane)
            yield side, found

    def failures(self) -> Iterator[str]:
        """A line for each peer that failed."""
        for name, why in self._failed.items():
            yield f"{name} was not measured: {why}"

    def _start(self, side: Side) -> None:
        if side.plane not in self._benches:
            self._benches[side.plane] = self._held.enter_context(self._make(side))

    def _each(
        self, work: Callable[[Side], T], of: Callable[[Side], bool] = lambda side: True
    ) -> Iterator[tuple[Side, T]]:
        for side in tuple(self.sides):
            if not of(side):
                continue
            try:
                found = work(side)
            except _FAILURES as error:
                if side.peer is None:
                    raise
                self._failed[side.name] = str(error)
                self.sides.remove(side)
                say(f"{side.name} failed: {error}")
                continue
            yield side, found


def missing(wanted: Sequence[Side], environment: Mapping[str, str]) -> Iterator[str]:
    """A line for each peer whose programs are not on the machine."""
    for side in wanted:
        lacks = side.peer.missing(environment) if side.peer else ""
        if lacks:
            yield f"{side.name} is missing: {lacks}"


def present(wanted: Sequence[Side], environment: Mapping[str, str]) -> tuple[Side, ...]:
    """The sides whose programs are on the machine."""
    return tuple(side for side in wanted if not (side.peer and side.peer.missing(environment)))


@contextlib.contextmanager
def bench_of(assets: Assets, side: Side, *, nodes: int, held: int, environment: Mapping[str, str]) -> Iterator[Bench]:
    """The control plane of a side, with all programs."""
    namespaces = (sides.TENANT, sides.OTHERS)
    with contextlib.ExitStack() as running:
        idle_writes = sides.IDLE_WRITES
        if side.peer is not None:
            beginning = with_peer(
                assets, side.peer, nodes=nodes, held=held, namespaces=namespaces, environment=environment
            )
            server, peers = running.enter_context(beginning)
            programs = dict(peers)
            idle_writes = side.peer.idle_writes
        else:
            plane = Nodes(assets, nodes=nodes, held=held, gpus=side.ours, namespaces=namespaces)
            components = ("resourceclaims",) if side.by_claims else ()
            programs = _installed(plane, running, components) if side.ours else _alone(plane, running)
            server = plane.server
            if side.by_claims:
                host = Host(server, server.kube(), plane.names, side.namespace, environment)
                programs |= ours.serve_claims(host)
        control = {name: server.programs[name] for name in CONTROL_PLANE if name in server.programs}
        yield Bench(server.kube, {**control, **programs}, held=held, idle_writes=idle_writes)


def _installed(plane: Nodes, held: contextlib.ExitStack, components: Sequence[str]) -> dict[str, Program]:
    """Start it with gpufraction and these components; our programs."""
    cluster = Cluster(nodes=(), control_plane=lambda gpus_of: plane, namespaces=(sides.TENANT,), components=components)
    held.callback(cluster.stop)
    cluster.start(timeout=180)
    return {name: cluster.programs[name] for name in OURS}


def _alone(plane: Nodes, held: contextlib.ExitStack) -> dict[str, Program]:
    held.callback(plane.stop)
    plane.start()
    return {}
