"""
The administrator's settings of moves.
"""

from __future__ import annotations

from dataclasses import dataclass

from runtime.settings import setting


@dataclass(frozen=True)
class DefragmentationSettings:
    """Small pods move so that a larger one starts."""

    evictions_per_hour: int = setting(
        0,
        "Maximum number of pods evicted per hour, in namespaces with the label gpufraction.io/defragment=allowed, if "
        "each of them fits on another node and a larger pod can then start. An evicted pod starts over. 0: none; "
        "other values need the component allocator-eviction.",
        minimum=0,
        maximum=1000,
    )
    rest: float = setting(
        86_400.0,
        "Time during which no further pod of a controller is evicted for this, after one of its pods was.",
        unit="duration",
        minimum=0,
    )
    interval: float = setting(
        60.0,
        "Interval between searches for pods that can move, while a pod waits that this could help.",
        unit="duration",
        minimum=0.1,
    )
