"""Initial values for the agent's tests."""

from __future__ import annotations

from typing import Any

from contract.reasons.gpunodes import GPUNodeReason
from nodeagent.gpus.library import Card
from nodeagent.gpus.observation import Observation

MIB = 1 << 20
T4 = 15109 * MIB


def card(index: int = 0, **changes: Any) -> Card:
    """A healthy T4 whose UUID is `GPU-<index>`."""
    return Card(**{"index": index, "uuid": f"GPU-{index}", "model": "Tesla T4", "memory_bytes": T4, **changes})


def observation(*cards: Card) -> Observation:
    """A machine with these cards and a driver."""
    return Observation(cards, driver="550.54.15", cuda="12.4")


BLIND = Observation(problem="the NVIDIA kernel driver is not loaded", reason=GPUNodeReason.DRIVER_GONE)
