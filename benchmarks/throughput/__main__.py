"""
`python -m benchmarks.throughput`: bound pods a second, and what each costs, beside kube-scheduler in the same run.

It needs a real control plane (KUBEBUILDER_ASSETS). kube-scheduler alone works on a control plane of its own, without
anything of gpufraction; all other sides on one with gpufraction. Sides take turns. No kubelet runs.
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
from benchmarks.throughput import requests, sides
from benchmarks.throughput.plane import Nodes
from benchmarks.throughput.sides import KUBE_SCHEDULER, Bench, Measured, Side
from playground.cluster import Cluster
from playground.realapi import components
from playground.realapi.components import Assets, assets_of

NODES, PODS, ROUNDS = (1000,), 1000, 3
_WARM_UP = 10
"""Before anything is measured, each side has this part of the pods."""
_CONTROL_PLANE = ("kube-apiserver", "etcd", "kube-scheduler")
_OURS = ("webhook", "allocator")


def measure(
    nodes: int, pods: int, rounds: int, wanted: Sequence[Side], environment: Mapping[str, str] = os.environ
) -> Iterator[str]:
    """All wanted sides by turns, so many rounds; tables, and lines for programs."""
    assets = assets_of(environment)
    if not isinstance(assets, str) and not assets.has(components.SCHEDULER):
        assets = f"{assets.folder} has no {components.SCHEDULER}"
    if isinstance(assets, str):
        yield f"Bound pods a second were not measured: {assets}"
        return
    found: dict[str, list[Measured]] = {side.name: [] for side in wanted}
    with _benches(assets, nodes, pods, wanted) as benches:
        for side in wanted:
            say(f"warming up: {side.title}")
            benches[side.ours].measure(side, max(pods // _WARM_UP, 1))
        for ours, bench in benches.items():
            say("how much the programs work when nothing happens")
            bench.rest()
            yield f"Left out, {'with' if ours else 'without'} us: what idle programs work, {_idle(bench.idle)}"
        for turn in range(rounds):
            for side in wanted:
                say(f"round {turn + 1} of {rounds}: {pods} pods, {side.title}")
                one = benches[side.ours].measure(side, pods)
                say(f"{one.rate:.0f} pods/s, {one.cpu_ms():.1f} ms a pod")
                found[side.name].append(one)
    yield from report(nodes, pods, wanted, found)


@contextlib.contextmanager
def _benches(assets: Assets, nodes: int, pods: int, wanted: Sequence[Side]) -> Iterator[dict[bool, Bench]]:
    """A control plane with gpufraction, by True, and one without, by False, where a side needs it."""
    held_nodes = sides.held_nodes(pods)
    with contextlib.ExitStack() as held:
        benches: dict[bool, Bench] = {}
        for ours in sorted({side.ours for side in wanted}):
            plane = Nodes(assets, nodes=nodes, held=held_nodes, gpus=ours, namespaces=(sides.TENANT, sides.OTHERS))
            pids = _installed(plane, held) if ours else _alone(plane, held)
            pids |= {name: plane.server.programs[name].pid for name in _CONTROL_PLANE}
            benches[ours] = Bench(plane.server.kube, pids, held=held_nodes)
        yield benches


def _installed(plane: Nodes, held: contextlib.ExitStack) -> dict[str, int]:
    """Start it with gpufraction; our programs' process ids."""
    cluster = Cluster(nodes=(), control_plane=lambda gpus_of: plane, namespaces=(sides.TENANT,), components=())
    held.callback(cluster.stop)
    cluster.start(timeout=180)
    return {name: cluster.programs[name].pid for name in _OURS}


def _alone(plane: Nodes, held: contextlib.ExitStack) -> dict[str, int]:
    held.callback(plane.stop)
    plane.start()
    return {}


def _idle(found: Mapping[str, float]) -> str:
    each = ", ".join(f"{name} {1e3 * seconds:.0f}" for name, seconds in found.items())
    return f"in ms a second: {each}"


# -- tables -------------------------------------------------------------------------------------------------------


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
    floor = found.get(KUBE_SCHEDULER.name, ())
    ratios = {side.name: Ratio.of(found[side.name], floor) for side in wanted}
    yield table(
        f"{pods} pods on {nodes} nodes, {sides.CLIENTS} clients, median of {rounds}; processor time in ms a pod",
        ("side", "pods/s", "all", "API", "etcd", "scheduler", "webhook", "allocator", "by cpu", "by rate"),
        [_costs(side, found[side.name], ratios[side.name]) for side in wanted],
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


def _costs(side: Side, measured: Sequence[Measured], ratio: Ratio | None) -> tuple[str, ...]:
    programs = [[one.cpu_ms(name) for one in measured] for name in ("", *_CONTROL_PLANE, *_OURS)]
    rate = _median([one.rate for one in measured])
    cells = ratio.cells() if ratio else ("-", "-")
    return side.title, f"{rate:.0f}", *(f"{_median(each):.1f}" for each in programs), *cells


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
        "--sides", nargs="+", default=[], help=f"of {', '.join(side.name for side in sides.SIDES)}; all without any"
    )
    given = parser.parse_args()
    try:
        wanted = sides.chosen(given.sides)
    except ValueError as error:
        parser.error(str(error))
    print(f"{os.cpu_count()} cores, load before: {os.getloadavg()[0]:.1f}\n")
    for nodes in given.nodes:
        for text in measure(nodes, given.pods, given.rounds, wanted):
            print(text, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
