"""
Cards that went and cards that came, between what was published last and what is seen now.

A card that is replaced, or that comes back from a reset with another name, silently strands the pods that were given
the old one. So Events on the Node report it.

Pure. Must not: guess while nothing can be seen; a driver that is gone has not taken its cards along.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from contract.encoding.reading import Malformed
from contract.model import Gpu, Inventory
from contract.nodes.inventories import inventory_from_object
from nodeagent.conditions import Condition, listed
from nodeagent.sharing.cordoning import NAMES_NO_GPU

GONE, REPLACED = "GpuGone", "GpuReplaced"
_WITH_EVENT = frozenset((NAMES_NO_GPU,))
"""Conditions whose beginning is an Event on the Node too, since nobody looks at a GPUNode after writing to a Node."""
REASONS = frozenset((GONE, REPLACED, *_WITH_EVENT))


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


def new_warnings(conditions: Iterable[Condition], standing: Mapping[str, Any]) -> tuple[Change, ...]:
    """Conditions that are worth an Event and say something that the published status did not say yet."""
    known = {(kind, item.get("message")) for kind, item in listed(standing).items()}
    return tuple(
        Change(condition.kind, condition.message)
        for condition in conditions
        if condition.kind in _WITH_EVENT and (condition.kind, condition.message) not in known
    )


def changes(before: tuple[Gpu, ...], now: Inventory) -> tuple[Change, ...]:
    """What Events are to report. Slices come and go by an administrator's hand, and are not."""
    if now.problem:
        return ()
    here = {gpu.uuid for gpu in now.gpus}
    at_index = {gpu.index: gpu for gpu in now.gpus if not gpu.parent}
    known = {gpu.uuid for gpu in before}
    found = []
    for gpu in before:
        if gpu.parent or gpu.uuid in here:
            continue
        successor = at_index.get(gpu.index)
        what = f"GPU {gpu.uuid} ({gpu.model}, index {gpu.index})"
        if successor is not None and successor.uuid not in known:
            message = f"{what} was removed; at its index is {successor.uuid} ({successor.model})"
            found.append(Change(REPLACED, f"{message}. Pods of the old one have no GPU"))
        else:
            found.append(Change(GONE, f"{what} was removed. Its pods have no GPU"))
    return tuple(found)
