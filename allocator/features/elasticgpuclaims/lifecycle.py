"""
What to write next for a claim and its ElasticGPU, given their state on the API server.

    Pending ──ElasticGPU created──▶ (bound to it) ──▶ Bound ◀──the GPU is back── Lost
                                                        │  └──the GPU is gone──▶ ▲
                                                        ├──its ElasticGPU is gone┘  (for good)
                                                        └──deleted, no pod uses it──▶ Released, or deleted with it

The creation of the ElasticGPU is the commit: from then on the share is booked, and every later step follows from the
two objects. So the next leader continues where the previous one stopped, between any two writes. Each step names the
version of the object on which it is based, and changes nothing if another write came first.

Pure. Each call returns one step, or None if there is nothing to do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from allocator.features.elasticgpuclaims.objects import (
    BOUND,
    CLAIMS,
    DELETE,
    FAILED,
    LOST,
    RELEASED,
    SHARES,
    Claim,
    ElasticShare,
    Status,
)
from contract import names
from contract.encoding.plain import plain
from contract.reasons.claims import ClaimReason

JSON = dict[str, Any]
_GPU_GONE = "its GPU no longer exists"


@dataclass(frozen=True, slots=True)
class Patch:
    """Change an object that still has this version."""

    plural: str
    namespace: str
    name: str
    version: int
    operations: tuple[JSON, ...]
    """JSON patch operations (RFC 6902)."""
    status: bool = False
    """It goes to the status subresource."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The API server refuses a write because of a policy or the size of the object. A retry does not help."""

    words: str
    """The API server's."""


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete an ElasticGPU. `claim`: only if the API server has no claim of this key with this uid at that moment."""

    name: str
    uid: str
    claim: str = ""
    claim_uid: str = ""


Step = Patch | Delete


def of_claim(
    claim: Claim, share: ElasticShare | None, *, in_use: bool, card: bool, pending: Status | None
) -> Step | None:
    """
    The next step for a claim. `share` is its own ElasticGPU, if there is one.

    `in_use`: a pod has the share. `card`: its GPUs exist. `pending`: why the claim is not bound, if known.
    """
    if claim.deleting:
        return _end(claim, share, in_use, card)
    if share is None:
        lost = Status(
            LOST,
            ClaimReason.ELASTIC_GPU_GONE,
            f"ElasticGPU {claim.own_share} no longer exists; delete the claim and create it again",
        )
        next_status = lost if claim.bound else pending
        return _say_of_claim(claim, next_status) if next_status is not None else None
    if share.deleting and not in_use:
        return of_orphan(share, in_use=False)
    if not (share.deleting or (claim.kept and claim.bound)):
        return _adopt(claim, share)
    if not card:
        lost = Status(
            LOST, ClaimReason.GPU_GONE, "its GPU no longer exists; the claim is bound again when the GPU returns"
        )
        failed = Status(FAILED, ClaimReason.GPU_GONE, _GPU_GONE)
        return _say_of_share(share, failed) or _say_of_claim(claim, lost)
    return _say_of_share(share, Status(BOUND, ClaimReason.BOUND, "")) or _say_of_claim(
        claim, Status(BOUND, ClaimReason.BOUND, "")
    )


def of_orphan(share: ElasticShare, *, in_use: bool) -> Step | None:
    """The next step for an ElasticGPU of ours that is being deleted, or whose claim is deleted."""
    if in_use:
        return None
    if share.deleting:
        return _let_go(SHARES, "", share.name, share.version, share.finalizers, names.SHARE_FINALIZER)
    if share.reclaim == DELETE:
        return Delete(share.name, share.uid, share.key, share.claim_uid)
    text = "its claim no longer exists; delete this object to release the share"
    return _say_of_share(share, Status(RELEASED, ClaimReason.CLAIM_GONE, text))


def _end(claim: Claim, share: ElasticShare | None, in_use: bool, card: bool) -> Step | None:
    """The step for a deleted claim: the reclaim policy is applied to its share, and then our finalizer is removed."""
    if not claim.kept:
        return None
    if in_use:
        message = "deleted; removed when no pod uses it"
        if share is None:
            return _say_of_claim(claim, Status(claim.status.phase, ClaimReason.IN_USE, message))
        stands = Status(BOUND, ClaimReason.BOUND, "") if card else Status(FAILED, ClaimReason.GPU_GONE, _GPU_GONE)
        return _say_of_share(share, stands) or _say_of_claim(
            claim, Status(BOUND if card else LOST, ClaimReason.IN_USE, message)
        )
    if share is not None and share.reclaim == DELETE:
        return of_orphan(share, in_use=False) if share.deleting else Delete(share.name, share.uid)
    step = of_orphan(share, in_use=False) if share is not None else None
    return step or _let_go(CLAIMS, claim.namespace, claim.name, claim.version, claim.finalizers, names.CLAIM_FINALIZER)


def _adopt(claim: Claim, share: ElasticShare) -> Patch:
    kept = claim.finalizers if claim.kept else (*claim.finalizers, str(names.CLAIM_FINALIZER))
    return Patch(
        CLAIMS,
        claim.namespace,
        claim.name,
        claim.version,
        (_add("/metadata/finalizers", list(kept)), _add("/spec/elasticGPUName", share.name)),
    )


def _let_go(
    plural: str, namespace: str, name: str, version: int, finalizers: tuple[str, ...], ours: str
) -> Patch | None:
    if ours not in finalizers:
        return None
    rest = [each for each in finalizers if each != ours]
    return Patch(plural, namespace, name, version, (_add("/metadata/finalizers", rest),))


def _say_of_claim(claim: Claim, status: Status) -> Patch | None:
    """Only a new phase or reason is worth a write: the figures in a message change with every pod."""
    if (claim.status.phase, claim.status.reason) == (status.phase, status.reason):
        return None
    operation = _add("/status", status_document(status))
    return Patch(CLAIMS, claim.namespace, claim.name, claim.version, (operation,), status=True)


def _say_of_share(share: ElasticShare, status: Status) -> Patch | None:
    if (share.status.phase, share.status.reason) == (status.phase, status.reason):
        return None
    return Patch(SHARES, "", share.name, share.version, (_add("/status", status_document(status)),), status=True)


def status_document(status: Status) -> JSON:
    """A status in the form of the object."""
    return {"phase": status.phase, "reason": status.reason, "message": plain(status.message)}


def _add(path: str, value: object) -> JSON:
    return {"op": "add", "path": path, "value": value}
