"""
The part of a waiting pod's message that is about requested nodes.
"""

from __future__ import annotations

from collections.abc import Mapping

from allocator.features.provisioning.wishes import Expectation, Outcome
from allocator.scheduler.parts import Explanation
from contract.encoding import moments
from contract.reasons.base import ReasonName
from contract.reasons.pods import PodReason

_IN_VAIN: Mapping[Outcome, str] = {
    "too-late": "no node of pool {pool} joined in time",
    "refused": "the autoscaler could not add a node of pool {pool}",
    "without-gpus": "a node of pool {pool} joined and reported no GPUs",
}


def expected_code(expectation: Expectation) -> ReasonName:
    """The word for what a pod may expect of a pool on whose empty node it would fit."""
    if expectation.requested is not None:
        return PodReason.NODE_REQUESTED
    return PodReason.NODE_NOT_BROUGHT if expectation.until else PodReason.POOL_FULL


def expected(expectation: Expectation) -> Explanation:
    """
    The same with an addition to the reason; it warns if requested nodes did not come. Times are absolute, so that the
    sentence stays true.
    """
    code = expected_code(expectation)
    return Explanation(code, _text(expectation, code), warns=code == PodReason.NODE_NOT_BROUGHT)


def _text(expectation: Expectation, code: ReasonName) -> str:
    pool = expectation.pool
    if code == PodReason.NODE_NOT_BROUGHT:
        vain = _IN_VAIN[expectation.failed or "too-late"].format(pool=pool)
        return f"{vain}; another is requested {moments.at(expectation.until)}"
    if code == PodReason.POOL_FULL or expectation.requested is None:
        return f"pool {pool} already has its maximum number of nodes ({expectation.most})"
    if expectation.node:
        return f"node {expectation.node} of pool {pool} has joined and is not ready yet"
    return f"a node of pool {pool} was requested {moments.at(expectation.requested)}"
