"""
The administrator's settings of pods that start alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from runtime.settings import setting


@dataclass(frozen=True)
class StartSettings:
    """Pods that start alone on their GPU."""

    within: float = setting(
        300.0,
        "Maximum time for which a pod with gpufraction.io/start: alone that is not ready closes its GPU to other such "
        "pods: from the start of its containers, or from its placement while none has started. After that, the pod "
        "gets an Event, and the next one may start.",
        unit="duration",
        minimum=1,
    )
