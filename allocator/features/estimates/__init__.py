"""
Estimates when a waiting pod will probably start, from the running times of pods of the same owner.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from allocator.cache.podinfo import pod_event
from allocator.features.base import Feature, Running, Shell
from allocator.features.estimates.part import Estimated, EstimatesPart, PodFinished, Scored
from allocator.features.estimates.settings import EstimateSettings
from contract.metrics import allocator as specs

JSON = Mapping[str, Any]
_ENDED = ("Succeeded", "Failed")


def finished(pod: JSON) -> PodFinished | None:
    """How long a finished pod held its share, if its status contains that."""
    status = pod.get("status")
    if not isinstance(status, Mapping) or status.get("phase") not in _ENDED:
        return None
    info = pod_event(pod).info
    if info is None or info.ended is None or not 0 < info.held_since <= info.ended.until:
        return None
    return PodFinished(info.uid, info.key, info.ended.until - info.held_since)


def _run(shell: Shell, chosen: EstimateSettings, inside: EstimatesPart) -> Running:
    counted = shell.metrics.counter(specs.START_ESTIMATES)
    for outcome in ("by-then", "sooner", "later"):
        counted.labels(outcome=outcome)

    def seen(pod: JSON) -> None:
        event = finished(pod)
        if event is not None:
            shell.controller.handle(event)

    def estimate(stop: threading.Event) -> None:
        while not stop.wait(chosen.every):
            question = shell.controller.locked(inside.question)
            if question is not None:
                shell.controller.handle(question.answer())

    return Running(
        threads={"estimates": estimate},
        seen=seen,
        carries={Scored: lambda scored: counted.labels(outcome=scored.outcome).inc()},
    )


FEATURE = Feature(
    name="estimates",
    group="estimates",
    settings=EstimateSettings,
    inside=EstimatesPart,
    part=EstimatesPart.part,
    run=_run,
    enabled=lambda settings: settings.enabled,
)

__all__ = ["FEATURE", "Estimated"]
