"""
Collectors made from metric specs, in a registry of their own.

A program makes one `Metrics` of the specs it exposes and gets its collectors by spec, so that it cannot write a metric
that is not declared. Must not: use the library's global registry (two programs in one test process would clash) or its
multiprocess mode (which drops gauges' functions).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from contract.metrics.spec import MetricSpec

T = TypeVar("T", Counter, Gauge, Histogram)


Rows = Callable[[], Iterable[tuple[tuple[str, ...], float]]]
"""Reads a gauge or counter of many rows: for each the labels' values, in the order of the spec, and the value."""


class Metrics:
    """One registry with one collector for each spec."""

    content_type: str = CONTENT_TYPE_LATEST

    def __init__(self, specs: Iterable[MetricSpec]) -> None:
        # Otherwise each counter has a second series, which is not declared.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry(auto_describe=True)
        self._rows: list[tuple[MetricSpec, Rows]] = []
        self._made = {spec.name: _collector(spec, self.registry) for spec in specs}

    def counter(self, spec: MetricSpec) -> Counter:
        """The counter declared as `spec`. Raises KeyError where this program does not expose it."""
        return self._of(spec, Counter)

    def gauge(self, spec: MetricSpec) -> Gauge:
        """The gauge declared as `spec`. Raises KeyError where this program does not expose it."""
        return self._of(spec, Gauge)

    def histogram(self, spec: MetricSpec) -> Histogram:
        """The histogram declared as `spec`. Raises KeyError where this program does not expose it."""
        return self._of(spec, Histogram)

    def rows(self, spec: MetricSpec, read: Rows) -> None:
        """
        Read the gauge or counter at each scrape and store nothing.

        The 120,000 rows of 5,000 nodes with 8 GPUs take 100 MiB and 1.2 s of each scrape as collectors; as rows 0.1 s.
        """
        made = self._made[spec.name]
        if isinstance(made, Histogram):
            raise TypeError(f"metric {spec.name} is a histogram, which has no rows")
        self.registry.unregister(made)
        self._rows.append((spec, read))

    def render(self) -> bytes:
        """All metrics in the text format, to be served as `content_type`."""
        return b"".join((generate_latest(self.registry), *(_text(spec, read) for spec, read in self._rows)))

    def _of(self, spec: MetricSpec, kind: type[T]) -> T:
        made = self._made[spec.name]
        if not isinstance(made, kind):
            raise TypeError(f"metric {spec.name} is declared as a {spec.kind}, asked for as a {kind.__name__}")
        return made


def _text(spec: MetricSpec, read: Rows) -> bytes:
    """A gauge or counter in the text format (Prometheus, "Exposition formats"); `help` is text of ours on one line."""
    labels_form = ",".join(f'{label}="%s"' for label in spec.labels)
    form = f"{spec.name}{{{labels_form}}} %r\n"
    lines = [f"# HELP {spec.name} {spec.help}\n# TYPE {spec.name} {spec.kind}\n"]
    lines += [form % (*map(_escaped, labels), float(value)) for labels, value in read()]
    return "".join(lines).encode()


def _escaped(text: str) -> str:
    if '"' in text or "\\" in text or "\n" in text:
        return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
    return text


def _collector(spec: MetricSpec, registry: CollectorRegistry) -> Counter | Gauge | Histogram:
    if spec.kind == "histogram":
        return Histogram(spec.name, spec.help, spec.labels, registry=registry, buckets=spec.buckets)
    kind = Counter if spec.kind == "counter" else Gauge
    return kind(spec.name, spec.help, spec.labels, registry=registry)
