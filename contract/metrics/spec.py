"""
What a metric is, as data: name, kind, labels, help, buckets, and the program that exposes it.

The rules of naming are checked where a metric is declared, so that a wrong one never reaches a dashboard. Must not:
know any one metric.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PREFIX = "gpufraction_"
Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric: its full name, what it is, its label names, and its help text.

    buckets: upper bounds of a histogram in the metric's unit, ascending; empty for the other kinds.
    program: which of the programs exposes it.
    """

    name: str
    kind: Kind
    help: str
    program: Literal["webhook", "allocator", "nodeagent"]
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not self.name.startswith(PREFIX):
            raise ValueError(f"metric {self.name!r}: expected a name that starts with {PREFIX}")
        if (self.kind == "counter") != self.name.endswith("_total"):
            raise ValueError(f"metric {self.name!r}: a counter, and nothing else, ends in _total")
        if (self.kind == "histogram") != bool(self.buckets) or list(self.buckets) != sorted(set(self.buckets)):
            raise ValueError(f"metric {self.name!r}: a histogram, and nothing else, has ascending buckets")
