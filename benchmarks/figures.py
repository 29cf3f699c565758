"""
The arithmetic of the benchmark and the form in which it prints: percentiles, growth, tables, machine-readable lines.

Pure. Times come in as nanoseconds, since that is what clocks give, and are shown in the unit that a section chooses.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

WIDTH = 120
"""Columns that every table fits in."""
MIB = 1 << 20


def percentile(values: Sequence[float], share: float) -> float:
    """
    The nearest-rank percentile: the least value that is not exceeded by at least `share` (0 to 1) of all.

    It is always one of the values, so it never invents a latency that did not occur. Raises ValueError without values.
    """
    if not values or not 0 <= share <= 1:
        raise ValueError(f"the {share} percentile of {len(values)} values: give values, and a share from 0 to 1")
    rank = math.ceil(share * len(values) - 1e-9)  # 0.07 * 100 is a little over 7 in floating point
    return sorted(values)[max(rank, 1) - 1]


@dataclass(frozen=True, slots=True)
class Spread:
    """The summary of many latencies, in nanoseconds."""

    count: int
    p50: float
    p99: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Raises ValueError without values."""
        return cls(len(values), percentile(values, 0.5), percentile(values, 0.99), max(values))

    def cells(self, unit: float, digits: int = 2) -> tuple[str, str, str]:
        """p50, p99 and the largest, in units of `unit` nanoseconds."""
        return tuple(f"{value / unit:.{digits}f}" for value in (self.p50, self.p99, self.most))  # type: ignore[return-value]


MICROSECOND, MILLISECOND = 1e3, 1e6


def exponent(points: Iterable[tuple[float, float]]) -> float:
    """
    How a cost grows with a size: the k of `cost = c * size ** k` that fits best (least squares over the logarithms).

    1 is linear. Raises ValueError for fewer than two sizes, or anything that has no logarithm.
    """
    logs = [(math.log(size), math.log(cost)) for size, cost in points]
    if len({x for x, _ in logs}) < 2:
        raise ValueError("a growth needs at least two different sizes")
    middle_x = sum(x for x, _ in logs) / len(logs)
    middle_y = sum(y for _, y in logs) / len(logs)
    above = sum((x - middle_x) * (y - middle_y) for x, y in logs)
    return above / sum((x - middle_x) ** 2 for x, _ in logs)


def table(title: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of fixed width: the first column to the left, the others to the right. Raises ValueError if too wide."""
    lines = [tuple(header), *(tuple(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    printed = [
        "  ".join(cell.ljust(width) if not column else cell.rjust(width) for column, (cell, width) in enumerate(pairs))
        for pairs in (tuple(zip(line, widths, strict=True)) for line in lines)
    ]
    rule = "-" * max(len(line) for line in printed)
    if len(rule) > WIDTH:
        raise ValueError(f"{title}: {len(rule)} columns, at most {WIDTH} are printed")
    return "\n".join([title, printed[0].rstrip(), rule, *(line.rstrip() for line in printed[1:])])


def machine_line(section: str, values: Mapping[str, object]) -> str:
    """`bench SECTION key=value ...`, for programs that follow the figures over time."""
    return " ".join(["bench", section, *(f"{key}={value}" for key, value in values.items())])
