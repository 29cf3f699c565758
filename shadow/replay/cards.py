"""
The cards of a recorded node as a node agent of ours would report them, and the Node as it would be after the switch.

After the switch no other system gives GPUs out there, so its resources are gone from the node's allocatable. Delivery
and isolation are unknown: pods are placed as if every way worked. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from contract.dialects import DIALECTS
from contract.model import Gpu, Inventory
from contract.nodes import attributes
from contract.nodes.attributes import NodeFacts
from contract.nodes.capacity import Reserve, vendor_gpus
from contract.nodes.inventories import sharing_of
from contract.options import NO_OPTIONS, PoolOptions
from shadow.recording.records import NodeSeen

JSON = dict[str, Any]
_HOSTNAME = "kubernetes.io/hostname"


def facts_of(seen: NodeSeen) -> NodeFacts:
    """The Node without the GPU resources of other systems."""
    node = seen.node
    status = node.get("status") if isinstance(node.get("status"), Mapping) else {}
    assert isinstance(status, Mapping)
    allocatable = status.get("allocatable")
    amounts: Mapping[str, Any] = allocatable if isinstance(allocatable, Mapping) else {}
    theirs = vendor_gpus(amounts) | {name for name in amounts if DIALECTS.ours(name)}
    kept = {name: amount for name, amount in amounts.items() if name not in theirs}
    metadata = node.get("metadata") if isinstance(node.get("metadata"), Mapping) else {}
    assert isinstance(metadata, Mapping)
    labels = metadata.get("labels")
    named = {"name": seen.name, "labels": dict(labels) if isinstance(labels, Mapping) else {}}
    return attributes.facts({**node, "metadata": named, "status": {**status, "allocatable": kept}})


def inventory_of(seen: NodeSeen, options: PoolOptions = NO_OPTIONS) -> Inventory:
    """The node's cards as a GPUNode would list them."""
    labels = facts_of(seen).labels
    chosen = options.of_node(labels)[1]
    reserve, sharing = Reserve(chosen.reserve or 0, chosen.reserve_percent or 0), sharing_of(dict(chosen.of_nodes()))
    gpus = tuple(
        Gpu(
            card.uuid,
            card.index,
            card.model,
            card.real,
            reserve.usable(card.real),
            healthy=card.healthy,
            reason="" if card.healthy else "unhealthy when it was recorded",
            sharing=sharing,
        )
        for card in seen.cards
        if card.real
    )
    return Inventory(seen.name, tuple(sorted(gpus, key=lambda gpu: (gpu.index, gpu.uuid))))


def renamed(seen: NodeSeen, name: str, at: float) -> NodeSeen:
    """Another node like this one, with cards of its own."""
    metadata = dict(seen.node.get("metadata") or {})
    labels = dict(metadata.get("labels") or {})
    if _HOSTNAME in labels:
        labels[_HOSTNAME] = name
    cards = tuple(
        replace(card, uuid=f"{name}-gpu-{index}", index=index, healthy=True) for index, card in enumerate(seen.cards)
    )
    return NodeSeen(at, name, seen.system, cards, {**seen.node, "metadata": {"name": name, "labels": labels}})


def sliced(found: Inventory, slices: Mapping[str, tuple[int, ...]]) -> Inventory:
    """The inventory with cards in MIG slices: bytes of each slice, by a word of the card's model, whatever its case."""
    gpus = list[Gpu]()
    for gpu in found.gpus:
        layout = next((each for word, each in slices.items() if word.lower() in gpu.model.lower()), ())
        if not layout:
            gpus.append(gpu)
        for at, memory in enumerate(layout):
            least = min(memory, gpu.memory)
            gpus.append(replace(gpu, uuid=f"MIG-{gpu.uuid}-{at}", memory=least, usable=least, parent=gpu.uuid))
    return replace(found, gpus=tuple(replace(gpu, index=at) for at, gpu in enumerate(gpus)))
