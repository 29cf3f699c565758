"""
The bound on the total of one namespace's claims, if the administrator sets one.

Kubernetes quotas count the amounts of pods, but a claim's share is on its ElasticGPU. So claims need this quota. A
share counts from the decision until its release, even if its claim is deleted (`Retain`).

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable

from allocator.features.elasticgpuclaims.objects import Claim, ElasticShare
from allocator.features.elasticgpuclaims.rendering import ClaimBinding
from contract.encoding.quantity import mib
from contract.model import ContainerAllocation


def beyond(
    claim: Claim,
    given: Iterable[ContainerAllocation],
    shares: Iterable[ElasticShare],
    going: Iterable[ClaimBinding],
    *,
    most: int,
) -> str:
    """
    Why the claim may not have the share that was found for it, as a sentence, or empty.

    `shares`: all ElasticGPUs. `going`: bindings in progress. `most`: bytes.
    """
    held = {
        share.name: _memory(share.allocation.containers)
        for share in shares
        if share.allocation is not None and share.namespace == claim.namespace
    }
    for bind in going:
        if bind.claim.namespace == claim.namespace:
            name, memory = bind.claim.own_share, _memory(bind.allocation.containers)
            held[name] = max(held.get(name, 0), memory)
    held.pop(claim.own_share, None)  # of a claim that moves
    taken, more = sum(held.values()), _memory(given)
    if taken + more <= most:
        return ""
    return (
        f"it needs {mib(more)} MiB, and the claims of its namespace use {mib(taken)} of the {mib(most)} MiB that they "
        f"may use together; delete one, or ask the administrator for more"
    )


def _memory(containers: Iterable[ContainerAllocation]) -> int:
    return sum(share.memory for container in containers for share in container.shares)
