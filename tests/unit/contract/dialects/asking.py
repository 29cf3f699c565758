"""How the cases say what a pod asks, and what reading it gives."""

from __future__ import annotations

from typing import Any

from contract.dialects.base import Refusal
from contract.model import FractionRequest, PodRequest
from tests.builders import PodBuilder, pod

Outcome = PodRequest | Refusal | None
LIMITS = "spec.containers[0].resources.limits"


def one(dialect: str, *, unit: int = 0, **fraction: Any) -> PodRequest:
    """The request of a pod whose container `main` alone asks."""
    return PodRequest(dialect, (FractionRequest("main", **fraction),), unit=unit)


def asking(prefix: str, **amounts: int | str) -> PodBuilder:
    """A pod whose container `main` asks for `<prefix>/<key>`, `_` in place of `-`."""
    made = pod("p")
    for key, amount in amounts.items():
        made = made.asks(f"{prefix}/{key.replace('_', '-')}", amount)
    return made


def refused(key: str, found: str, cure: str) -> Refusal:
    return Refusal(f"{LIMITS}[{key}]", found, cure)
