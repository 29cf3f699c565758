"""
A metric as data: name, kind, labels, help, buckets, and the program that exposes it.

A declaration checks the rules of naming, so that a wrong name never reaches a dashboard. Must not: know a particular
metric.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PREFIX = "gpufraction_"
Kind = Literal["counter", "gauge", "histogram"]
ProgramName = Literal["webhook", "allocator", "nodeagent"]


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric: its full name, kind, label names, help text, and the program that exposes it.

    buckets: upper bounds of a histogram in the metric's unit, ascending; empty for the other kinds.
    """

    name: str
    kind: Kind
    help: str
    program: ProgramName
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not self.name.startswith(PREFIX):
            raise ValueError(f"metric {self.name!r}: expected a name that starts with {PREFIX}")
        if (self.kind == "counter") != self.name.endswith("_total"):
            raise ValueError(f"metric {self.name!r}: a counter, and nothing else, ends in _total")
        if (self.kind == "histogram") != bool(self.buckets) or list(self.buckets) != sorted(set(self.buckets)):
            raise ValueError(f"metric {self.name!r}: a histogram, and nothing else, has ascending buckets")


class Program:
    """The metrics of one program, in the order of their declaration."""

    def __init__(self, name: ProgramName) -> None:
        self._name: ProgramName = name
        self.metrics: list[MetricSpec] = []

    def counter(self, name: str, help: str, *, labels: tuple[str, ...] = ()) -> MetricSpec:
        return self._declare(MetricSpec(name, "counter", help, self._name, labels))

    def gauge(self, name: str, help: str, *, labels: tuple[str, ...] = ()) -> MetricSpec:
        return self._declare(MetricSpec(name, "gauge", help, self._name, labels))

    def histogram(
        self, name: str, help: str, *, buckets: tuple[float, ...], labels: tuple[str, ...] = ()
    ) -> MetricSpec:
        return self._declare(MetricSpec(name, "histogram", help, self._name, labels, buckets))

    def _declare(self, spec: MetricSpec) -> MetricSpec:
        self.metrics.append(spec)
        return spec
