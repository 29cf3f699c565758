"""
The tables of a benchmark: the measured figures, one row per policy, and one machine-readable line per list. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev

from benchmarks.placement.departures import Served
from benchmarks.placement.replaying import LOADS, Run, at
from benchmarks.placement.trace import BESIDE

Runs = Mapping[str, Mapping[int, Run]]
"""Per policy the run of each seed."""

OURS, PUBLISHED, PUBLISHED_ONLINE = "value", "fragmentation", "fragmentation-online"
SHOWN = {
    OURS: "value online",
    "value-known": "value known",
    PUBLISHED_ONLINE: "FGD online",
    PUBLISHED: "FGD known",
}
EVEN = 0.1
"""Points between which two policies do equally well."""


def table(name: str, runs: Runs) -> str:
    """One list: a row per policy."""
    head = ["policy", "seeds", *(f"@{load}" for load in LOADS), "±", "unallocated", "fragmented", "decisions/s"]
    rows = [head, *(_row(policy, list(by_seed.values())) for policy, by_seed in runs.items() if by_seed)]
    widths = [max(len(row[at]) for row in rows) for at in range(len(head))]
    lines = ["  ".join(_padded(row, widths)) for row in rows]
    return "\n".join([f"list {name}: allocated GPU % by the load that has arrived", *lines])


def departures(served: Mapping[str, Sequence[Served]]) -> str:
    """The replay with departures: a row per policy."""
    rows = [["policy", "seeds", "served %", "mean wait h", "p95 wait h", "lost %", "evictions"]]
    for policy, runs in served.items():
        parts = [100 * run.hours / run.offered for run in runs]
        waits = [fmean(run.mean_wait for run in runs), fmean(run.p95_wait for run in runs)]
        lost = [fmean(100 * run.lost / run.offered for run in runs)]
        figures = (f"{figure:.2f}" for figure in (fmean(parts), *waits, *lost))
        rows.append([policy, str(len(runs)), *figures, f"{fmean(run.evictions for run in runs):.0f}"])
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    title = "list default with departures: card hours served of those asked for, and waits"
    return "\n".join([title, *("  ".join(_padded(row, widths)) for row in rows)])


def _padded(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    return [
        cell.rjust(width) if at else cell.ljust(width) for at, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]


def _row(policy: str, runs: Sequence[Run]) -> list[str]:
    full = [at(run, 100) for run in runs]
    error = stdev(full) / len(full) ** 0.5 if len(full) > 1 else 0.0
    return [
        policy,
        str(len(runs)),
        *(f"{fmean(at(run, load) for run in runs):.2f}" for load in LOADS),
        f"{error:.2f}",
        f"{fmean(run.unallocated for run in runs):.0f}",
        f"{fmean(run.fragmented for run in runs):.2f}",
        f"{sum(run.decisions for run in runs) / sum(run.seconds for run in runs):.0f}",
    ]


def gains(runs: Runs, peer: str = PUBLISHED) -> list[float]:
    """The gain of ours over the peer in allocated GPUs at load 100, in points, seed by seed."""
    ours, published = runs.get(OURS, {}), runs.get(peer, {})
    return [at(ours[seed], 100) - at(published[seed], 100) for seed in ours if seed in published]


def peers(lists: Mapping[str, Runs]) -> str:
    """
    Both policies that learn, online and knowing the list, on every list; then wins, ties and losses of ours.

    Each gain is paired, over the seeds that both were run with; less than `EVEN` points either way is a tie.
    """
    rows = [["list", *SHOWN.values(), "binpack", "on FGD online", "on FGD known", ""]]
    counts = {PUBLISHED_ONLINE: Counter[str](), PUBLISHED: Counter[str]()}
    for name, runs in lists.items():
        if not runs.get(OURS):
            continue
        row = [name, *(_mean(runs[policy]) if runs.get(policy) else "" for policy in (*SHOWN, "binpack"))]
        verdicts = []
        for peer, count in counts.items():
            gain = fmean(found) if (found := gains(runs, peer)) else None
            row.append("" if gain is None else f"{gain:+.2f}")
            verdicts.append("" if gain is None else "tie" if abs(gain) < EVEN else "win" if gain > 0 else "loss")
            count[verdicts[-1]] += 1
        rows.append([*row, " ".join(verdicts)])
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    title = "all lists at load 100; value online against FGD online and against FGD that knows the list"
    totals = [
        f"value online against {SHOWN[peer]}: {count['win']} wins, {count['tie']} ties, {count['loss']} losses"
        for peer, count in counts.items()
    ]
    return "\n".join([title, *("  ".join(_padded(row, widths)) for row in rows), *totals])


def summary(lists: Mapping[str, Runs]) -> str:
    """The gains of every list, and the last line, for machines."""
    lines = ["gain over the published policy at load 100, in points: mean (worst seed)"]
    parts = []
    for name, runs in lists.items():
        found = gains(runs)
        if found:
            lines.append(f"  {name:<12} {fmean(found):+.2f} ({min(found):+.2f})")
            parts.append(f"{name}@100 ours={_mean(runs[OURS])} fgd={_mean(runs[PUBLISHED])}")
    published = [runs for name, runs in lists.items() if name not in BESIDE]
    every = [fmean(gains(runs)) for runs in published if gains(runs)]
    if every:
        worst = min(min(gains(runs)) for runs in published if gains(runs))
        lines.append(f"  {'all':<12} {fmean(every):+.2f} ({worst:+.2f})")
    return "\n".join([*lines, "quality " + " ".join(parts)])


def _mean(by_seed: Mapping[int, Run]) -> str:
    return f"{fmean(at(run, 100) for run in by_seed.values()):.2f}"
