"""
Bindings under way: decided and to be written, being written, or written and not seen by the watch yet.

The share of each stays reserved in the ledger until the watch brings its ElasticGPU, or it is known that there will be
none. Keyed by the claim's uid; times are passed in. Must not: decide where a share goes, or when a claim whose binding
failed is tried again.
"""

from __future__ import annotations

from dataclasses import dataclass

from allocator.cache.cache import Cache
from allocator.claims.rendering import ClaimBinding

_SEEN_WITHIN, _DOUBT = 10.0, 1.0
"""Seconds: until a share that was written must have been seen, or is written again; until a write whose outcome nobody
knows is repeated."""


@dataclass(slots=True)
class _Going:
    bind: ClaimBinding
    due: float
    out: bool = False
    """It is being written, and what came of it has not been told."""


class InFlight:
    """One binding at most for each claim. Not thread-safe."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._going: dict[str, _Going] = {}

    def __contains__(self, claim_uid: str) -> bool:
        """Whether a binding of this claim is under way."""
        return claim_uid in self._going

    def binds(self) -> list[ClaimBinding]:
        """All that are under way."""
        return [going.bind for going in self._going.values()]

    def start(self, bind: ClaimBinding, now: float) -> None:
        """A binding whose share is reserved; it is due at once."""
        self._going[bind.claim.uid] = _Going(bind, now)

    def seen(self, claim_uid: str, allocation: str) -> None:
        """The ElasticGPU is there. Where it carries another share than the one being bound, that one is void."""
        going = self._going.get(claim_uid)
        if going is None or (going.bind.moves and going.bind.allocation.id != allocation):
            return
        del self._going[claim_uid]
        if going.bind.allocation.id != allocation:
            self._cache.forget(going.bind.allocation.id)

    def take(self, now: float) -> list[ClaimBinding]:
        """What is to be written now, each until its outcome is told. One that was not seen in time is written again."""
        due = [going for going in self._going.values() if not going.out and going.due <= now]
        for going in due:
            going.out = True
        return [going.bind for going in due]

    def abandon(self) -> None:
        """Give up what is not being written now."""
        for uid, going in list(self._going.items()):
            if not going.out:
                del self._going[uid]
                self._cache.forget(going.bind.allocation.id)

    def written(self, bind: ClaimBinding, now: float) -> None:
        """It was written; the watch will bring it."""
        self._again(bind, now + _SEEN_WITHIN)

    def unresolved(self, bind: ClaimBinding, now: float) -> None:
        """Nobody knows whether it was written."""
        self._again(bind, now + _DOUBT)

    def failed(self, bind: ClaimBinding) -> bool:
        """It was not written, and will not be. True if it was still the one under way for its claim."""
        current = self._is_current(bind)
        if current:
            del self._going[bind.claim.uid]
        self._cache.forget(bind.allocation.id)
        return current

    def _again(self, bind: ClaimBinding, due: float) -> None:
        if self._is_current(bind):
            going = self._going[bind.claim.uid]
            going.out, going.due = False, due

    def _is_current(self, bind: ClaimBinding) -> bool:
        going = self._going.get(bind.claim.uid)
        return going is not None and going.bind.allocation.id == bind.allocation.id
