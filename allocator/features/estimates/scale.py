"""
How much longer or shorter pods wait than is played: learnt from what came of the estimates before.

The play knows nothing of pods that come later with a higher priority, nor of the gaps that a later pod fills. What it
is off by is much the same from one day to the next, so the next estimate is scaled by it. Bounded; pure.
"""

from __future__ import annotations

from collections import deque

SURE = 0.75
"""The part of the pods before that had started by the time that is said."""
_SAMPLES = 64
_LEAST = 8
"""Outcomes that must be known before anything is scaled."""
_MOST = 100.0
"""By how much an estimate is made longer or shorter at most."""
_SHORT = 60.0
"""Seconds below which a wait says nothing of the scale."""


class Scale:
    """The ratio of waits to what was played."""

    def __init__(self) -> None:
        self._ratios: deque[float] = deque(maxlen=_SAMPLES)

    def came(self, played: float, waited: float) -> None:
        """A pod waited for so many seconds where the play said so many."""
        ratio = max(waited, _SHORT) / max(played, _SHORT)
        self._ratios.append(min(_MOST, max(1 / _MOST, ratio)))

    def of(self, played: float) -> float:
        """The estimate for a simulated wait."""
        if len(self._ratios) < _LEAST:
            return played
        ranked = sorted(self._ratios)
        return played * ranked[min(len(ranked) - 1, int(SURE * len(ranked)))]
