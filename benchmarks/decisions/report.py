"""
Decisions: `python -m benchmarks.decisions` per cluster size, each in a process of its own, so that memory is that of
one cluster. Here its raw latencies become tables.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.figures import MIB, MICROSECOND, Spread, machine_line, table
from benchmarks.progress import say

JSON = dict[str, Any]
_TOP = Path(__file__).resolve().parents[2]
_TIMEOUT = 240.0
SIZES = ((1_000, 16_000), (5_000, 100_000))
"""Nodes of 8 GPUs, and pods that hold a share of one."""


def decisions(count: int = 3000) -> Iterator[str]:
    """The decision at two sizes, alongside the plain engine, and the "no" of each kind."""
    results = [
        measure(nodes, sharers, decisions=count, refusals=50, plain=12 if nodes <= 1_000 else 3)
        for nodes, sharers in SIZES
    ]
    yield table(
        f"One decision, {count} of each: {results[0]['shapes']} request shapes, a release for every placement, a node"
        " changed every 5",
        ("nodes x 8, sharers", "p50 us", "p99 us", "max us", "cpu p99", "booked p99", "RSS MiB", "plain p50", "ratio"),
        [_row(result) for result in results],
    )
    for result in results:
        yield (
            f"{result['nodes']} nodes: {_per_second(result):.0f} decisions a second, each with its booking, a release"
            " and its part of the node changes"
        )
    yield table(
        'A "no", with the question whether it is for ever: p50 / p99 in us',
        ("why", *(f"{result['nodes']} nodes" for result in results)),
        [
            (kinds[0]["what"], *("{} / {}".format(*Spread.of(kind["ns"]).cells(MICROSECOND, 0)) for kind in kinds))
            for kinds in zip(*(result["refusals"] for result in results), strict=True)
        ],
    )
    for result in results:
        yield machine_line("decision", _values(result))


def measure(nodes: int, sharers: int, **given: object) -> JSON:
    """The output of `python -m benchmarks.decisions` for one size; `given` are its other flags."""
    say(f"decisions at {nodes} nodes with {sharers} sharers" + (f" by {given['policy']}" if "policy" in given else ""))
    flags = {"nodes": nodes, "sharers": sharers, **given}
    command = [
        sys.executable,
        "-m",
        "benchmarks.decisions",
        *(f"--{name.replace('_', '-')}={value}" for name, value in flags.items()),
    ]
    done = subprocess.run(command, cwd=_TOP, stdout=subprocess.PIPE, check=True, timeout=_TIMEOUT)
    found: JSON = json.loads(done.stdout)
    return found


def _row(result: JSON) -> Sequence[str]:
    spread, plain = Spread.of(result["decide_ns"]), Spread.of(result["plain_ns"])
    return (
        f"{result['nodes']}, {result['sharers']}",
        *spread.cells(MICROSECOND, 0),
        f"{Spread.of(result['cpu_ns']).p99 / MICROSECOND:.0f}",
        f"{Spread.of(result['booked_ns']).p99 / MICROSECOND:.0f}",
        f"{result['rss'] / MIB:.0f}",
        f"{plain.p50 / MICROSECOND:.0f}",
        f"{plain.p50 / spread.p50:.0f} x",
    )


def _per_second(result: JSON) -> float:
    """Decisions a second, each with its booking, a release, and its part of the node changes."""
    return float(len(result["decide_ns"]) / result["churn_seconds"])


def _values(result: JSON) -> JSON:
    spread, plain = Spread.of(result["decide_ns"]), Spread.of(result["plain_ns"])
    refusals = [ns for kind in result["refusals"] for ns in kind["ns"]]
    return {
        "nodes": result["nodes"],
        "sharers": result["sharers"],
        "shapes": result["shapes"],
        "p50_us": f"{spread.p50 / MICROSECOND:.0f}",
        "p99_us": f"{spread.p99 / MICROSECOND:.0f}",
        "max_us": f"{spread.most / MICROSECOND:.0f}",
        "cpu_p99_us": f"{Spread.of(result['cpu_ns']).p99 / MICROSECOND:.0f}",
        "no_p99_us": f"{Spread.of(refusals).p99 / MICROSECOND:.0f}",
        "per_s": f"{_per_second(result):.0f}",
        "rss_mib": f"{result['rss'] / MIB:.0f}",
        "plain_ratio": f"{plain.p50 / spread.p50:.0f}",
    }
