"""A made-up mechanism that keeps containers within their shares, as strong as the level that tenants call `preload`."""

from __future__ import annotations

from contract.reasons.gpunodes import GPUNodeReason
from nodeagent.conditions import Condition
from nodeagent.isolation.mechanism import Handle, Mechanism

GLASS = Condition(True, GPUNodeReason.LIMITED, "each pod is behind glass", "Glass")


def build(handle: Handle) -> Mechanism:
    """It limits every card, from outside of containers."""
    return Mechanism(limits=lambda gpus: True, conditions=lambda: (GLASS,))
