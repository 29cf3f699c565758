"""
The fewest of several givers that together give enough of everything; of equally few, those that matter least.

Pure arithmetic of amounts, exact within a bound on the search: covering several amounts at once with as few givers as
possible has no quick exact way. Past the bound the answer still covers everything, and no giver in it could be left
out, but it may not be the fewest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Amounts = Sequence[int]
Places = Sequence[range]


@dataclass(slots=True)
class Budget:
    """Partial choices that may still be looked at; the pods of one GPU need a few dozen, or many in made-up cases."""

    steps: int = 5_000

    @property
    def spent(self) -> bool:
        """Whether no steps are left, so that later results may not be the best."""
        return self.steps < 0


_DEEPEST = 100
"""Givers of one choice at most, since the search for each is nested in the search for the one before: with more the
Python stack gets too deep, and the bound on steps would be reached anyway."""


class _TooHard(Exception):
    """The bound on the search is reached."""


@dataclass(frozen=True, slots=True)
class _Search:
    gains: Sequence[Amounts]
    places: Places
    budget: Budget

    def least(self, count: int, limit: int, lacks: Amounts) -> tuple[int, ...] | None:
        """`count` of the first `limit` givers that cover it, the last of them as early as possible, then the next."""
        if not count:
            return () if all(lack <= 0 for lack in lacks) else None
        for last in range(count - 1, limit):
            self.budget.steps -= 1
            if self.budget.spent:
                raise _TooHard
            left = [lack - gain for lack, gain in zip(lacks, self.gains[last], strict=True)]
            least = at_least(self.gains[:last], left, self.places)
            if least is not None and least < count:
                found = self.least(count - 1, last, left)
                if found is not None:
                    return (*found, last)
        return None


def at_least(gains: Sequence[Amounts], lacks: Amounts, places: Places = ()) -> int | None:
    """
    A lower bound of how many givers it takes; None if all of them are not enough.

    `places`: the positions of the amounts that belong together, such as those of one GPU. A giver that gives at one
    place does not help at another, so the numbers of the places add up.
    """
    needs = []
    for amount, lack in enumerate(lacks):
        need = 0
        for gain in sorted((gain[amount] for gain in gains), reverse=True) if lack > 0 else ():
            if lack <= 0:
                break
            lack -= gain
            need += 1
        if lack > 0:
            return None
        needs.append(need)
    by_place = {place: max(needs[place.start : place.stop]) for place in places}
    lacking = [place for place, need in by_place.items() if need]
    if len(lacking) < 2:
        return max(needs, default=0)
    widest = max(sum(any(gain[place.start : place.stop]) for place in lacking) for gain in gains)
    return max(*needs, -(-sum(by_place.values()) // max(widest, 1)))


def cover(
    gains: Sequence[Amounts], lacks: Amounts, most: int, *, places: Places = (), budget: Budget | None = None
) -> tuple[int, ...] | None:
    """
    Positions of the fewest givers, at most `most`, whose gains cover every lack; None if there are none.

    `gains` are in order, those that matter least first. Of equally few the choice is the one whose last position is the
    earliest, then whose last but one is, and so on. `places` is as in `at_least`.
    """
    search, total = _Search(gains, places, budget or Budget()), len(gains)
    least = at_least(gains, lacks, places)
    if least is None:
        return None
    try:
        for count in range(least, min(most, total) + 1):
            if count > _DEEPEST:
                raise _TooHard
            found = search.least(count, total, lacks)
            if found is not None:
                return found
    except _TooHard:
        found = _without_the_needless(gains, lacks)
        return found if len(found) <= most else None
    return None


def _without_the_needless(gains: Sequence[Amounts], lacks: Amounts) -> tuple[int, ...]:
    """All givers, which are enough, without each that is not needed; those that matter most are left out first."""
    spare = [sum(amounts) - lack for amounts, lack in zip(zip(*gains, strict=True), lacks, strict=True)]
    kept = []
    for position in reversed(range(len(gains))):
        without = [amount - gain for amount, gain in zip(spare, gains[position], strict=True)]
        if all(amount >= 0 for amount in without):
            spare = without
        else:
            kept.append(position)
    return tuple(reversed(kept))
