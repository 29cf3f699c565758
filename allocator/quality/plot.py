"""
The figures of a benchmark as SVG, by matplotlib, which only the development extras bring.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean

from allocator.quality.replaying import at
from allocator.quality.report import OURS, PUBLISHED, Runs, gains

_LOADS = range(80, 131)


def draw(lists: Mapping[str, Runs], file: Path) -> None:
    """Unallocated GPUs over the load of the first list, and the gain at load 100 of every list."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "gpufraction"  # the same figures give the same file
    from matplotlib import pyplot

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
    figure.tight_layout()
    figure.savefig(file, metadata={"Date": None})
    pyplot.close(figure)
