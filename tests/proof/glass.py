"""
An invented mechanism that keeps containers within their shares, as strong as the level that tenants call `preload`.
"""

from __future__ import annotations

from dataclasses import dataclass

from contract.reasons.gpunodes import GPUNodeReason
from nodeagent.conditions import Condition
from nodeagent.isolation.mechanism import Handle, Mechanism, MechanismEntry
from runtime.settings import setting


@dataclass(frozen=True)
class GlassSettings:
    """The glass."""

    color: str = setting("clear", "Color of the glass.")


def build(handle: Handle, settings: GlassSettings) -> Mechanism:
    """It limits every card, from outside the containers."""
    state = Condition(True, GPUNodeReason.LIMITED, f"each pod is behind {settings.color} glass", "Glass")
    return Mechanism(limits=lambda gpus: True, conditions=lambda: (state,))


ENTRY = MechanismEntry(build, GlassSettings, "glass")
