"""
Conditions that do not say what was written: lost on the way, or overwritten or removed by somebody else.

A write is expected to show on the watch. Where it does not within a pause, it is written once more; the pause doubles
each time, so that two writers who do not agree cost the API server next to nothing. After a quiet while it is short
again.

Pure notes by uid; time is passed in. Not thread-safe: one owner calls it.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, replace

from contract.backoff import backoff

PAUSE, PAUSE_CAP = 3.0, 300.0
"""Seconds until a condition is written once more: at first, and at most."""
_QUIET = 900.0
"""Seconds without a repair after which the pause is short again."""
_AT_ONCE = 50
"""Conditions that are written once more in one call, at most."""


@dataclass(frozen=True, slots=True)
class Missing:
    """A condition that the watch does not show as it was written."""

    key: str
    """`namespace/name` of its pod."""
    due: float
    turned: bool
    """Whether it has another status than was written, or is not there."""


class Overwritten:
    """The notes."""

    def __init__(self) -> None:
        self._missing: dict[str, Missing] = {}
        self._repairs: dict[str, tuple[int, float]] = {}

    def written(self, uid: str, key: str, now: float) -> None:
        """A condition is on its way: it is to be seen soon."""
        self._missing[uid] = Missing(key, now + self._pause(uid, now), True)

    def seen(self, uid: str, key: str, right: bool, turned: bool, now: float) -> None:
        """What the watch shows of a condition that was written."""
        if right:
            self._missing.pop(uid, None)
            if uid in self._repairs and now - self._repairs[uid][1] > _QUIET:
                del self._repairs[uid]
            return
        known = self._missing.get(uid)
        due = known.due if known is not None else now + self._pause(uid, now)
        self._missing[uid] = Missing(key, due, turned)

    def due(self, now: float, busy: Container[str] = ()) -> list[tuple[str, Missing]]:
        """
        Those that are to be written once more, by uid. `busy`: pods that are being written, whose turn comes later.
        """
        late = [(uid, one) for uid, one in self._missing.items() if one.due <= now and uid not in busy][:_AT_ONCE]
        for uid, one in late:
            self._repairs[uid] = self._count(uid, now) + 1, now
            self._missing[uid] = replace(one, due=now + self._pause(uid, now))
        return late

    def drop(self, uid: str) -> None:
        """The pod is gone, or was told nothing that counts."""
        self._missing.pop(uid, None)
        self._repairs.pop(uid, None)

    def clear(self) -> None:
        """Nothing that was written counts any more."""
        self._missing.clear()

    def noted(self) -> frozenset[str]:
        """Every pod of which something is noted."""
        return frozenset((*self._missing, *self._repairs))

    def _count(self, uid: str, now: float) -> int:
        count, at = self._repairs.get(uid, (0, now))
        return count if now - at <= _QUIET else 0

    def _pause(self, uid: str, now: float) -> float:
        return backoff(self._count(uid, now) + 1, PAUSE, PAUSE_CAP)
