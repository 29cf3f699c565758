"""Helpers for cases: what a pod requests, and the result of reading it."""

from __future__ import annotations

from typing import Any

from contract.dialects.base import Refusal
from contract.model import FractionRequest, PodRequest
from tests.builders import PodBuilder, pod

Outcome = PodRequest | Refusal | None
LIMITS = "spec.containers[0].resources.limits"


def one(dialect: str, *, unit: int = 0, **fraction: Any) -> PodRequest:
    """The request of a pod in which only the container `main` requests something."""
    return PodRequest(dialect, (FractionRequest("main", **fraction),), unit=unit)


def asking(prefix: str, **amounts: int | str) -> PodBuilder:
    """A pod whose container `main` requests `<prefix>/<key>`, with `_` instead of `-`."""
    made = pod("p")
    for key, amount in amounts.items():
        made = made.asks(f"{prefix}/{key.replace('_', '-')}", amount)
    return made


def refused(key: str, found: str, cure: str) -> Refusal:
    return Refusal(f"{LIMITS}[{key}]", found, cure)
