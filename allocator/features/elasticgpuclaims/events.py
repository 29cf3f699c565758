"""
The Events of a claim. Each reports a new status: bound, waiting, refused, in use or lost.

The leader writes the status only if the phase or the reason has changed, and the Event follows that write. So no Event
is sent twice, even if the leader changes. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from allocator.features.elasticgpuclaims.lifecycle import Patch, Step
from allocator.features.elasticgpuclaims.objects import BOUND, CLAIMS, LOST, Claim
from allocator.features.elasticgpuclaims.shares import REFUSALS
from allocator.queue.records import EventRecord
from contract import pods
from contract.encoding.plain import plain
from contract.reasons.claims import ClaimEventReason, ClaimReason

_LONGEST = 300
"""Bytes of the API server's message."""


def event(step: Step, answer: Mapping[str, Any]) -> EventRecord | None:
    """The Event on a claim whose status was written; `answer` is the claim as it is now."""
    if not isinstance(step, Patch) or step.plural != CLAIMS or not step.status:
        return None
    status = answer.get("status") or {}
    phase, why, message = (str(status.get(key) or "") for key in ("phase", "reason", "message"))
    if why == ClaimReason.WRITE_REFUSED:
        return None  # `refused` has reported it
    code, warns = _word(phase, why)
    if not message:
        share = str((answer.get("spec") or {}).get("elasticGPUName") or "")
        message = f"bound to ElasticGPU {share}"
    return EventRecord("ElasticGPUClaim", f"{step.namespace}/{step.name}", pods.uid(answer), code, message, warns)


def refused(claim: Claim, words: str) -> EventRecord:
    """The Event on a claim whose write the API server refuses; `words` is the API server's message."""
    return EventRecord("ElasticGPUClaim", claim.key, claim.uid, ClaimEventReason.WRITE_REFUSED, refused_text(words))


def refused_text(words: str) -> str:
    """The message of a refused write, also for the claim's status. Text of other programs is shortened to one line."""
    return (
        f"the API server refuses what gpufraction writes for this claim: {plain(words, _LONGEST)}. The write is "
        f"retried; change the policy or quota that refuses it"
    )


def _word(phase: str, why: str) -> tuple[ClaimEventReason, bool]:
    """The Event's reason, and whether it is a warning."""
    if phase == LOST:
        return ClaimEventReason.LOST, True
    if phase == BOUND:
        return (ClaimEventReason.BOUND, False) if why == ClaimReason.BOUND else (ClaimEventReason.IN_USE, False)
    return (ClaimEventReason.REFUSED, True) if why in REFUSALS else (ClaimEventReason.WAITING, False)
