"""
`python -m benchmarks.throughput`: bound pods a second, and the cost of each, alongside kube-scheduler in the same run.

It needs a real control plane (KUBEBUILDER_ASSETS). kube-scheduler alone works on a control plane of its own, without
anything of gpufraction; our own sides on one with gpufraction, and each peer on one of its own. Sides take turns. No
kubelet runs. With `--kills` it does not measure costs, but counts overcommitted cards while schedulers are killed.
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.figures import machine_line, table
from benchmarks.progress import say
from benchmarks.throughput import beside, kills, requests, sides, turns
from benchmarks.throughput.sides import KUBE_SCHEDULER, Measured, Side
from benchmarks.throughput.turns import CONTROL_PLANE, OURS, Turns
from playground.realapi import components
from playground.realapi.components import Assets, assets_of

NODES, PODS, ROUNDS = (1000,), 1000, 3
_WARM_UP = 10
"""Before anything is measured, each side has this part of the pods."""
_SINGLE = 20
"""Pods by which is measured how soon a card is known where no other pod waits."""
_LEAST = 0.05
"""Less than this many ms a pod is printed as nothing."""


def measure(
    nodes: int,
    pods: int,
    rounds: int,
    wanted: Sequence[Side],
    sharers: int = 0,
    environment: Mapping[str, str] = os.environ,
) -> Iterator[str]:
    """
    All wanted sides by turns, so many rounds; tables, and lines for programs. `sharers`: pods that hold shares before
    anything is measured.
    """
    assets = _assets(environment)
    if isinstance(assets, str):
        yield f"Bound pods a second were not measured: {assets}"
        return
    yield from turns.missing(wanted, environment)
    found: dict[str, list[Measured]] = {side.name: [] for side in wanted}
    held = sides.held_nodes(pods)
    start = functools.partial(turns.bench_of, assets, nodes=nodes, held=held, environment=environment)
    with Turns(turns.present(wanted, environment), start) as turn:
        if sharers:
            what = f"{sharers} pods hold a share"
            list(turn.each(what, lambda bench, side: bench.fill(side, sharers), of=sides.is_filled, once=True))
        list(turn.each("warming up", lambda bench, side: bench.measure(side, max(pods // _WARM_UP, 1))))
        for side, idle in turn.each("idle programs", lambda bench, side: bench.rest(), once=True):
            yield f"Left out, {side.plane}: what idle programs work, {_idle(idle)}"
        for number in range(rounds):
            what = f"round {number + 1} of {rounds}, {pods} pods"
            for side, one in turn.each(what, lambda bench, side: bench.measure(side, pods)):
                say(f"{one.rate:.0f} pods/s, {one.cpu_ms():.1f} ms a pod")
                found[side.name].append(one)
        what = f"{_SINGLE} pods one by one"
        one_by_one = turn.each(what, lambda bench, side: bench.one_by_one(side, _SINGLE), of=beside.tells_cards)
        singly = {side.name: seconds for side, seconds in one_by_one}
    yield from turn.failures()
    if turn.sides:
        yield from report(nodes, pods, turn.sides, found)
        yield from beside.report(nodes, pods, turn.sides, found, singly)


def kill(nodes: int, times: int, wanted: Sequence[Side], environment: Mapping[str, str] = os.environ) -> Iterator[str]:
    """Each wanted side that has cards, one after the other; a table, and lines for programs."""
    assets = _assets(environment)
    if isinstance(assets, str):
        yield f"Overcommitted cards were not counted: {assets}"
        return
    yield from turns.missing(wanted, environment)
    found: dict[str, kills.Killed] = {}
    start = functools.partial(turns.bench_of, assets, nodes=nodes, held=kills.NODES, environment=environment)
    for side in turns.present(wanted, environment):
        if side.kills and not side.gated:
            with Turns([side], start) as turn:
                what = f"{times} times {' and '.join(side.kills)} is killed"
                for _, one in turn.each(what, lambda bench, side: kills.measure(bench, side, times)):
                    found[side.title] = one
                    yield kills.line(nodes, side, one)
            yield from turn.failures()
    if found:
        yield kills.report(nodes, times, found)


def _assets(environment: Mapping[str, str]) -> Assets | str:
    assets = assets_of(environment)
    if not isinstance(assets, str) and not assets.has(components.SCHEDULER):
        return f"{assets.folder} has no {components.SCHEDULER}"
    return assets


def _idle(found: Mapping[str, float]) -> str:
    each = ", ".join(f"{name} {1e3 * seconds:.0f}" for name, seconds in found.items())
    return f"in ms a second: {each}"


# -- tables -------------------------------------------------------------------------------------------------------

_COSTS = ("side", "pods/s", "all", "API", "etcd", "scheduler", "webhook", "allocator")
_OTHERS, _RATIOS = "others", ("by cpu", "by rate")


@dataclass(frozen=True, slots=True)
class Ratio:
    """A side relative to kube-scheduler alone: median of the rounds' ratios, each within its round. 1 is as good."""

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
    """The measured figures: processor time, writes, and a line for each side."""
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
        refused = [one.refused for one in found[side.name]]
        if any(refused):
            yield f"Of {side.name}, creations that were refused for the moment and tried again: {refused}"
        if side.gated:
            waiting, placed = (_median([_cpu_ms(one, part) for one in found[side.name]]) for part in (0, 1))
            yield f"Of a gated pod's time: {waiting:.1f} ms until it waits, {placed:.1f} ms once shares are free"
    for side in wanted:
        yield _line(nodes, pods, side, found[side.name], ratios[side.name])


def _costs(side: Side, measured: Sequence[Measured], ratio: Ratio | None, others: bool) -> tuple[str, ...]:
    programs = [[one.cpu_ms(name) for one in measured] for name in ("", *CONTROL_PLANE, *OURS)]
    programs += [[_others(one) for one in measured]] if others else []
    rate = _median([one.rate for one in measured])
    cells = ratio.cells() if ratio else ("-", "-")
    return side.title, f"{rate:.0f}", *(f"{_median(each):.1f}" for each in programs), *cells


def _others(one: Measured) -> float:
    """Processor time a pod of the programs that have no column of their own, in ms."""
    return sum(one.cpu_ms(name) for name in one.bound.cpu if name not in (*CONTROL_PLANE, *OURS))


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
        help=f"of {_names(sides.SIDES)}, which are measured without any, {sides.CLAIMS.name}, and the peers "
        f"{_names(sides.BESIDE)}",
    )
    parser.add_argument(
        "--kills",
        type=int,
        default=0,
        help="kill each side's scheduler so many times while pods come and go, and count overcommitted cards",
    )
    parser.add_argument(
        "--sharers",
        type=int,
        default=0,
        help="so many pods hold shares before anything is measured; needs the side nodeName or kube-scheduler",
    )
    given = parser.parse_args()
    try:
        wanted = sides.chosen(given.sides)
    except ValueError as error:
        parser.error(str(error))
    print(f"{os.cpu_count()} cores, load before: {os.getloadavg()[0]:.1f}\n")
    for nodes in given.nodes:
        measured = measure(nodes, given.pods, given.rounds, wanted, given.sharers)
        texts = kill(nodes, given.kills, wanted) if given.kills else measured
        for text in texts:
            print(text, flush=True)
    return 0


def _names(some: Sequence[Side]) -> str:
    return ", ".join(side.name for side in some)


if __name__ == "__main__":
    sys.exit(main())
