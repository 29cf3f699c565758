"""
Cards that were removed or replaced since they were published last.

The pods of a card that is replaced, or that has another UUID after a reset, have no GPU any more. So Events on the Node
report this.

Pure. Must not: report anything while the driver is unavailable; its cards still exist.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from contract.encoding.reading import Malformed
from contract.model import Gpu, Inventory
from contract.nodes.inventories import inventory_from_object
from contract.reasons.gpunodes import NodeEventReason
from nodeagent.conditions import Condition, listed
from nodeagent.sharing.cordoning import NAMES_NO_GPU

_WITH_EVENT = {NAMES_NO_GPU: NodeEventReason.CORDON_NAMES_NO_GPU}
"""Conditions that begin with an Event on the Node: an administrator who edits a Node does not look at its GPUNode."""
REASONS = frozenset((NodeEventReason.GPU_GONE, NodeEventReason.GPU_REPLACED, *_WITH_EVENT.values()))


@dataclass(frozen=True, slots=True)
class Change:
    """One Event: a reason and a sentence."""

    reason: NodeEventReason
    message: str


def published_gpus(status: Mapping[str, Any]) -> tuple[Gpu, ...]:
    """The GPUs of a published status; none if it cannot be read."""
    try:
        return inventory_from_object({"metadata": {"name": "published"}, "status": dict(status)}).gpus
    except Malformed:
        return ()


def new_warnings(conditions: Iterable[Condition], status: Mapping[str, Any]) -> tuple[Change, ...]:
    """Events for conditions that need one and that the published status does not have yet."""
    known = {(kind, item.get("message")) for kind, item in listed(status).items()}
    return tuple(
        Change(_WITH_EVENT[condition.kind], condition.message)
        for condition in conditions
        if condition.kind in _WITH_EVENT and (condition.kind, condition.message) not in known
    )


def changes(before: tuple[Gpu, ...], now: Inventory) -> tuple[Change, ...]:
    """Events for cards that were removed or replaced. Slices get none: an administrator removes them."""
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
            found.append(Change(NodeEventReason.GPU_REPLACED, f"{message}. Pods of the old one have no GPU"))
        else:
            found.append(Change(NodeEventReason.GPU_GONE, f"{what} was removed. Its pods have no GPU"))
    return tuple(found)
