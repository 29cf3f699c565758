"""
The records of claims, classes and ElasticGPUs: one for each, created and dropped by watch events.

Two lookups need no index: the name of a claim's ElasticGPU contains the claim's uid, and an ElasticGPU names its claim.
The share of an ElasticGPU is booked in the ledger here, where its record changes. Bindings in progress are in
`inflight`, because one may outlive its claim. This module decides nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from allocator.cache.cache import Cache
from allocator.cache.ledger import OWN, ReservationState
from allocator.cache.podinfo import may_hold
from allocator.faults import Faulted
from allocator.features.elasticgpuclaims import objects
from allocator.features.elasticgpuclaims.inflight import InFlight, reservation
from allocator.features.elasticgpuclaims.objects import PENDING, Claim, ElasticShare, GpuClass, Status
from contract import pods
from contract.model import claim_group
from contract.reasons.claims import ClaimReason

_SET_ASIDE = 600.0
"""Seconds for which an object is left alone after it caused an internal error."""
_ERROR = "internal error of gpufraction; the allocator's log has it"


@dataclass(slots=True)
class ShareRecord:
    """The record of an ElasticGPU."""

    share: ElasticShare
    paused: float | None = None
    """The time until which nothing is written for it, in seconds of the clock."""

    def resume(self, now: float) -> bool:
        """End the pause if its time has passed. True if it ended."""
        before = self.paused
        self.paused = _unless_over(before, now)
        return self.paused != before


@dataclass(slots=True)
class ClaimRecord:
    """The record of a claim. Times are in seconds of the clock."""

    claim: Claim
    pending: Status | None = None
    """Why it is not bound."""
    paused: float | None = None
    """The time until which nothing is written for it and its binding is not tried."""
    unbindable: float | None = None
    """The time until which its binding is not tried."""
    refusal: str = ""
    """The API server's message in the last Event about a refused write, until a write succeeds."""
    round: int = 0
    """The last round of the queue that tried a pod with this claim, from 1; 0 for none."""

    @property
    def may_bind(self) -> bool:
        """Whether its binding may be tried now."""
        return self.paused is None and self.unbindable is None

    def resume(self, now: float) -> bool:
        """End the pauses that are over. True if there was one."""
        before = self.paused, self.unbindable
        self.paused = _unless_over(self.paused, now)
        self.unbindable = _unless_over(self.unbindable, now)
        return (self.paused, self.unbindable) != before


Record = ClaimRecord | ShareRecord


class ClaimStore:
    """
    The records by name. Only the store creates and drops them; `manager` and `steps` store their decisions in them.
    """

    def __init__(self, cache: Cache, bindings: InFlight, *, clock: Callable[[], float], faulted: Faulted) -> None:
        self._cache = cache
        self._bindings = bindings
        self._clock = clock
        self._faulted = faulted
        self.claims: dict[str, ClaimRecord] = {}
        """By `namespace/name`."""
        self.classes: dict[str, GpuClass] = {}
        self.shares: dict[str, ShareRecord] = {}
        self._tables: dict[str, dict[str, Any]] = {
            objects.CLAIMS: self.claims,
            objects.CLASSES: self.classes,
            objects.SHARES: self.shares,
        }

    # -- what the watch brings ------------------------------------------------------------------------------------

    def replace(self, plural: str, items: Iterable[Mapping[str, Any]]) -> None:
        """The whole list of one kind."""
        documents = list(items)
        listed = {_key(plural, document) for document in documents}
        kept = set(self._tables[plural])
        if plural == objects.SHARES:
            kept |= {who.removeprefix(OWN) for who in self._cache.suspects() if who.startswith(OWN)}
        for deleted in kept - listed:
            self._drop(plural, deleted)
        for document in documents:
            self.take_in(plural, document)

    def take_in(self, plural: str, document: Mapping[str, Any]) -> bool:
        """`put` for an object of any shape. If a share cannot be booked, its cards take no new pods."""
        key = _key(plural, document)
        try:
            helps = self.put(plural, document)
        except Exception:
            self._faulted(plural, OWN + key)
            self._tables[plural].pop(key, None)  # so that it is read again the next time
            if plural == objects.SHARES:
                self._cache.close(OWN + key, may_hold(document))
            return False
        unread = pods.unread_allocation(document) if plural == objects.SHARES else None
        if unread is not None:
            self._cache.close(OWN + key, frozenset((unread.node,)), unread.texts)
            return helps
        return self._cache.open(OWN + key) or helps

    def put(self, plural: str, document: Mapping[str, Any], *, existing_only: bool = False) -> bool:
        """
        An object is new or changed. True if that may help a pod or a claim.

        `existing_only`: the object is the answer to a write, so it counts only if it still has a record.
        """
        key = _key(plural, document)
        if existing_only and key not in self._tables[plural]:
            return False
        if plural == objects.CLASSES:
            found = objects.gpu_class(document)
            changed = self.classes.get(key) != found
            self.classes[key] = found
            return changed
        return self._put_claim(key, document) if plural == objects.CLAIMS else self._put_share(key, document)

    def _put_claim(self, key: str, document: Mapping[str, Any]) -> bool:
        claim, record = objects.claim(document), self.claims.get(key)
        if record is not None and record.claim.version >= claim.version:
            return False
        if record is None or record.claim.uid != claim.uid:
            record = self.claims[key] = ClaimRecord(claim)
        record.claim = claim
        return True

    def _put_share(self, key: str, document: Mapping[str, Any]) -> bool:
        share, record = objects.share(document), self.shares.get(key)
        if record is not None and record.share.version >= share.version:
            return False
        if record is None or record.share.uid != share.uid:
            record = self.shares[key] = ShareRecord(share)
        record.share = share
        self._book(OWN + key, share)
        return True

    def _book(self, key: str, share: ElasticShare) -> None:
        if share.allocation is None:
            self._cache.unbook(key)
            return
        self._cache.book(reservation(key, share.key, share.allocation, ReservationState.CONFIRMED, self._clock()))
        self._bindings.seen(share.claim_uid, share.allocation.id)

    def drop(self, plural: str, document: Mapping[str, Any]) -> bool:
        """An object was deleted. True if that may help."""
        return self._drop(plural, _key(plural, document))

    def _drop(self, plural: str, key: str) -> bool:
        dropped = self._tables[plural].pop(key, None)
        if plural == objects.SHARES:
            self._cache.unbook(OWN + key)
            self._cache.open(OWN + key)
        return dropped is not None

    # -- pauses -------------------------------------------------------------------------------------------------------

    def set_aside(self, record: Record) -> None:
        """Pause writes for an object that caused an internal error. Call this in the error's handler."""
        if isinstance(record, ClaimRecord):
            fault = self._faulted("claim", record.claim.key)
            record.pending = Status(PENDING, ClaimReason.INTERNAL_ERROR, f"{_ERROR} (fault {fault})")
        else:
            self._faulted("share", record.share.key)
        record.paused = self._clock() + _SET_ASIDE

    def tick(self) -> bool:
        """End the pauses that are over. True if there was one."""
        now = self._clock()
        return any([record.resume(now) for record in self.records()])

    # -- looking ------------------------------------------------------------------------------------------------------

    def records(self) -> Iterator[Record]:
        """The records of claims, and then those of ElasticGPUs."""
        yield from self.claims.values()
        yield from self.shares.values()

    def record(self, claim: Claim) -> ClaimRecord | None:
        """The record of exactly this claim, not of another with its name."""
        record = self.claims.get(claim.key)
        return record if record is not None and record.claim.uid == claim.uid else None

    def share_of(self, claim: Claim) -> ElasticShare | None:
        """The claim's own ElasticGPU."""
        record = self.shares.get(claim.own_share)
        return record.share if record is not None else None

    def is_used(self, share: str) -> bool:
        """Whether a pod has the share of the ElasticGPU of this name."""
        return any(not holding.key.startswith(OWN) for holding in self._cache.ledger.users(claim_group(share)))

    def has_gpus(self, share: ElasticShare) -> bool:
        """Whether the GPUs of a share exist."""
        if share.allocation is None:
            return False
        state = self._cache.snapshot.get(share.allocation.node)
        uuids = {gpu.uuid for gpu in state.gpus} if state is not None else set()
        return all(each.uuid in uuids for container in share.allocation.containers for each in container.shares)

    def counts(self) -> tuple[Counter[tuple[str, str]], Counter[str]]:
        """The number of claims by phase and reason, and of our ElasticGPUs by phase, as in their status."""
        claims = [record.claim.status for record in self.claims.values()]
        shares = [record.share.status for record in self.shares.values() if record.share.allocation is not None]
        return (
            Counter((status.phase or PENDING, status.reason) for status in claims),
            Counter(status.phase or PENDING for status in shares),
        )


def _unless_over(until: float | None, now: float) -> float | None:
    return until if until is not None and until > now else None


def _key(plural: str, document: Mapping[str, Any]) -> str:
    metadata = document.get("metadata") or {}
    name = str(metadata.get("name", ""))
    return f"{metadata.get('namespace', '')}/{name}" if plural == objects.CLAIMS else name
