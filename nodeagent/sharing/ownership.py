"""
Which of a node's GPUs we may share, if the vendor's device plugin may hand them out too.

The plugin gives GPUs to whole-GPU pods independently of us. So on a node where it offers `nvidia.com/gpu`, no GPU is
shared until the administrator chooses, by the label `gpufraction.io/ownership` of the Node:

    no label    plugin offers none ──▶ all GPUs are shared
                plugin offers some ──▶ none is, and the condition PluginConflict lists the two choices
    dedicated   the plugin must be off here: all are shared, but none while it still offers some held        the plugin
    stays. Holder pods (`python -m nodeagent hold`) get GPUs from it like any pod and report them;
                only those are shared, since the plugin gives them to no other pod

When a holder ends, its GPUs are no longer shared: the plugin may give them to other pods.

Pure. Must not: remove or change anything of the vendor's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from contract import names
from contract.encoding.quantity import integer_or
from contract.reasons.gpunodes import GPUNodeReason
from nodeagent.conditions import Condition

PLUGIN_CONFLICT, HELD = "PluginConflict", "Held"
DEDICATED, HOLDING = "dedicated", "held"
_VENDOR = ("nvidia.com/gpu", "nvidia.com/mig-")
_WAYS = (
    f"turn the plugin off on this node (with the GPU operator: label nvidia.com/gpu.deploy.device-plugin=false) and "
    f"label the Node {names.OWNERSHIP}={DEDICATED}, or leave it on, run holder pods and label the Node "
    f"{names.OWNERSHIP}={HOLDING}"
)


@dataclass(frozen=True, slots=True)
class Ownership:
    """The administrator's choice on a Node, and how many GPUs and slices a vendor's plugin offers there."""

    choice: str = ""
    offered: int = 0


@dataclass(frozen=True, slots=True)
class SharedGpus:
    """UUIDs that are shared (None: all), why the others are not, and the conditions that report it."""

    shared: frozenset[str] | None = None
    why: str = ""
    conditions: tuple[Condition, ...] = ()


def read(node: Mapping[str, Any]) -> Ownership:
    """Read a Node. Allocatable counts, because kubelet keeps the capacity of a plugin that was turned off."""
    labels = (node.get("metadata") or {}).get("labels") or {}
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    offered = sum(max(0, integer_or(value, 0)) for name, value in allocatable.items() if name.startswith(_VENDOR))
    return Ownership(str(labels.get(names.OWNERSHIP, "")), offered)


def decide(ownership: Ownership, held: frozenset[str], cards: Iterable[str]) -> SharedGpus:
    """Which of `cards` (UUIDs) are shared. `held`: the UUIDs that this node's holder pods report."""
    if ownership.choice == HOLDING:
        return _held(held, frozenset(cards))
    if not ownership.offered:
        return SharedGpus()
    if ownership.choice == DEDICATED:
        found = f"the Node is labelled {names.OWNERSHIP}={DEDICATED}, but a device plugin still offers GPUs here"
        return _conflict(GPUNodeReason.PLUGIN_STILL_ON, f"{found}; {_WAYS.split(', or ')[0]}, or choose {HOLDING}")
    choice = f" ({names.OWNERSHIP} is {ownership.choice!r}, which is neither)" if ownership.choice else ""
    found = f"a device plugin offers GPUs here and could allocate GPUs that gpufraction shares{choice}: {_WAYS}"
    return _conflict(GPUNodeReason.NO_CHOICE, found)


def _conflict(reason: GPUNodeReason, message: str) -> SharedGpus:
    condition = Condition(True, reason, f"no GPU is shared: {message}", PLUGIN_CONFLICT)
    return SharedGpus(frozenset(), "a device plugin may allocate it; see the condition PluginConflict", (condition,))


def _held(held: frozenset[str], cards: frozenset[str]) -> SharedGpus:
    ours = held & cards
    strangers = f"; holders report {len(held - cards)} that do not exist here" if held - cards else ""
    message = f"{len(ours)} of {len(cards)} GPUs are held by holder pods and shared{strangers}"
    condition = Condition(bool(ours), GPUNodeReason.HELD if ours else GPUNodeReason.NOTHING_HELD, message, HELD)
    return SharedGpus(ours, "no holder pod keeps it from the device plugin", (condition,))
