"""
The effect of the constants of `value`: varies each one by itself, on a few lists.

A constant whose neighbours do as well is no accident of the lists that it was chosen on. They stand in the modules that
decide; this development tool is the one place that sets them, for the time of a run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from types import ModuleType
from typing import Any

from allocator.scoring import constants
from allocator.scoring.constants import HALF_LIFE, ONE
from benchmarks.placement import replays
from benchmarks.placement.replaying import at
from benchmarks.placement.results import Results

LISTS = ("default", "cpu250", "gpushare100", "gpuspec33", "multigpu50")
POLICY = "value"


@dataclass(frozen=True, slots=True)
class Constant:
    """One constant: its meaning, its place, and its values by a label; its own value is among them."""

    what: str
    module: ModuleType
    name: str
    values: Mapping[str, Any]


def _percent_of_a_card(*percent: float) -> dict[str, int]:
    return {f"{each:g}": round(ONE * each / 100) for each in percent}


CONSTANTS = (
    Constant("step of worth, % of a card", constants, "STEP", _percent_of_a_card(0.1, 0.5, 1, 2, 4, 8, 16)),
    Constant("step of worth with CPU, %", constants, "STEP_OF_PRESSED", _percent_of_a_card(5, 10, 15, 20, 30, 60)),
    Constant("what such a step counts, %", constants, "SHARE_OF_PRESSED", _percent_of_a_card(0, 2.5, 5, 7.5, 15, 30)),
    Constant(
        "a level of fragmentation, % of a card", constants, "PER_LEVEL", _percent_of_a_card(0, 0.05, 0.1, 0.2, 0.4, 1)
    ),
    Constant(
        "a scarce card, %", constants, "PER_SCARCE_CARD", {f"{each}": (each, 100) for each in (0, 1, 2, 3, 4, 6, 12)}
    ),
    Constant(
        "CPU's part in worth, at most, %", constants, "PRESSED", {f"{each}": each / 100 for each in (0, 5, 10, 15, 20)}
    ),
)
OWN = {
    constant.what: next(
        label for label, value in constant.values.items() if value == getattr(constant.module, constant.name)
    )
    for constant in CONSTANTS
}
"""The label of the value that decides, by constant."""
Found = Mapping[str, Mapping[str, Mapping[str, float]]]
"""Per constant, label and list: allocated % at load 100, mean over the seeds."""


@contextmanager
def varied(constant: Constant, label: str) -> Iterator[None]:
    """The constant at that value."""
    before = getattr(constant.module, constant.name)
    setattr(constant.module, constant.name, constant.values[label])
    try:
        yield
    finally:
        setattr(constant.module, constant.name, before)


def measure(
    folder: Path,
    lists: Sequence[str],
    seeds: Sequence[int],
    results: Results,
    constants: Sequence[Constant] = CONSTANTS,
) -> Iterator[tuple[str, str, str, float]]:
    """Constant, label, list and mean, as they are done. Raises `trace.NoTrace`."""
    for constant in constants:
        for label in constant.values:
            with varied(constant, label):
                for name in lists:
                    kept = results if label == OWN[constant.what] else results.named(f"{constant.name}={label}")
                    runs = replays.replay(folder, name, [POLICY], seeds, HALF_LIFE, kept)
                    yield constant.what, label, name, fmean(at(run, 100) for _, _, run in runs)


def table(found: Found) -> str:
    """A row per constant and value: the difference to the value that decides, in points, per list."""
    lines = ["value at load 100 with one constant changed: points more or less than as it is"]
    for what, by_label in found.items():
        base = by_label[OWN[what]]
        lines += ["", f"{what:<40}" + "".join(f"{name:>13}" for name in base)]
        for label, by_list in by_label.items():
            if label == OWN[what]:
                cells = "".join(f"{mean:>13.2f}" for mean in by_list.values())
            else:
                cells = "".join(f"{mean - base[name]:>+13.2f}" for name, mean in by_list.items())
            lines.append(f"  {label:<38}{cells}")
    return "\n".join(lines)
