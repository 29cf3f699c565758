"""
What an administrator chooses of moves.
"""

from __future__ import annotations

from dataclasses import dataclass

from runtime.settings import setting


@dataclass(frozen=True)
class DefragmentationSettings:
    """Small pods move so that a larger one starts."""

    evictions_per_hour: int = setting(
        0,
        "Pods that are evicted in an hour at most, of namespaces with the label gpufraction.io/defragment=allowed, "
        "where each of them has room on another node and a larger pod then starts. An evicted pod starts over. 0: "
        "none; else it needs the component allocator-eviction.",
        minimum=0,
        maximum=1000,
    )
    rest: float = setting(
        86_400.0,
        "Time for which the pods of one controller are left alone after one of them was evicted for this.",
        unit="duration",
        minimum=0,
    )
    interval: float = setting(
        60.0,
        "Time between two looks for pods that may move, while a pod waits that this may help.",
        unit="duration",
        minimum=0.1,
    )
