"""
NVIDIA's device plugin, which gives out whole cards or, with time slicing, replicas of them; KAI-Scheduler shares cards
on top of it.

A Node's cards are read from its capacity and from the labels of GPU feature discovery. The API server does not have
a pod's card, because the kubelet chooses it. So pods hold a number of cards or replicas, and UUIDs are made
up. With KAI, pods that share a card have one group in common, which stands for the card.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from contract.dialects import kai
from contract.encoding import quantity
from contract.model import MOST_GPUS, MOST_ON_NODE, WHOLE
from contract.nodes.capacity import VENDOR_GPU, vendor_gpus
from shadow.systems.base import (
    MOST_PARTS,
    Cards,
    HeldPart,
    Parts,
    SeenCard,
    SharingSystem,
    annotations_of,
    labels_of,
    mebibytes,
    model_of,
    name_of,
    number,
)

_COUNT, _MEMORY, _PRODUCT = "nvidia.com/gpu.count", "nvidia.com/gpu.memory", "nvidia.com/gpu.product"
_REPLICAS = "nvidia.com/gpu.replicas"
_MOST_REPLICAS = 1_024
_SHARED = "-SHARED"
"""The suffix that GPU feature discovery appends to the model of a card that is time-sliced."""
_GROUP, _GROUPS = "runai-gpu-group", "runai-gpu-group."
"""Labels of KAI: the pods with one group on a node share a card; with several cards there is a label for each."""
_RESERVATIONS = frozenset(("kai-resource-reservation", "runai-reservation", "kai-scale-adjust"))
"""Namespaces of the pods by which KAI holds shared cards, and by which it has an autoscaler bring nodes."""
SHARED = f"{VENDOR_GPU}.shared"


def _cards(node: Mapping[str, Any]) -> Cards:
    status, labels = node.get("status") or {}, labels_of(node)
    amounts = status.get("capacity") or status.get("allocatable") or {}
    offered = vendor_gpus(amounts)
    memory = mebibytes(labels.get(_MEMORY))
    units = sum(number(amounts.get(name), MOST_ON_NODE * _MOST_REPLICAS) for name in (VENDOR_GPU, SHARED))
    if not offered or not units or not memory:
        return ()
    replicas = number(labels.get(_REPLICAS), _MOST_REPLICAS)
    count = number(labels.get(_COUNT), MOST_ON_NODE) or units // max(1, replicas) or 1
    if SHARED not in offered and replicas <= 1:
        replicas = 1
    replicas = max(1, replicas or units // count)
    model, name = model_of(labels.get(_PRODUCT)).removesuffix(_SHARED), name_of(node)
    return tuple(SeenCard(f"{name}-gpu-{at}", at, model, memory, replicas=replicas) for at in range(count))


def units_of(pod: Mapping[str, Any]) -> int:
    """Cards or replicas that a pod's containers ask NVIDIA's plugin for, in whichever of its two names."""
    spec = pod.get("spec") or {}
    found = 0
    for container in spec.get("containers") or ():
        limits = (container.get("resources") or {}).get("limits") or {}
        found += sum(number(limits.get(name), MOST_GPUS) for name in (VENDOR_GPU, SHARED) if name in limits)
    return min(found, MOST_PARTS)


def _held(pod: Mapping[str, Any]) -> Parts:
    if not (pod.get("spec") or {}).get("nodeName"):
        return ()
    groups, annotations = _groups(pod), annotations_of(pod)
    if groups:
        amount, part = mebibytes(annotations.get(kai.MEMORY)), _percent(annotations.get(kai.FRACTION))
        return tuple(HeldPart(group, memory=amount, percent=0 if amount else part) for group in groups)
    return (HeldPart(),) * units_of(pod)


def _groups(pod: Mapping[str, Any]) -> list[str]:
    labels, node = labels_of(pod), (pod.get("spec") or {}).get("nodeName", "")
    found = [labels[_GROUP]] if _GROUP in labels else []
    found += [value for key, value in sorted(labels.items()) if key.startswith(_GROUPS)]
    return [f"{node}/{group}" for group in dict.fromkeys(map(str, found))][:MOST_PARTS]


def _percent(text: object) -> int:
    try:
        exact = quantity.parse(text) * WHOLE
    except quantity.BadQuantity:
        return 0
    return int(exact) if Fraction(1) <= exact <= WHOLE else 0


SYSTEM = SharingSystem(
    "nvidia",
    "NVIDIA's device plugin",
    cards=_cards,
    held=_held,
    passing=("runai-", "runai/", "run.ai/", "received-resource-type", "nvidia.com/container."),
    reserving=_RESERVATIONS,
)
