"""
Service levels: how long pods wait for their share, and how many get it within the promised time.
"""

from __future__ import annotations

from allocator.features.base import Feature, Running, Shell
from allocator.features.servicelevels.levels import Names, ServiceJudgement, Started
from allocator.features.servicelevels.part import ServiceLevelsPart
from allocator.features.servicelevels.settings import ServiceLevelSettings
from contract.metrics import allocator as specs


def _run(shell: Shell, chosen: ServiceLevelSettings, inside: ServiceLevelsPart) -> Running:
    seconds = shell.metrics.histogram(specs.TIME_TO_SHARE)
    due = shell.metrics.counter(specs.SHARES_DUE)
    for verdict in ("in-time", "late"):
        due.labels(verdict=verdict)  # from 0 on, because Prometheus ignores the first value of a series
    names = Names()

    def started(found: Started) -> None:
        seconds.labels(namespace=names.shown(found.namespace), priority=found.band).observe(found.seconds)

    def judged(found: ServiceJudgement) -> None:
        due.labels(verdict="late" if found.late else "in-time").inc()

    return Running(carries={Started: started, ServiceJudgement: judged})


FEATURE = Feature(
    name="service_levels",
    group="service_levels",
    settings=ServiceLevelSettings,
    inside=ServiceLevelsPart,
    part=ServiceLevelsPart.part,
    run=_run,
)
