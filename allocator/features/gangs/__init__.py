"""
Gangs: pods that must start together get their shares in one scheduling cycle, all of them or none.
"""

from __future__ import annotations

from allocator.features.base import Feature, Running, Shell
from allocator.features.gangs.part import GangScheduling
from allocator.features.gangs.settings import GangSettings
from contract.metrics import allocator as specs


def _run(shell: Shell, chosen: GangSettings, inside: GangScheduling) -> Running:
    def counted() -> tuple[tuple[tuple[str, ...], float], ...]:
        waiting, begun = shell.controller.locked(inside.counts)
        return (("waiting",), waiting), (("begun",), begun)

    shell.metrics.rows(specs.GANGS, counted)
    return Running()


FEATURE = Feature(
    name="gangs",
    group="gangs",
    settings=GangSettings,
    inside=GangScheduling,
    part=GangScheduling.part,
    run=_run,
    enabled=lambda chosen: chosen.enabled,
)
