"""
The names by which NVIDIA's own device plugin hands out GPUs, beside our shares.

Source: the plugin's README. `nvidia.com/gpu`; with MIG strategy `mixed` one name for each profile; with time-slicing or
MPS and `renameByDefault` the same with `.shared`. Other names under `nvidia.com` stand for no GPU: NICs, channels, or
what somebody made up. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from contract.encoding import quantity

GPU = "nvidia.com/gpu"
_GPUS = re.compile(r"nvidia\.com/(gpu|mig-[0-9][a-z0-9.-]{0,50})(\.shared)?")


def is_gpu(resource: str) -> bool:
    """Whether who asks for this resource is given a GPU by NVIDIA's plugin."""
    return _GPUS.fullmatch(resource) is not None


def offered(amounts: Mapping[str, Any]) -> frozenset[str]:
    """Of a node's allocatable amounts, or of a container's, the plugin's GPUs of which there is at least one."""
    return frozenset(name for name, amount in amounts.items() if is_gpu(name) and _is_some(amount))


def _is_some(amount: object) -> bool:
    try:
        return quantity.integer(amount) > 0
    except quantity.BadQuantity:
        return False
