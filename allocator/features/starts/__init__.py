"""
Engines that start one at a time: a pod with `gpufraction.io/start: alone` gets no share of a GPU on which another such
pod is starting.
"""

from __future__ import annotations

from allocator.features.base import Feature, Running, Shell
from allocator.features.starts.part import StartScheduling
from allocator.features.starts.settings import StartSettings
from contract.metrics import allocator as specs


def _run(shell: Shell, chosen: StartSettings, inside: StartScheduling) -> Running:
    def counted() -> tuple[tuple[tuple[str, ...], float], ...]:
        starting, overdue = shell.controller.locked(inside.counts)
        return (("starting",), starting), (("overdue",), overdue)

    shell.metrics.rows(specs.STARTING_PODS, counted)
    return Running()


FEATURE = Feature(
    name="starts",
    group="starts",
    settings=StartSettings,
    inside=StartScheduling,
    part=StartScheduling.part,
    run=_run,
)
