"""
Conditions of the GPUNode, before and after they are published, and Kubernetes' form of a time.

Must not: read a clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from contract.reasons.base import ReasonName

READY = "Ready"
"""The condition that reports whether this node's GPUs can be used at all."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition without its transition time, which depends on what was published before."""

    ready: bool
    reason: ReasonName
    message: str
    kind: str = READY


def listed(status: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The conditions of a published status by their type."""
    found = status.get("conditions")
    return {
        str(item.get("type")): item for item in (found if isinstance(found, list) else ()) if isinstance(item, dict)
    }
