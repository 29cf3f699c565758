"""The outcome of each pod, and how many cards were in use at which times. Values only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class PodFate:
    """
    The outcome of one pod. `waited`: seconds from its creation until it had its share, or until it ended or the
    recording did where it never had one. `refused`: the words with which admission refuses it. `why`: what it waited
    for, by its last condition.
    """

    uid: str
    namespace: str
    waited: float = 0.0
    placed: bool = False
    refused: str = ""
    why: str = ""
    fresh: bool = True
    """It was created while it was recorded; how long others waited before is not known."""


@dataclass(frozen=True, slots=True)
class CardUse:
    """
    The number of cards and of those in use, over time: the mean, the 95th percentile, the most.
    """

    cards: float = 0.0
    mean: float = 0.0
    high: float = 0.0
    most: int = 0
    allocated: float = 0.0
    """Percent of all cards' memory that was allocated, in the mean; 0 where that is not known."""


@dataclass(frozen=True, slots=True)
class Fates:
    """A replay's result, or the actual outcome. `faults`: pods that could not be replayed because of an internal
    error."""

    pods: Mapping[str, PodFate]
    use: CardUse
    faults: int = 0

    @property
    def fresh(self) -> tuple[PodFate, ...]:
        """Those that were created while it was recorded."""
        return tuple(fate for fate in self.pods.values() if fate.fresh)


@dataclass(slots=True)
class UseMeter:
    """Adds up figures that hold from one moment to the next."""

    at: float
    cards: int = 0
    used: int = 0
    memory: int = 0
    allocated: int = 0
    _seconds: dict[int, float] = field(default_factory=dict)
    _cards: float = 0.0
    _memory: float = 0.0
    _allocated: float = 0.0
    _length: float = 0.0

    def until(self, now: float) -> None:
        """The present figures hold until now."""
        length = max(0.0, now - self.at)
        if length:
            self._seconds[self.used] = self._seconds.get(self.used, 0.0) + length
            self._cards += self.cards * length
            self._memory += self.memory * length
            self._allocated += self.allocated * length
            self._length += length
        self.at = max(self.at, now)

    def result(self) -> CardUse:
        """The figures of all the time."""
        if not self._length:
            return CardUse(float(self.cards), float(self.used), float(self.used), self.used)
        mean = sum(used * length for used, length in self._seconds.items()) / self._length
        return CardUse(
            self._cards / self._length,
            mean,
            _percentile(self._seconds, 0.95),
            max(self._seconds),
            100 * self._allocated / self._memory if self._memory else 0.0,
        )


def _percentile(seconds: Mapping[int, float], part: float) -> float:
    """The least figure that was not exceeded for this part of the time."""
    left = part * sum(seconds.values())
    for used in sorted(seconds):
        left -= seconds[used]
        if left <= 1e-9:
            return float(used)
    return float(max(seconds, default=0))


def percentile(values: Sequence[float], part: float) -> float:
    """The least of these values that this part of them does not exceed; 0 of none."""
    found = sorted(values)
    return found[min(len(found) - 1, int(part * len(found)))] if found else 0.0
