"""
The amounts that a claim requests and its rules: the claim and its class, read together.

A claim counts memory in GiB, but a pod's resource of the same name counts MiB, as in every manifest of that system. The
class may set another unit. A refusal is a `Problem`, which contains the field, the value found and a value that works.
"""

from __future__ import annotations

from dataclasses import dataclass

from allocator.features.elasticgpuclaims.objects import (
    DELETE,
    FIRST_CONSUMER,
    IMMEDIATE,
    PROVISIONER,
    RETAIN,
    Claim,
    GpuClass,
)
from contract.encoding import quantity
from contract.encoding.reading import is_subdomain, shown
from contract.model import MOST_GPUS, MOST_MEMORY, WHOLE, FractionRequest, PodRequest
from contract.reasons.claims import ClaimReason

CONTAINER = "claim"
"""The name under which a claim's share is booked, in place of a container's."""
GROUPS = (PROVISIONER, "elasticgpu.io", "elasticgpu.com")
"""Prefixes of the names of a claim's amounts."""
_UNITS = {"GiB": quantity.GIB, "MiB": quantity.MIB}
REFUSALS = (ClaimReason.NAMES_ELASTIC_GPU, ClaimReason.CLASS_MISSING, ClaimReason.INVALID)
"""Codes of problems."""
_CORES, _MEMORY = "gpu-core", "gpu-memory"


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a claim cannot be served as it is."""

    code: ClaimReason
    message: str


@dataclass(frozen=True, slots=True)
class ClaimTerms:
    """What a claim requests, when it is bound, and what happens to its share when it is deleted."""

    request: PodRequest
    binding: str = IMMEDIATE
    reclaim: str = DELETE


class _Wrong(Exception):
    pass


def wanted(claim: Claim, found: GpuClass | None) -> ClaimTerms | Problem:
    """Read a claim by the rules of its class; None if the class does not exist."""
    if claim.share_name and not claim.bound:
        text = f"spec.elasticGPUName: found {shown(claim.share_name)}; leave it empty, it is filled in when bound"
        return Problem(ClaimReason.NAMES_ELASTIC_GPU, text)
    if claim.class_name and not is_subdomain(claim.class_name):
        text = f"spec.elasticGPUClassName: found {shown(claim.class_name)}; give the name of an ElasticGPUClass"
        return Problem(ClaimReason.INVALID, text)
    if claim.class_name and found is None:
        return Problem(ClaimReason.CLASS_MISSING, f"ElasticGPUClass {claim.class_name} does not exist; create it")
    try:
        rules = found or GpuClass("")
        _check(rules)
        fraction = _fraction(claim, _UNITS[rules.unit or "GiB"])
    except _Wrong as wrong:
        return Problem(ClaimReason.INVALID, str(wrong))
    return ClaimTerms(
        PodRequest("claims", (fraction,)),
        rules.binding or IMMEDIATE,
        rules.reclaim or DELETE,
    )


def _check(rules: GpuClass) -> None:
    for field, value, known in (
        ("provisioner", rules.provisioner, (PROVISIONER,)),
        ("reclaimPolicy", rules.reclaim, (RETAIN, DELETE)),
        ("egpuBindingMode", rules.binding, (IMMEDIATE, FIRST_CONSUMER)),
        ("parameters.memoryUnit", rules.unit, tuple(_UNITS)),
    ):
        if value and value not in known:
            raise _Wrong(f"ElasticGPUClass {rules.name}: {field}: found {shown(value)}; use {' or '.join(known)}")


def _fraction(claim: Claim, unit: int) -> FractionRequest:
    cores, memory = _amount(claim, _CORES), _amount(claim, _MEMORY)
    core = _whole(*cores, most=MOST_GPUS * WHOLE) if cores else 0
    amount = _bytes(*memory, unit=unit) if memory else 0
    if core >= WHOLE:
        return FractionRequest(CONTAINER, count=core // WHOLE, percent=WHOLE, cores=WHOLE, exclusive=True)
    if not core and not amount:
        raise _Wrong(
            f"spec.resources.requests: found neither memory nor cores; name {PROVISIONER}/{_MEMORY}, "
            f"{PROVISIONER}/{_CORES} or both"
        )
    return FractionRequest(CONTAINER, memory=amount, percent=0 if amount else core, cores=core)


def _amount(claim: Claim, kind: str) -> tuple[str, object] | None:
    found = [(name, value) for name, value in claim.amounts if name in {f"{group}/{kind}" for group in GROUPS}]
    if len(found) > 1:
        raise _Wrong(f"{_path(found[1][0])}: found together with {found[0][0]}; the two mean the same, keep one")
    return found[0] if found else None


def _whole(name: str, value: object, *, most: int) -> int:
    number = quantity.integer_or(value, -1)
    if not 0 <= number <= most:
        raise _Wrong(f"{_path(name)}: found {shown(value)}; give a whole number from 1 to {most}")
    return number


def _bytes(name: str, value: object, *, unit: int) -> int:
    if isinstance(value, str) and value.endswith("i"):
        amount = _whole(name, value, most=MOST_MEMORY)
        if 0 < amount < quantity.MIB:
            raise _Wrong(f"{_path(name)}: found {shown(value)}; give at least 1Mi")
        return amount
    return _whole(name, value, most=MOST_MEMORY // unit) * unit


def _path(name: str) -> str:
    return f"spec.resources.requests[{name}]"
