"""
Cards that went and cards that came, between what was published last and what is seen now.

A card that is replaced, or that comes back from a reset with another name, silently strands the pods that were given
the old one. So it is told: on the Node, as Events.

Pure. Must not: guess while nothing can be seen; a driver that is gone has not taken its cards along.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from contract.inventories import inventory_from_object
from contract.model import Gpu, Inventory
from contract.reading import Malformed

GONE, REPLACED = "GpuGone", "GpuReplaced"


@dataclass(frozen=True, slots=True)
class Change:
    """One thing to tell: a CamelCase reason and a sentence."""

    reason: str
    message: str


def published_gpus(status: Mapping[str, Any]) -> tuple[Gpu, ...]:
    """The GPUs of a published status; none where it cannot be read."""
    try:
        return inventory_from_object({"metadata": {"name": "published"}, "status": dict(status)}).gpus
    except Malformed:
        return ()


def changes(before: tuple[Gpu, ...], now: Inventory) -> tuple[Change, ...]:
    """What is to be told. Slices come and go by an administrator's hand, and are not."""
    if now.problem:
        return ()
    here = {gpu.uuid for gpu in now.gpus}
    at_index = {gpu.index: gpu for gpu in now.gpus if not gpu.parent}
    known = {gpu.uuid for gpu in before}
    told = []
    for gpu in before:
        if gpu.parent or gpu.uuid in here:
            continue
        successor = at_index.get(gpu.index)
        what = f"GPU {gpu.uuid} ({gpu.model}, index {gpu.index})"
        if successor is not None and successor.uuid not in known:
            message = f"{what} is not here any more; at its index is {successor.uuid} ({successor.model})"
            told.append(Change(REPLACED, f"{message}. Pods that were given the old one have no GPU"))
        else:
            told.append(Change(GONE, f"{what} is not here any more. Pods that were given it have no GPU"))
    return tuple(told)
