"""
What an administrator chooses of pods that start alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from runtime.settings import setting


@dataclass(frozen=True)
class StartSettings:
    """Pods that start alone on their GPU."""

    within: float = setting(
        300.0,
        "For how long at most a pod with gpufraction.io/start: alone that is not ready closes its GPU to other such "
        "pods: from the start of its containers, or from its placement while none has started. Then it gets an Event, "
        "and the next may start.",
        unit="duration",
        minimum=1,
    )
