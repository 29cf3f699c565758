"""
`python -m benchmarks.throughput`: bound pods a second, and what each costs, beside kube-scheduler in the same run.

It needs a real control plane (KUBEBUILDER_ASSETS). kube-scheduler alone works on a control plane of its own, without
anything of gpufraction; our own sides on one with gpufraction, and each peer on one of its own. Sides take turns. No
kubelet runs. With `--kills` it does not measure costs, but counts overcommitted cards while schedulers are killed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.figures import machine_line, table
from benchmarks.progress import say
from benchmarks.throughput import beside, kills, requests, sides
from benchmarks.throughput.plane import Nodes, with_peer
from benchmarks.throughput.sides import KUBE_SCHEDULER, Bench, Measured, Side
from playground.cluster import Cluster
from playground.programs.process import Program
from playground.realapi import components
from playground.realapi.components import Assets, assets_of

NODES, PODS, ROUNDS = (1000,), 1000, 3
_WARM_UP = 10
"""Before anything is measured, each side has this part of the pods."""
_SINGLE = 20
"""Pods by which is measured how soon a card is known where no other pod waits."""
_CONTROL_PLANE = ("kube-apiserver", "etcd", "kube-scheduler")
_OURS = ("webhook", "allocator")
_LEAST = 0.05
"""Less than this many ms a pod is printed as nothing."""


def measure(
    nodes: int, pods: int, rounds: int, wanted: Sequence[Side], environment: Mapping[str, str] = os.environ
) -> Iterator[str]:
    """All wanted sides by turns, so many rounds; tables, and lines for programs."""
    assets = _assets(environment)
    if isinstance(assets, str):
        yield f"Bound pods a second were not measured: {assets}"
        return
    yield from missing(wanted, environment)
    wanted = present(wanted, environment)
    found: dict[str, list[Measured]] = {side.name: [] for side in wanted}
    with contextlib.ExitStack() as held:
        held_nodes = sides.held_nodes(pods)
        benches = {
            side.plane: held.enter_context(bench_of(assets, side, nodes, held_nodes, environment))
            for side in _of_each_plane(wanted)
        }
        for side in wanted:
            say(f"warming up: {side.title}")
            benches[side.plane].measure(side, max(pods // _WARM_UP, 1))
        for plane, bench in benches.items():
            say("how much the programs work when nothing happens")
            bench.rest()
            yield f"Left out, {plane}: what idle programs work, {_idle(bench.idle)}"
        for turn in range(rounds):
            for side in wanted:
                say(f"round {turn + 1} of {rounds}: {pods} pods, {side.title}")
                one = benches[side.plane].measure(side, pods)
                say(f"{one.rate:.0f} pods/s, {one.cpu_ms():.1f} ms a pod")
                found[side.name].append(one)
        singly = {}
        for side in filter(beside.tells_cards, wanted):
            say(f"{_SINGLE} pods one after the other, {side.title}")
            singly[side.name] = benches[side.plane].one_by_one(side, _SINGLE)
    if wanted:
        yield from report(nodes, pods, wanted, found)
        yield from beside.report(nodes, pods, wanted, found, singly)


def kill(nodes: int, times: int, wanted: Sequence[Side], environment: Mapping[str, str] = os.environ) -> Iterator[str]:
    """Each wanted side that has cards, one after the other; a table, and lines for programs."""
    assets = _assets(environment)
    if isinstance(assets, str):
        yield f"Overcommitted cards were not counted: {assets}"
        return
    yield from missing(wanted, environment)
    found: dict[str, kills.Killed] = {}
    for side in present(wanted, environment):
        if side.kills and not side.gated:
            with bench_of(assets, side, nodes, kills.NODES, environment) as bench:
                say(f"killing {' and '.join(side.kills)} {times} times: {side.title}")
                found[side.title] = kills.measure(bench, side, times)
                yield kills.line(nodes, side, found[side.title])
    if found:
        yield kills.report(nodes, times, found)


def _assets(environment: Mapping[str, str]) -> Assets | str:
    assets = assets_of(environment)
    if not isinstance(assets, str) and not assets.has(components.SCHEDULER):
        return f"{assets.folder} has no {components.SCHEDULER}"
    return assets


def missing(wanted: Sequence[Side], environment: Mapping[str, str]) -> Iterator[str]:
    """A line for each peer whose programs are not on the machine."""
    for side in wanted:
        lacks = side.peer.missing(environment) if side.peer else ""
        if lacks:
            yield f"{side.name} is missing: {lacks}"


def present(wanted: Sequence[Side], environment: Mapping[str, str]) -> tuple[Side, ...]:
    """The sides whose programs are on the machine."""
    return tuple(side for side in wanted if not (side.peer and side.peer.missing(environment)))


def _of_each_plane(wanted: Sequence[Side]) -> Iterator[Side]:
    """The first side of each control plane."""
    seen: set[str] = set()
    for side in wanted:
        if side.plane not in seen:
            seen.add(side.plane)
            yield side


@contextlib.contextmanager
def bench_of(
    assets: Assets, side: Side, nodes: int, held_nodes: int, environment: Mapping[str, str]
) -> Iterator[Bench]:
    """The control plane of a side, with all programs."""
    namespaces = (sides.TENANT, sides.OTHERS)
    with contextlib.ExitStack() as held:
        idle_writes = sides.IDLE_WRITES
        if side.peer is not None:
            beginning = with_peer(
                assets, side.peer, nodes=nodes, held=held_nodes, namespaces=namespaces, environment=environment
            )
            server, programs = held.enter_context(beginning)
            idle_writes = side.peer.idle_writes
        else:
            plane = Nodes(assets, nodes=nodes, held=held_nodes, gpus=side.ours, namespaces=namespaces)
            programs = _installed(plane, held) if side.ours else _alone(plane, held)
            server = plane.server
        ours = {name: server.programs[name] for name in _CONTROL_PLANE if name in server.programs}
        yield Bench(server.kube, {**ours, **programs}, held=held_nodes, idle_writes=idle_writes)


def _installed(plane: Nodes, held: contextlib.ExitStack) -> dict[str, Program]:
    """Start it with gpufraction; our programs."""
    cluster = Cluster(nodes=(), control_plane=lambda gpus_of: plane, namespaces=(sides.TENANT,), components=())
    held.callback(cluster.stop)
    cluster.start(timeout=180)
    return {name: cluster.programs[name] for name in _OURS}


def _alone(plane: Nodes, held: contextlib.ExitStack) -> dict[str, Program]:
    held.callback(plane.stop)
    plane.start()
    return {}


def _idle(found: Mapping[str, float]) -> str:
    each = ", ".join(f"{name} {1e3 * seconds:.0f}" for name, seconds in found.items())
    return f"in ms a second: {each}"


# -- tables -------------------------------------------------------------------------------------------------------

_COSTS = ("side", "pods/s", "all", "API", "etcd", "scheduler", "webhook", "allocator")
_OTHERS, _RATIOS = "others", ("by cpu", "by rate")


@dataclass(frozen=True, slots=True)
class Ratio:
    """A side beside kube-scheduler alone: median of what the rounds came to, each within itself. 1 is as good."""

    cpu: float
    rate: float

    @classmethod
    def of(cls, side: Sequence[Measured], floor: Sequence[Measured]) -> Ratio | None:
        """None without a floor."""
        if not floor:
            return None
        pairs = list(zip(side, floor, strict=True))
        cpu = statistics.median(base.cpu_ms() / one.cpu_ms() for one, base in pairs)
        return cls(cpu, statistics.median(one.rate / base.rate for one, base in pairs))

    def cells(self) -> tuple[str, str]:
        return f"{self.cpu:.2f}", f"{self.rate:.2f}"


def report(nodes: int, pods: int, wanted: Sequence[Side], found: Mapping[str, Sequence[Measured]]) -> Iterator[str]:
    """What was measured: processor time, writes, and a line for each side."""
    rounds = len(found[wanted[0].name])
    others = any(_others(one) > _LEAST for side in wanted for one in found[side.name])
    floor = found.get(KUBE_SCHEDULER.name, ())
    ratios = {side.name: Ratio.of(found[side.name], floor) for side in wanted}
    yield table(
        f"{pods} pods on {nodes} nodes, {sides.CLIENTS} clients, median of {rounds}; processor time in ms a pod",
        (*_COSTS, *((_OTHERS,) if others else ()), *_RATIOS),
        [_costs(side, found[side.name], ratios[side.name], others) for side in wanted],
    )
    yield table(
        "Writes a pod by kind, and reads",
        ("side", *requests.KINDS, "all", requests.READS),
        [_writes(side, found[side.name]) for side in wanted],
    )
    until = ", ".join(f"{side.name} {_median([one.cpu_ms_bound for one in found[side.name]]):.1f}" for side in wanted)
    yield f"Without what was still to be written when the last pod had its node, in ms a pod: {until}"
    for side in wanted:
        if side.gated:
            waiting, placed = (_median([_cpu_ms(one, part) for one in found[side.name]]) for part in (0, 1))
            yield f"Of a gated pod's time: {waiting:.1f} ms until it waits, {placed:.1f} ms once shares are free"
    for side in wanted:
        yield _line(nodes, pods, side, found[side.name], ratios[side.name])


def _costs(side: Side, measured: Sequence[Measured], ratio: Ratio | None, others: bool) -> tuple[str, ...]:
    programs = [[one.cpu_ms(name) for one in measured] for name in ("", *_CONTROL_PLANE, *_OURS)]
    programs += [[_others(one) for one in measured]] if others else []
    rate = _median([one.rate for one in measured])
    cells = ratio.cells() if ratio else ("-", "-")
    return side.title, f"{rate:.0f}", *(f"{_median(each):.1f}" for each in programs), *cells


def _others(one: Measured) -> float:
    """Processor time a pod of the programs that have no column of their own, in ms."""
    return sum(one.cpu_ms(name) for name in one.bound.cpu if name not in (*_CONTROL_PLANE, *_OURS))


def _writes(side: Side, measured: Sequence[Measured]) -> tuple[str, ...]:
    found = {kind: _median([one.requests(kind) for one in measured]) for kind in (*requests.KINDS, requests.READS)}
    every = sum(found[kind] for kind in requests.KINDS)
    cells = (*(found[kind] for kind in requests.KINDS), every, found[requests.READS])
    return side.title, *(f"{each:.2f}" for each in cells)


def _line(nodes: int, pods: int, side: Side, measured: Sequence[Measured], ratio: Ratio | None) -> str:
    writes = _median([sum(one.requests(kind) for kind in requests.KINDS) for one in measured])
    values = {
        "side": side.name,
        "nodes": nodes,
        "pods": pods,
        "pods_per_second": ",".join(f"{one.rate:.0f}" for one in measured),
        "cpu_ms": ",".join(f"{one.cpu_ms():.1f}" for one in measured),
        "cpu_ms_bound": ",".join(f"{one.cpu_ms_bound:.1f}" for one in measured),
        "writes": f"{writes:.2f}",
        **({"by_cpu": f"{ratio.cpu:.2f}", "by_rate": f"{ratio.rate:.2f}"} if ratio else {}),
    }
    return machine_line("throughput", values)


def _cpu_ms(one: Measured, part: int) -> float:
    return 1e3 * sum(one.parts[part].cpu.values()) / one.pods


def _median(values: Sequence[float]) -> float:
    return statistics.median(values)


def main() -> int:
    """Measure and print; the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.throughput", description="Bound pods a second, beside kube-scheduler's own."
    )
    parser.add_argument("--nodes", type=int, nargs="+", default=list(NODES), help="sizes of the cluster (%(default)s)")
    parser.add_argument("--pods", type=int, default=PODS, help="pods of each side in each round (%(default)s)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds; all sides by turns (%(default)s)")
    parser.add_argument(
        "--sides",
        nargs="+",
        default=[],
        help=f"of {_names(sides.SIDES)}, which are measured without any, and the peers {_names(sides.BESIDE)}",
    )
    parser.add_argument(
        "--kills",
        type=int,
        default=0,
        help="kill each side's scheduler so many times while pods come and go, and count overcommitted cards",
    )
    given = parser.parse_args()
    try:
        wanted = sides.chosen(given.sides)
    except ValueError as error:
        parser.error(str(error))
    print(f"{os.cpu_count()} cores, load before: {os.getloadavg()[0]:.1f}\n")
    for nodes in given.nodes:
        texts = kill(nodes, given.kills, wanted) if given.kills else measure(nodes, given.pods, given.rounds, wanted)
        for text in texts:
            print(text, flush=True)
    return 0


def _names(some: Sequence[Side]) -> str:
    return ", ".join(side.name for side in some)


if __name__ == "__main__":
    sys.exit(main())
