"""
Every metric of the three programs, as data.

Dashboards, alerts and other people's queries depend on these names and labels, so they are contract: they are declared
only here, and `runtime.metrics` makes collectors of them. Names follow
https://prometheus.io/docs/practices/naming/ (base units, `_total` for counters, which is written out).

Must not: hold values, or import a metrics library.
"""

from __future__ import annotations

from contract.metrics import allocator, nodeagent, webhook
from contract.metrics.spec import MetricSpec

METRICS: tuple[MetricSpec, ...] = (*webhook.PROGRAM.metrics, *allocator.PROGRAM.metrics, *nodeagent.PROGRAM.metrics)


def metrics_of(program: str) -> tuple[MetricSpec, ...]:
    """The metrics that one program exposes."""
    return tuple(spec for spec in METRICS if spec.program == program)
