"""
The administrator's settings of gangs.
"""

from __future__ import annotations

from dataclasses import dataclass

from runtime.settings import setting


@dataclass(frozen=True)
class GangSettings:
    """Pods that start together."""

    enabled: bool = setting(
        True,
        "Whether pods that must start together (gpufraction.io/gang-minimum, and the pod groups of LeaderWorkerSets "
        "and other programs) get their shares together or not at all. Off: each of them is placed as soon as it fits.",
    )
