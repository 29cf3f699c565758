"""
The cost of a decision by cluster size and policy: a table, the fitted exponents, and a plot for `docs/benchmarks.md`.

`python -m benchmarks.decisions` measures each size and policy in a process of its own; no tenant chooses a policy here,
so that every decision is by the one that the row names. The figures are processor time of the deciding thread, because
on a machine that does other work the clock shows how busy the machine is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.decisions.report import measure
from benchmarks.figures import MIB, MICROSECOND, Spread, exponent, table

JSON = dict[str, Any]
SIZES = (100, 500, 1_000, 2_000, 5_000, 10_000, 20_000)
"""Nodes of 8 GPUs."""
SHARERS_PER_NODE = 20
_SHOWN = 5_000
"""The size that the last line reports."""
_DECISIONS = 2_000
PLOT = Path(__file__).resolve().parents[2] / "docs" / "benchmark-scale.svg"


def scale(sizes: Sequence[int] = SIZES, decisions: int = _DECISIONS, plot: Path | None = PLOT) -> Iterator[str]:
    """The default policy, then `binpack`, at every size; the last text is the line for programs, of the default."""
    found: dict[str, list[JSON]] = {}
    for chosen in ({}, {"policy": "binpack"}):
        results = [
            measure(nodes, nodes * SHARERS_PER_NODE, decisions=decisions, refusals=0, plain=0, no_choice=1, **chosen)
            for nodes in sizes
        ]
        policy = results[0]["policy"]
        found[policy] = results
        yield _table(policy, results)
        yield _growth(policy, results)
    if plot is not None:
        draw(found, plot)
        yield f"plot: {plot}"
    yield _line(next(iter(found.values())))


def _table(policy: str, results: Sequence[JSON]) -> str:
    return table(
        f"{policy}: {SHARERS_PER_NODE} sharers a node, {results[0]['shapes']} request shapes, {results[0]['decisions']}"
        " decisions each; processor's time",
        ("nodes x 8", "p50 us", "p99 us", "max us", "by clock", "new tables us", "RSS MiB"),
        [
            (
                str(result["nodes"]),
                *Spread.of(result["cpu_ns"]).cells(MICROSECOND, 0),
                "{} / {}".format(*Spread.of(result["decide_ns"]).cells(MICROSECOND, 0)),
                f"{max(result['adopt_cpu_ns']) / MICROSECOND:.0f}" if result["adopt_cpu_ns"] else "-",
                f"{result['rss'] / MIB:.0f}",
            )
            for result in results
        ],
    )


def _growth(policy: str, results: Sequence[JSON]) -> str:
    spreads = [(result["nodes"], Spread.of(result["cpu_ns"])) for result in results]
    p50, p99 = (exponent((nodes, getattr(spread, name)) for nodes, spread in spreads) for name in ("p50", "p99"))
    largest = exponent((nodes, spread.p99) for nodes, spread in spreads[-3:])
    return f"{policy}: fitted exponent p50 {p50:.2f}, p99 {p99:.2f}, p99 of the last three {largest:.2f} (1 is linear)"


def _line(results: Sequence[JSON]) -> str:
    result = next((each for each in results if each["nodes"] == _SHOWN), results[-1])
    spread = Spread.of(result["cpu_ns"])
    p50, p99, rss = spread.p50 / MICROSECOND, spread.p99 / MICROSECOND, result["rss"] / MIB
    return f"scale nodes={result['nodes']} p50_us={p50:.0f} p99_us={p99:.0f} rss_mib={rss:.0f}"


def draw(found: Mapping[str, Sequence[JSON]], file: Path) -> None:
    """p50 and p99 over the size of the cluster, and the memory of the process."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "gpufraction"  # the same figures give the same file
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(12, 4.5), width_ratios=(3, 2))
    for number, (policy, results) in enumerate(found.items()):
        sizes = [result["nodes"] for result in results]
        spreads = [Spread.of(result["cpu_ns"]) for result in results]
        for name, style in (("p50", "--"), ("p99", "-")):
            values = [getattr(spread, name) / MICROSECOND for spread in spreads]
            left.loglog(sizes, values, style, color=f"C{number}", marker=".", label=f"{policy}, {name}")
        right.plot(sizes, [result["rss"] / MIB for result in results], color=f"C{number}", marker=".", label=policy)
    left.set(title="one decision", xlabel="nodes of 8 GPUs", ylabel="processor's time, microseconds")
    right.set(title="memory of the process", xlabel="nodes of 8 GPUs", ylabel="MiB", ylim=(0, None))
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(file, metadata={"Date": None})
    pyplot.close(figure)
