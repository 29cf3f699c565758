"""
How a placed pod is tied to its node: `nodeName` binds at admission, `affinity` leaves the binding to kube-scheduler.

One pure function. `nodeName` is only right where everything that kube-scheduler would have checked has been checked
here, and where the node has room for ours and for whatever kube-scheduler may bind in the same moment: else a kubelet
would refuse whoever comes second.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from contract import dialects
from contract.model import Compute, NodeState
from contract.scheduling import needs as scheduling
from contract.scheduling.needs import PodNeeds

Pin = Literal["nodeName", "affinity"]

_HEADROOM = 4
"""One part in 4 of a node's CPU and memory stays free under `nodeName`: what others see of the node may lag behind what
we see, and what we see behind what is."""
_NOTHING = Compute()
_JUDGED_HERE = frozenset({scheduling.CPU, scheduling.MEMORY, scheduling.STORAGE})
_DEFAULT_SCHEDULERS = ("", "default-scheduler")


def choose(mode: str, left_to_scheduler: bool, needs: PodNeeds, node: NodeState, pending: Compute = _NOTHING) -> Pin:
    """
    The pin for a pod that goes to `node`, whose state does not count the pod yet.

    `left_to_scheduler`: what `only_scheduler_can_judge` says of the pod. `pending`: what kube-scheduler is about to
    place somewhere. A mode other than `nodeName` and `affinity`
    counts as `auto`.
    """
    if needs.node_name or mode == "nodeName":
        return "nodeName"
    if mode == "affinity" or left_to_scheduler or not has_headroom(needs, node, pending):
        return "affinity"
    return "nodeName"


def only_scheduler_can_judge(pod: Mapping[str, Any]) -> bool:
    """Whether the pod has a demand that the allocator does not check."""
    spec = pod.get("spec") or {}
    affinity = spec.get("affinity") or {}
    if affinity.get("podAffinity") or affinity.get("podAntiAffinity"):
        return True
    if spec.get("topologySpreadConstraints") or spec.get("resourceClaims"):
        return True
    if any("persistentVolumeClaim" in v or "ephemeral" in v for v in spec.get("volumes") or []):
        return True
    if spec.get("schedulerName", "") not in _DEFAULT_SCHEDULERS:
        return True
    return any(name not in _JUDGED_HERE and not dialects.ours(name) for name in scheduling.resource_names(spec))


def has_headroom(needs: PodNeeds, node: NodeState, pending: Compute = _NOTHING) -> bool:
    """Whether the node stays clear of its limits with the pod and all that is pending on it, by a pod slot besides."""
    has, taken, wanted = node.allocatable, node.requested, needs.compute
    return (
        (taken.cpu + wanted.cpu + pending.cpu) * _HEADROOM <= has.cpu * (_HEADROOM - 1)
        and (taken.memory + wanted.memory + pending.memory) * _HEADROOM <= has.memory * (_HEADROOM - 1)
        and taken.storage + wanted.storage + pending.storage <= has.storage
        and taken.pods + wanted.pods + pending.pods < has.pods
    )
