"""
Learn the demand from the requests alone.

The learner counts classes of request, older ones less and less, and says when new tables are due: often at first, since
a hundred requests show more than ten, and seldom later, but soon when a number of cards is requested that the tables do
not know, because tables that do not know it break up the nodes that such requests need. Making tables takes tens of
milliseconds to a second, so the owner takes the `target`, which is a copy, and makes them alongside the decisions.
Until the first tables pods are placed by best fit. Not thread-safe: one owner calls it.
"""

from __future__ import annotations

from collections.abc import Mapping

from allocator.scoring import constants, tables
from allocator.scoring.classes import CARD, Demanded, Supply, demanded
from allocator.scoring.tables import Tables
from contract.model import PodRequest

_TOO_LARGE = 1e200


class Learner:
    """The demand seen so far."""

    def __init__(self, *, half_life: int = constants.HALF_LIFE) -> None:
        self.seen = 0
        """Requests so far."""
        self._amounts: dict[Demanded, float] = {}
        self._weight = 1.0
        self._growth = 2.0 ** (1 / half_life)
        self._due = constants.FIRST
        self._learnt_at = 0
        self._counts: frozenset[int] = frozenset()
        """Numbers of cards that the last tables know."""

    def see(self, request: PodRequest, cpu: int) -> bool:
        """The request of a new pod; `cpu` in thousandths. True if new tables are due."""
        for each in demanded(request, cpu):
            self._amounts[each] = self._amounts.get(each, 0.0) + self._weight
            if each.count > 1 and each.count not in self._counts:
                self._due = min(self._due, max(constants.FIRST, self._learnt_at + constants.FIRST))
        self.seen += 1
        self._weight *= self._growth
        if len(self._amounts) > constants.MOST_CLASSES or self._weight > _TOO_LARGE:
            self._forget()
        if self.seen < self._due:
            return False
        self._due = self.seen + min(self.seen, constants.SELDOM)
        self._learnt_at = self.seen
        self._counts = frozenset(each.count for each in self._amounts)
        return True

    def target(self) -> dict[Demanded, float]:
        """The present amount of each class; the last request counts 1."""
        return {each: amount / self._weight for each, amount in self._amounts.items()}

    def _forget(self) -> None:
        kept = sorted(self.target().items(), key=lambda item: -item[1])[: constants.MOST_CLASSES // 2]
        self._amounts = dict(kept)
        self._weight = 1.0


def filled(before: Supply, now: Supply) -> bool:
    """Whether so much was taken or released that other kinds of card may be scarce now."""
    if not before.cards or not now.cards:
        return False
    return abs(before.free / before.cards - now.free / now.cards) >= constants.FILLED * CARD


def make(policy: str, target: Mapping[Demanded, float], supply: Supply) -> Tables | None:
    """Tables of one of the learning policies; None if there is nothing to learn from."""
    if not target or not supply.stocks:
        return None
    return tables.BUILDERS[policy](target, supply)
