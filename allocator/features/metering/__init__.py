"""
Metering: counts card hours by card model and namespace, for billing and usage figures.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from allocator.features.base import Feature, Running, Shell, nothing
from allocator.features.metering.hours import CardHours
from allocator.features.metering.meter import Meter
from allocator.features.metering.worker import MeteringWorker
from runtime.settings import setting


@dataclass(frozen=True)
class MeteringSettings:
    """Card hours."""

    card_hours_after: float = setting(
        60.0,
        "Time for which a new series of GPU hours reads 0 before it shows what was counted: at least twice "
        "Prometheus' scrape interval, since Prometheus does not count the value that a series has when it first "
        "appears.",
        unit="duration",
        minimum=0,
    )


def _run(shell: Shell, chosen: MeteringSettings, inside: None) -> Running:
    worker = MeteringWorker(
        controller=shell.controller,
        meter=Meter(shell.limits.capacity, dialect=shell.dialects.known),
        clock=time.monotonic,
        covered=shell.covered,
        faulted=shell.faulted,
    )
    CardHours(shell.metrics, worker.counted, new=chosen.card_hours_after, clock=time.monotonic)
    return Running(threads={"metering": worker.run})


FEATURE = Feature(
    name="metering",
    settings=MeteringSettings,
    inside=nothing,
    run=_run,
)
