"""
The next writes for claims and their ElasticGPUs, their results, and the times of retries.

`lifecycle` defines the steps. This module finds the next step of every record that may be written now.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from allocator.features.elasticgpuclaims import events, lifecycle, objects
from allocator.features.elasticgpuclaims.inflight import InFlight
from allocator.features.elasticgpuclaims.lifecycle import Refused, Step
from allocator.features.elasticgpuclaims.objects import PENDING, Claim, Status
from allocator.features.elasticgpuclaims.rendering import ClaimBinding
from allocator.features.elasticgpuclaims.store import ClaimRecord, ClaimStore, Record, ShareRecord
from allocator.queue.records import EventRecord
from contract.reasons.claims import ClaimReason

_PAUSE = 2.0
"""Seconds until a write that failed is tried again."""
_PAUSE_REFUSED = 15.0
"""Seconds until a write that the API server refused is tried again."""


class ClaimSteps:
    """The writes of claims. Not thread-safe."""

    def __init__(self, store: ClaimStore, bindings: InFlight, *, clock: Callable[[], float]) -> None:
        self._store = store
        self._bindings = bindings
        self._clock = clock

    # -- bindings -------------------------------------------------------------------------------------------------

    def written(self, bind: ClaimBinding) -> None:
        """The ElasticGPU is written as intended; the watch will bring it."""
        record = self._store.record(bind.claim)
        if record is not None:
            record.refusal = ""
        self._bindings.written(bind, self._clock())

    def not_written(self, bind: ClaimBinding, refused: Refused | None = None) -> EventRecord | None:
        """
        The binding was not written and will not be. Returns the Event about a refusal by the API server; None if the
        last Event has the same message. The claim's status and the pods that name the claim also show the message.
        """
        record = self._store.record(bind.claim)
        if self._bindings.failed(bind) and record is not None:
            if refused is None:
                record.paused = self._clock() + _PAUSE
            else:
                record.unbindable = self._clock() + _PAUSE_REFUSED
                record.pending = Status(PENDING, ClaimReason.WRITE_REFUSED, events.refused_text(refused.words))
        return _refusal(bind.claim, record, refused) if refused is not None else None

    # -- steps ----------------------------------------------------------------------------------------------------

    def take(self) -> list[Step]:
        """The next writes, at most one step for each claim. Pass each outcome to `stepped` or `failed`."""
        steps = list[Step | None]()
        for record in self._store.records():
            try:
                steps.append(self._of_claim(record) if isinstance(record, ClaimRecord) else self._of_share(record))
            except Exception:
                self._store.set_aside(record)
        return [step for step in steps if step is not None]

    def _of_claim(self, record: ClaimRecord) -> Step | None:
        claim, own = record.claim, self._store.shares.get(record.claim.own_share)
        if claim.uid in self._bindings or record.paused is not None:
            return None
        if own is not None and (own.share.claim_uid != claim.uid or own.paused is not None):
            return None
        share = own.share if own is not None else None
        return lifecycle.of_claim(
            claim,
            share,
            in_use=self._store.is_used(claim.own_share),
            card=share is not None and self._store.has_gpus(share),
            pending=record.pending,
        )

    def _of_share(self, record: ShareRecord) -> Step | None:
        """Only for those that no step of a claim handles."""
        share = record.share
        claim = self._store.claims.get(share.key)
        if share.allocation is None or record.paused is not None or share.claim_uid in self._bindings:
            return None
        if claim is not None and claim.claim.uid == share.claim_uid:
            return None
        return lifecycle.of_orphan(share, in_use=self._store.is_used(share.name))

    def stepped(self, step: Step, answer: Mapping[str, Any]) -> bool:
        """A step succeeded; `answer` is the current object. True if that may help a pod or a claim."""
        claim = self._claim_of(step)
        if claim is not None:
            claim.refusal = ""
        if isinstance(step, lifecycle.Delete):
            if "deletionTimestamp" not in (answer.get("metadata") or {}):
                self.failed(step)  # it is deleted; nothing is repeated until the watch shows it
            return self._store.put(objects.SHARES, answer, existing_only=True)
        return self._store.put(step.plural, answer, existing_only=True)

    def failed(self, step: Step, refused: Refused | None = None) -> EventRecord | None:
        """
        A step failed; its object is checked again a little later. Returns the Event on its claim if the API server
        refused it; None without a claim, or if the last Event has the same message.
        """
        written, record = self._record_of(step), self._claim_of(step)
        if written is not None:
            written.paused = self._clock() + (_PAUSE if refused is None else _PAUSE_REFUSED)
        return _refusal(record.claim, record, refused) if record is not None and refused is not None else None

    def _record_of(self, step: Step) -> Record | None:
        """The record of the object that a step changes."""
        if isinstance(step, lifecycle.Patch) and step.plural == objects.CLAIMS:
            return self._store.claims.get(f"{step.namespace}/{step.name}")
        return self._store.shares.get(step.name)

    def _claim_of(self, step: Step) -> ClaimRecord | None:
        """The record of the claim for which a step is taken."""
        found = self._record_of(step)
        return self._store.claims.get(found.share.key) if isinstance(found, ShareRecord) else found


def _refusal(claim: Claim, record: ClaimRecord | None, refused: Refused) -> EventRecord | None:
    """The Event about a refused write; None if the last Event has the same message. A deleted claim has no record."""
    if record is not None:
        if record.refusal == refused.words:
            return None
        record.refusal = refused.words
    return events.refused(claim, refused.words)
