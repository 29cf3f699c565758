"""
The startup taint, by which an autoscaler and kube-scheduler wait until a new node's GPUs are published.

A pool puts `startup-taint.cluster-autoscaler.kubernetes.io/gpufraction` on its nodes. Cluster Autoscaler then counts a
new node as starting, and adds no second one for the same pods; Karpenter does the same with its `startupTaints`. The
agent removes the taint when the node can take pods with a share.

The removal names the position and the whole taint: a list of taints that changed meanwhile makes the API server refuse
it, so the agent never overwrites another taint. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from contract import names
from contract.reasons.gpunodes import GPUNodeReason
from nodeagent.conditions import Condition

JSON = dict[str, Any]
Taints = tuple[tuple[int, JSON], ...]
"""Taints as the Node has them, each with its position."""

NOT_REMOVED = "StartupTaint"
_LONGEST_MESSAGE = 512
"""Characters of a refusal that the condition repeats."""


def taints_of(node: Mapping[str, Any]) -> Taints:
    """The startup taints of a Node: none, or one for each effect."""
    listed = (node.get("spec") or {}).get("taints") or ()
    return tuple((at, dict(taint)) for at, taint in enumerate(listed) if taint.get("key") == names.STARTUP_TAINT)


def removal(taints: Taints) -> tuple[JSON, ...]:
    """JSON patch operations that remove these taints if they are where they were seen; the last one goes first."""
    found: list[JSON] = []
    for at, taint in sorted(taints, key=lambda item: item[0], reverse=True):
        path = f"/spec/taints/{at}"
        found += [{"op": "test", "path": path, "value": taint}, {"op": "remove", "path": path}]
    return tuple(found)


def left_on(taints: Taints, *, removes: bool, refused: str = "") -> tuple[Condition, ...]:
    """The condition for a taint that this agent may not remove. `refused`: why the API server refused to."""
    if not taints or (removes and not refused):
        return ()
    if removes:
        message = (
            f"the Node has the taint {names.STARTUP_TAINT}, but the API server refuses its removal, so no pod is "
            f"placed here: remove the taint from the pool; {refused[:_LONGEST_MESSAGE]}"
        )
        return (Condition(True, GPUNodeReason.REMOVAL_REFUSED, message, NOT_REMOVED),)
    message = (
        f"the Node has the taint {names.STARTUP_TAINT}, but this agent may not remove it, so no pod is placed here: "
        f"install manifests/components/startup-taint, or remove the taint from the pool"
    )
    return (Condition(True, GPUNodeReason.MAY_NOT_REMOVE, message, NOT_REMOVED),)
