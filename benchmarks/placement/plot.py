"""
The figures of a benchmark as SVG, by matplotlib, which only the development extras bring.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.placement.departures import Served
from benchmarks.placement.replaying import at
from benchmarks.placement.report import OURS, PUBLISHED, Runs, gains
from benchmarks.placement.sensitivity import OWN, Found

_LOADS = range(80, 131)


def draw(lists: Mapping[str, Runs], file: Path) -> None:
    """Unallocated GPUs over the load of the first list, and the gain at load 100 of every list."""
    pyplot = _pyplot()
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(12, 4.5), width_ratios=(3, 2))
    first = next(iter(lists))
    for policy, by_seed in lists[first].items():
        free = [100 - fmean(at(run, load) for run in by_seed.values()) for load in _LOADS]
        left.plot(list(_LOADS), free, label=policy, linewidth=2.5 if policy in (OURS, PUBLISHED) else 1)
    left.set(title=f"list {first}", xlabel="load that has arrived, %", ylabel="GPUs not given away, %", ylim=(3, 22))
    left.legend(fontsize=8)
    found = {name: gains(runs) for name, runs in lists.items() if gains(runs)}
    right.barh(list(found), [fmean(each) for each in found.values()])
    right.invert_yaxis()
    right.set(title=f"{OURS} less {PUBLISHED} at load 100", xlabel="points")
    _save(pyplot, figure, file)


def departures(served: Mapping[str, Sequence[Served]], file: Path) -> None:
    """Card hours served and waits of each policy, seed by seed and the mean."""
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(1, 3, figsize=(12, 3.5))
    for panel, title, figures in (
        (axes[0], "card hours served, %", {p: [100 * r.hours / r.offered for r in rs] for p, rs in served.items()}),
        (axes[1], "mean wait, h", {p: [r.mean_wait for r in rs] for p, rs in served.items()}),
        (axes[2], "p95 wait, h", {p: [r.p95_wait for r in rs] for p, rs in served.items()}),
    ):
        panel.barh(list(figures), [fmean(each) for each in figures.values()], alpha=0.5)
        for policy, each in figures.items():
            panel.plot(each, [policy] * len(each), "k|")
        every = [one for each in figures.values() for one in each]
        panel.set(title=title, xlim=(min(every) * 0.95, max(every) * 1.02))
        panel.invert_yaxis()
    _save(pyplot, figure, file)


def sensitivity(found: Found, file: Path) -> None:
    """The effect of each constant on each list: the difference in points to its own value, which a line marks."""
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(2, 3, figsize=(13, 7), sharey=True)
    for panel, (what, by_label) in zip(axes.flat, found.items(), strict=False):
        own = OWN[what]
        for name in by_label[own]:
            panel.plot(
                list(by_label), [each[name] - by_label[own][name] for each in by_label.values()], "o-", label=name
            )
        panel.axvline(list(by_label).index(own), color="grey", linewidth=6, alpha=0.25)
        panel.set(title=what, ylim=(-2, 0.5))
    axes[0, 0].legend(fontsize=8, loc="lower left")
    axes[0, 0].set_ylabel("points at load 100")
    axes[1, 0].set_ylabel("points at load 100")
    _save(pyplot, figure, file)


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "gpufraction"  # the same figures give the same file
    from matplotlib import pyplot

    return pyplot


def _save(pyplot: Any, figure: Any, file: Path) -> None:
    figure.tight_layout()
    figure.savefig(file, metadata={"Date": None})
    pyplot.close(figure)
