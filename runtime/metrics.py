"""
Collectors made from metric specs, in a registry of their own.

A program makes one `Metrics` of the specs it exposes and asks it for a collector by spec, so that a metric
that is not declared cannot be written. Must not: use the library's global registry (two programs in one
test process would clash) or its multiprocess mode (which drops gauges' functions).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

T = TypeVar("T", Counter, Gauge, Histogram)


class Spec(Protocol):
    """What `contract.metrics.MetricSpec` is; named here so that a test may bring its own."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def help(self) -> str: ...
    @property
    def labels(self) -> tuple[str, ...]: ...
    @property
    def buckets(self) -> tuple[float, ...]: ...


class Metrics:
    """One registry with one collector for each spec."""

    content_type: str = CONTENT_TYPE_LATEST

    def __init__(self, specs: Iterable[Spec]) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        self._made = {spec.name: _collector(spec, self.registry) for spec in specs}

    def counter(self, spec: Spec) -> Counter:
        """The counter declared as `spec`. Raises KeyError where this program does not expose it."""
        return self._of(spec, Counter)

    def gauge(self, spec: Spec) -> Gauge:
        """The gauge declared as `spec`. Raises KeyError where this program does not expose it."""
        return self._of(spec, Gauge)

    def histogram(self, spec: Spec) -> Histogram:
        """The histogram declared as `spec`. Raises KeyError where this program does not expose it."""
        return self._of(spec, Histogram)

    def render(self) -> bytes:
        """All metrics in the text format, to be served as `content_type`."""
        return generate_latest(self.registry)

    def _of(self, spec: Spec, kind: type[T]) -> T:
        made = self._made[spec.name]
        if not isinstance(made, kind):
            raise TypeError(f"metric {spec.name} is declared as a {spec.kind}, asked for as a {kind.__name__}")
        return made


def _collector(spec: Spec, registry: CollectorRegistry) -> Counter | Gauge | Histogram:
    if spec.kind == "counter":
        return Counter(spec.name, spec.help, spec.labels, registry=registry)
    if spec.kind == "gauge":
        return Gauge(spec.name, spec.help, spec.labels, registry=registry)
    if spec.kind == "histogram":
        return Histogram(spec.name, spec.help, spec.labels, registry=registry, buckets=spec.buckets)
    raise ValueError(f"metric {spec.name}: kind {spec.kind!r}, expected counter, gauge or histogram")
