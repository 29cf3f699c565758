"""
Canaries: pods that try to exceed their share on idle cards, so that agents publish only proven levels.
"""

from __future__ import annotations

from allocator.features.base import Feature, Running, Shell
from allocator.features.canary.part import CanaryPart
from allocator.features.canary.settings import CanarySettings
from allocator.features.canary.worker import CanaryWorker
from allocator.scheduler.parts import Core
from contract.metrics import allocator as specs


def _inside(core: Core, chosen: CanarySettings) -> CanaryPart:
    return CanaryPart(core)


def _run(shell: Shell, chosen: CanarySettings, inside: CanaryPart) -> Running:
    outcomes = shell.metrics.counter(specs.CANARIES)
    worker = CanaryWorker(
        shell.kube,
        shell.controller,
        inside,
        shell.limits,
        counted=lambda outcome: outcomes.labels(outcome=outcome).inc(),
    )
    return Running(threads={"canary": worker.run})


FEATURE = Feature(
    name="canary",
    group="canary",
    settings=CanarySettings,
    inside=_inside,
    run=_run,
    enabled=lambda chosen: chosen.enabled,
)
