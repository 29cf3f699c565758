"""
The written form of a claim's binding: an ElasticGPU with the share, created once, and moved only while unused.

The name is made from the claim's uid, so there is at most one, and a second attempt finds the first. Pure: rendering
only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jsonpointer

from allocator.features.elasticgpuclaims.objects import CLAIM, GROUP_VERSION, PROVISIONER, SHARE, Claim, ElasticShare
from allocator.features.elasticgpuclaims.shares import CONTAINER
from contract import names
from contract.encoding import codec, quantity
from contract.model import WHOLE, Allocation, FractionRequest, PodRequest
from contract.scheduling import node_pin

JSON = dict[str, Any]

CLAIMED = PodRequest("claims", (FractionRequest(CONTAINER),))
"""The request under which shares are booked; the amounts are in their allocation."""


@dataclass(frozen=True, slots=True)
class ClaimBinding:
    """Write this share for a claim. `share`: the ElasticGPU to move; None creates one."""

    claim: Claim
    reclaim: str
    allocation: Allocation
    share: ElasticShare | None = None
    written: bool = False
    """The API server has confirmed the write. If the object no longer exists, somebody deleted or changed it."""

    @property
    def moves(self) -> bool:
        """Whether an existing ElasticGPU moves."""
        return self.share is not None


def card_name(node: str, index: int) -> str:
    """The name of the GPU object of a card: `<node>-00`, as that system's own agent would have called it."""
    return f"{node}-{index:02}"


def document(bind: ClaimBinding) -> JSON:
    """The ElasticGPU to be created."""
    claim = bind.claim
    return {
        "apiVersion": GROUP_VERSION,
        "kind": SHARE,
        "metadata": {
            "name": claim.own_share,
            "annotations": {
                str(names.ALLOCATION): codec.allocation_to_text(bind.allocation),
                str(names.RECLAIM): bind.reclaim,
            },
            "finalizers": [str(names.SHARE_FINALIZER)],
        },
        "spec": {
            "claimRef": {
                "apiVersion": GROUP_VERSION,
                "kind": CLAIM,
                "namespace": claim.namespace,
                "name": claim.name,
                "uid": claim.uid,
            },
            **_place(bind),
        },
    }


def moving(bind: ClaimBinding) -> tuple[JSON, ...]:
    """JSON patch operations (RFC 6902) that move an ElasticGPU."""
    made = document(bind)
    text = made["metadata"]["annotations"][names.ALLOCATION]
    return (
        {"op": "add", "path": f"/metadata/annotations/{jsonpointer.escape(names.ALLOCATION)}", "value": text},
        {"op": "add", "path": "/spec", "value": made["spec"]},
    )


def _place(bind: ClaimBinding) -> JSON:
    allocation = bind.allocation
    shares = allocation.containers[0].shares
    cards = [card_name(allocation.node, share.index) for share in shares]
    whole = shares[0].cores >= WHOLE
    terms = {"nodeSelectorTerms": [{"matchFields": [node_pin.requirement(allocation.node)]}]}
    return {
        "capacity": {
            f"{PROVISIONER}/gpu-core": str(sum(share.cores for share in shares)),
            f"{PROVISIONER}/gpu-memory": quantity.format_bytes(sum(share.memory for share in shares)),
        },
        "nodeAffinity": {"required": terms},
        **({"physicalGPU": {"gpuNames": cards}} if whole else {"gpuShare": {"gpuName": cards[0]}}),
    }
