"""
The least share of a GPU that a container may ask for, whoever wrote the request.

A GPU has a limited number of sharers, so shares of next to nothing would take all of them and none of a quota. Every
request is held to it: one that a dialect read, and one that stands in a pod's annotation already, which its author may
have written. The bounds are the administrator's (`Options`), and never below one MiB and one percent. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from contract import dialects, names
from contract.dialects.base import Asking, PodReader, Refusal
from contract.dialects.options import DEFAULTS, Options
from contract.encoding import quantity
from contract.model import FractionRequest, PodRequest


def problem(pod: Mapping[str, Any], request: PodRequest, options: Options) -> Refusal | None:
    """The first container of the pod that asks for less than the least share; None where none does."""
    if request.claim:
        return None  # the claim says how much, and a quota of their number bounds claims
    memory, percent = max(options.least_memory, quantity.MIB), max(options.least_percent, 1)
    for fraction in request.containers:
        if fraction.memory and fraction.memory < memory:
            found = f"{quantity.format_bytes(fraction.memory)} on each GPU"
            return _refusal(pod, request, fraction, found, f"at least {quantity.format_bytes(memory)}")
        if fraction.percent and fraction.percent < percent:
            found = f"{fraction.percent} % of each GPU"
            return _refusal(pod, request, fraction, found, f"at least {percent} %")
    return None


def _refusal(
    pod: Mapping[str, Any], request: PodRequest, fraction: FractionRequest, found: str, wanted: str
) -> Refusal:
    return Refusal(_field(pod, request, fraction), found, f"ask for {wanted}, the least share of a GPU here")


def _field(pod: Mapping[str, Any], request: PodRequest, fraction: FractionRequest) -> str:
    asking = next((each for each in PodReader(pod, DEFAULTS).containers() if each.name == fraction.container), None)
    return f"container {fraction.container}" if asking is None else _where(asking, request, fraction)


def _where(asking: Asking, request: PodRequest, fraction: FractionRequest) -> str:
    """The resource by which the container asks for the amount; its path where an annotation asks for it."""
    dialect = dialects.dialect_named(request.dialect)
    own = dialect.resources if dialect else ()
    named = [resource for resource in (*own, str(names.GPU_MEMORY)) if asking.asks(resource)]
    alike = [
        resource for resource in named if ("mem" in resource and "percent" not in resource) == bool(fraction.memory)
    ]
    return next((asking.field(resource) for resource in (*alike, *named)), asking.path)
