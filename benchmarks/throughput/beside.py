"""The report on all sides alongside peers: rate, cost, memory, and the time until a pod's card is known. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.figures import MIB, machine_line, percentile, table
from benchmarks.throughput import requests
from benchmarks.throughput.sides import Measured, Side

KUBERNETES = frozenset(("kube-apiserver", "etcd", "kube-scheduler", "kube-controller-manager"))
"""Programs that every cluster has; a side's other programs come on top of them."""
STORE = frozenset(("kube-apiserver", "etcd"))


@dataclass(frozen=True, slots=True)
class Beside:
    """
    One side, the median of its rounds.

    `placed`: the fewest pods of a round that were placed in time. `own_mib` of the programs that the side adds to a
    cluster, `mib` of these and of Kubernetes' scheduler and controllers. `known`: seconds from a pod's creation until
    its card is known, median and p99 of all rounds' pods, which wait behind each other; None where no card is known.
    `single`: the median of pods that are created when no other one waits.
    """

    placed: int
    rate: float
    cpu_ms: float
    writes: float
    own_mib: float
    mib: float
    known: tuple[float, float] | None
    single: float | None

    @classmethod
    def of(cls, measured: Sequence[Measured], singly: Sequence[float]) -> Beside:
        """Of the rounds of a side, and of pods that came one by one."""
        known = [each for one in measured for each in one.known]
        return cls(
            min(one.pods for one in measured),
            statistics.median(one.rate for one in measured),
            statistics.median(one.cpu_ms() for one in measured),
            statistics.median(sum(one.requests(kind) for kind in requests.KINDS) for one in measured),
            _mib(measured, KUBERNETES),
            _mib(measured, STORE),
            (percentile(known, 0.5), percentile(known, 0.99)) if known else None,
            percentile(singly, 0.5) if singly else None,
        )

    def cells(self) -> tuple[str, ...]:
        """As the table has them, after the side's title."""
        known = tuple(f"{each:.2f}" for each in self.known) if self.known else ("-", "-")
        single = "-" if self.single is None else f"{self.single:.3f}"
        costs = (f"{self.rate:.1f}", f"{self.cpu_ms:.1f}", f"{self.writes:.1f}")
        return str(self.placed), *costs, f"{self.own_mib:.0f}", f"{self.mib:.0f}", *known, single


def _mib(measured: Sequence[Measured], besides: frozenset[str]) -> float:
    return (
        statistics.median(sum(each for name, each in one.memory.items() if name not in besides) for one in measured)
        / MIB
    )


def tells_cards(side: Side) -> bool:
    """Whether it is known which card each pod has, soon after it was created."""
    return side.reading is not None and side.reading.counted and not side.gated


HEADER = ("side", "placed", "pods/s", "CPU ms", "writes", "own MiB", "MiB", "card p50 s", "p99 s", "single s")


def report(
    nodes: int,
    pods: int,
    wanted: Sequence[Side],
    found: Mapping[str, Sequence[Measured]],
    singly: Mapping[str, Sequence[float]],
) -> Iterator[str]:
    """The table, and a line for each side. Sides whose pods wait first, or that have no cards, are left out."""
    compared = [
        (side, Beside.of(found[side.name], singly.get(side.name, ())))
        for side in wanted
        if side.reading and not side.gated
    ]
    if not compared:
        return
    rounds = len(next(iter(found.values())))
    yield table(
        f"Alongside the peers: {pods} pods on {nodes} nodes, median of {rounds}; memory without API server and etcd",
        HEADER,
        [(side.title, *one.cells()) for side, one in compared],
    )
    for side, one in compared:
        yield machine_line("peers", {"side": side.name, "nodes": nodes, "pods": pods, **_values(one)})


def _values(one: Beside) -> Mapping[str, object]:
    known = {"card_p50_s": f"{one.known[0]:.3f}", "card_p99_s": f"{one.known[1]:.3f}"} if one.known else {}
    single = {} if one.single is None else {"single_s": f"{one.single:.3f}"}
    return {
        "placed": one.placed,
        "pods_per_second": f"{one.rate:.1f}",
        "cpu_ms": f"{one.cpu_ms:.1f}",
        "writes": f"{one.writes:.2f}",
        "own_mib": f"{one.own_mib:.0f}",
        "mib": f"{one.mib:.0f}",
        **known,
        **single,
    }
