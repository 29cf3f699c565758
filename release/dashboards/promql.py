"""
PromQL made from the registry of metrics: a query can name only metrics and labels that are declared.

One Prometheus may have many clusters, with nodes and namespaces of the same names. So each query is of the clusters
chosen on the page, and each aggregation keeps them apart. Without the label `cluster` nothing changes. Must not: know
a dashboard.
"""

from __future__ import annotations

from contract.metrics.allocator import ALLOCATOR_OPTIONS_REFUSED, LEADER
from contract.metrics.spec import MetricSpec

OF_TARGET = "node"
"""The label that the scrape configuration gives every series of an agent."""
CLUSTER = "cluster"
"""The label that distinguishes clusters, where there is one."""
CHOSEN = f'{CLUSTER}=~"${CLUSTER}"'
RATE = "$__rate_interval"
"""The shortest span over which Grafana can show a rate at this zoom."""
RANGE = "$__range"
"""The time that the page shows."""
_OF_EACH_REPLICA = (LEADER, ALLOCATOR_OPTIONS_REFUSED)
"""Gauges of the allocator that describe the replica, not the cluster."""


def series(spec: MetricSpec, where: str = "") -> str:
    """
    The series of a metric, of the leader alone for the allocator's gauges.

    Each replica of the allocator exposes its own view, and the leader's is the one that counts.
    Raises ValueError for a label in `where` that the metric does not have.
    """
    for matcher in filter(None, where.split(",")):
        _has(spec, matcher.partition("=")[0].strip("!~ "))
    named = named_series(spec.name, where)
    if spec.program == "allocator" and spec.kind == "gauge" and spec not in _OF_EACH_REPLICA:
        return f"({named} and on ({CLUSTER}, instance) ({named_series(LEADER.name)} == 1))"
    return named


def named_series(name: str, where: str = "") -> str:
    """A series by its name, a recorded one too, of the chosen clusters."""
    return f"{name}{{{', '.join(filter(None, (CHOSEN, where)))}}}"


def over(function: str, spec: MetricSpec, *by: str, where: str = "") -> str:
    """An aggregation of a gauge by labels of its own: `sum by (node) (...)`."""
    return _aggregated(function, series(spec, where), spec, by)


def rate(spec: MetricSpec, *by: str, where: str = "") -> str:
    """A counter's increase in a second, over all replicas."""
    return _aggregated("sum", f"rate({series(spec, where)}[{RATE}])", spec, by)


def increase(spec: MetricSpec, *by: str, where: str = "") -> str:
    """A counter's increase in a step of the graph, over all replicas."""
    return _aggregated("sum", f"increase({series(spec, where)}[{RATE}])", spec, by)


def hours(spec: MetricSpec, *by: str, where: str = "") -> str:
    """The increase of a counter of seconds in the time that the page shows, in hours, over all replicas."""
    return f"{_aggregated('sum', f'increase({series(spec, where)}[{RANGE}])', spec, by)} / 3600"


def quantile(part: float, spec: MetricSpec) -> str:
    """The time under which that part of a histogram's observations stayed."""
    return f"histogram_quantile({part}, sum by ({CLUSTER}, le) (rate({named_series(f'{spec.name}_bucket')}[{RATE}])))"


def mean(spec: MetricSpec) -> str:
    """The mean of a histogram's observations."""
    parts = (f"sum by ({CLUSTER}) (rate({named_series(f'{spec.name}_{part}')}[{RATE}]))" for part in ("sum", "count"))
    return " / ".join(parts)


def _aggregated(function: str, inner: str, spec: MetricSpec, by: tuple[str, ...]) -> str:
    for label in by:
        _has(spec, label)
    inner = inner if inner.startswith("(") else f"({inner})"
    return f"{function} by ({', '.join((CLUSTER, *by))}) {inner}"


def _has(spec: MetricSpec, label: str) -> None:
    if label not in spec.labels and not (label == OF_TARGET and spec.program == "nodeagent"):
        raise ValueError(f"{spec.name} has no label {label!r}; it has {', '.join(spec.labels) or 'none'}")
