"""
How much longer or shorter pods wait than simulated: learned from the outcome of earlier estimates.

The simulation does not include later pods of a higher priority, or gaps that a later pod fills. Its error changes
little from day to day, so the next estimate is scaled by it. Bounded; pure.
"""

from __future__ import annotations

from collections import deque

SURE = 0.75
"""The fraction of the earlier pods that had started by the estimated time."""
_SAMPLES = 64
_LEAST = 8
"""The number of outcomes needed before estimates are scaled."""
_MOST = 100.0
"""The largest factor by which an estimate is lengthened or shortened."""
_SHORT = 60.0
"""Shorter waits, in seconds, are ignored."""


class Scale:
    """The ratio of waits to simulated waits."""

    def __init__(self) -> None:
        self._ratios: deque[float] = deque(maxlen=_SAMPLES)

    def came(self, played: float, waited: float) -> None:
        """Record a pod's wait and its simulated wait, both in seconds."""
        ratio = max(waited, _SHORT) / max(played, _SHORT)
        self._ratios.append(min(_MOST, max(1 / _MOST, ratio)))

    def of(self, played: float) -> float:
        """The estimate for a simulated wait."""
        if len(self._ratios) < _LEAST:
            return played
        ranked = sorted(self._ratios)
        return played * ranked[min(len(ranked) - 1, int(SURE * len(ranked)))]
