"""
The parts of a Node object that a decision needs besides GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from contract import names
from contract.encoding import moments, quantity
from contract.model import MOST_COMPUTE, Compute, Taint
from contract.nodes.capacity import Amounts, vendor_gpus
from contract.scheduling.nodefilters import features as declared_features
from contract.scheduling.nodefilters import resources

JSON = dict[str, Any]
MOST_TAINTS = 100
TOO_MANY = Taint("gpufraction.io/more-taints-than-are-read", "", "NoSchedule")
_NOTHING = Compute()
_KEPT = ("name", "labels", "creationTimestamp", "resourceVersion")


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """The fields of a Node that decisions read, without its GPUs."""

    name: str
    labels: dict[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    cordoned: bool = False
    ready: bool = False
    allocatable: Compute = _NOTHING
    created: float = 0.0
    """When the Node was created, in seconds since 1970; 0 if it does not say."""
    vendors: frozenset[str] = frozenset()
    """Resources by which NVIDIA's own plugin offers GPUs here (`contract.nodes.capacity`)."""
    features: frozenset[str] = frozenset()
    """Those of its declared features that decide about pods (`contract.scheduling.nodefilters.features`)."""
    accounting: Amounts | None = None
    """The accounting resources that Kubernetes has for pods here; None if the Node has none."""


def trim(node: Mapping[str, Any]) -> JSON:
    """The node with only the fields that `facts` reads: its list of images alone can have 50 KiB."""
    metadata, spec, status = node.get("metadata") or {}, node.get("spec") or {}, node.get("status") or {}
    ready = [c for c in status.get("conditions") or [] if c.get("type") == "Ready"]
    features = declared_features.declared(status.get("declaredFeatures") or ())
    listed = {"declaredFeatures": sorted(features)} if features else {}
    return {
        "metadata": {key: metadata[key] for key in _KEPT if key in metadata},
        "spec": {key: spec[key] for key in ("taints", "unschedulable") if key in spec},
        "status": {"allocatable": status.get("allocatable") or {}, "conditions": ready, **listed},
    }


def facts(node: Mapping[str, Any]) -> NodeFacts:
    """Read a Node. An amount that is not a quantity counts as 0, so the node takes no pod that needs it."""
    metadata, spec, status = node.get("metadata") or {}, node.get("spec") or {}, node.get("status") or {}
    return NodeFacts(
        name=metadata.get("name", ""),
        labels=dict(metadata.get("labels") or {}),
        taints=_taints(spec.get("taints") or []),
        cordoned=bool(spec.get("unschedulable")),
        ready=any(c.get("type") == "Ready" and c.get("status") == "True" for c in status.get("conditions") or []),
        allocatable=_allocatable(status.get("allocatable") or {}),
        created=moments.created(node),
        vendors=vendor_gpus(status.get("allocatable") or {}),
        features=declared_features.declared(status.get("declaredFeatures") or ()),
        accounting=_accounting(status.get("allocatable") or {}),
    )


def _taints(listed: list[JSON]) -> tuple[Taint, ...]:
    """
    The node's taints; of more than `MOST_TAINTS` the first ones, and one that stands for the others.

    Each taint is compared with every toleration of every pod, and a kubelet can write any number of taints.
    """
    found = tuple(Taint(t.get("key", ""), t.get("value") or "", t.get("effect", "")) for t in listed[:MOST_TAINTS])
    return found if len(listed) <= MOST_TAINTS else (*found, TOO_MANY)


def _allocatable(amounts: Mapping[str, Any]) -> Compute:
    def whole(name: str) -> int:
        try:
            return _within(quantity.parse(amounts.get(name, 0)))
        except quantity.BadQuantity:
            return 0

    try:
        cpu = _within(quantity.parse(amounts.get("cpu", 0)) * 1000)
    except quantity.BadQuantity:
        cpu = 0
    others = sorted(filter(resources.is_scalar, amounts))[: resources.MOST_OF_A_NODE]
    scalars = tuple((name, whole(name)) for name in others)
    return Compute(cpu, whole("memory"), whole("ephemeral-storage"), whole("pods"), scalars)


def _accounting(amounts: Mapping[str, Any]) -> Amounts | None:
    if names.GPU_MEMORY not in amounts:
        return None
    memory, cores = (quantity.integer_or(amounts.get(name), 0) for name in (names.GPU_MEMORY, names.GPU_CORES))
    return Amounts(*(max(0, min(amount, MOST_COMPUTE)) for amount in (memory, cores)))


def _within(amount: Fraction) -> int:
    """The amount as a whole number within the bounds of counting: a kubelet can write any amount."""
    return max(0, min(int(amount), MOST_COMPUTE))
