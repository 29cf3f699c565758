"""
Bindings in progress: decided and to be written, being written, or written and not yet seen by the watch.

The share of each is reserved in the ledger until the watch brings its ElasticGPU, or it is certain that there will be
none. That may be after the claim is deleted, so a binding is not part of the claim's record. Keyed by the claim's uid;
times are passed in. This module does not decide where a share goes, or when a failed binding is retried.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from allocator.cache.cache import Cache
from allocator.cache.ledger import Reservation, ReservationState
from allocator.features.elasticgpuclaims.rendering import CLAIMED, ClaimBinding
from contract.model import Allocation, Compute

_SEEN_WITHIN = 10.0
"""Seconds after which a written share that was not seen is written again."""
_DOUBT = 1.0
"""Seconds until a write with an unknown outcome is repeated."""


@dataclass(slots=True)
class _Going:
    bind: ClaimBinding
    due: float
    out: bool = False
    """It is being written, and the outcome is not known yet."""
    sent: bool = False
    """It was written at least once, so it may be on the API server."""
    term: int | None = None
    """The leadership in which it was sent last."""


class InFlight:
    """One binding at most for each claim. Not thread-safe."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._going: dict[str, _Going] = {}

    def __contains__(self, claim_uid: str) -> bool:
        """Whether a binding of this claim is in progress."""
        return claim_uid in self._going

    def binds(self) -> list[ClaimBinding]:
        """All bindings in progress."""
        return [going.bind for going in self._going.values()]

    def start(self, bind: ClaimBinding, now: float) -> None:
        """Reserve the share of a binding. The binding is due immediately."""
        self._cache.assume(
            reservation(bind.allocation.id, bind.claim.key, bind.allocation, ReservationState.ASSUMED, now)
        )
        self._going[bind.claim.uid] = _Going(bind, now)

    def seen(self, claim_uid: str, allocation: str) -> None:
        """The ElasticGPU exists. If it has a different share, the binding in progress is dropped."""
        going = self._going.get(claim_uid)
        if going is None or (going.bind.moves and going.bind.allocation.id != allocation):
            return
        del self._going[claim_uid]
        if going.bind.allocation.id != allocation:
            self._cache.forget(going.bind.allocation.id)

    def take(self, now: float, term: int | None = None) -> list[ClaimBinding]:
        """
        The bindings to write now in this leadership, each until its outcome is known. A binding that the watch does not
        show in time is written again. If it is known to be written, it is looked up instead.

        Call this after all ElasticGPUs are listed for the leadership: it drops bindings that an earlier leadership sent
        without a known outcome, because the list does not contain them.
        """
        self._give_up(lambda going: going.sent and going.term != term and not going.bind.written)
        due = [going for going in self._going.values() if not going.out and going.due <= now]
        for going in due:
            going.out = going.sent = True
            going.term = term
        return [going.bind for going in due]

    def abandon(self) -> None:
        """
        Drop the bindings that were never sent, because this replica does not decide. Sent ones may be on the API server
        and stay reserved: if no other replica has led meanwhile, no new list would show them.
        """
        self._give_up(lambda going: not going.sent)

    def _give_up(self, which: Callable[[_Going], bool]) -> None:
        for uid, going in list(self._going.items()):
            if not going.out and which(going):
                del self._going[uid]
                self._cache.forget(going.bind.allocation.id)

    def written(self, bind: ClaimBinding, now: float) -> None:
        """The binding is written; the watch will bring its ElasticGPU."""
        if self._is_current(bind):
            going = self._going[bind.claim.uid]
            going.bind = replace(going.bind, written=True)
        self._again(bind, now + _SEEN_WITHIN)

    def unresolved(self, bind: ClaimBinding, now: float) -> None:
        """Whether the binding was written is unknown."""
        self._again(bind, now + _DOUBT)

    def failed(self, bind: ClaimBinding) -> bool:
        """The binding was not written and will not be. True if it was still the claim's binding in progress."""
        current = self._is_current(bind)
        if current:
            del self._going[bind.claim.uid]
        self._cache.forget(bind.allocation.id)
        return current

    def _again(self, bind: ClaimBinding, due: float) -> None:
        if self._is_current(bind):
            going = self._going[bind.claim.uid]
            going.out = False
            going.due = due

    def _is_current(self, bind: ClaimBinding) -> bool:
        going = self._going.get(bind.claim.uid)
        return going is not None and going.bind.allocation.id == bind.allocation.id


def reservation(key: str, claim: str, allocation: Allocation, state: ReservationState, since: float) -> Reservation:
    """The ledger's entry for a claim, `namespace/name`, whether or not its ElasticGPU exists yet."""
    return Reservation(key, claim, CLAIMED, allocation, Compute(), state, since)
