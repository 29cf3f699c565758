"""
gpufraction itself: pods with our allocation. So what happens after the switch is recorded in the same form.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from contract import names, pods
from contract.encoding.reading import Malformed
from contract.nodes.inventories import inventory_from_object
from shadow.systems.base import MOST_PARTS, Cards, HeldPart, Parts, SeenCard, SharingSystem


def _cards(node: Mapping[str, Any]) -> Cards:
    """Of a GPUNode; a Node does not name its cards."""
    if node.get("kind") != "GPUNode":
        return ()
    try:
        found = inventory_from_object(node)
    except Malformed:
        return ()
    return tuple(
        SeenCard(gpu.uuid, gpu.index, gpu.model, gpu.memory, healthy=gpu.healthy)
        for gpu in found.gpus
        if not gpu.parent
    )


def _held(pod: Mapping[str, Any]) -> Parts:
    allocation = pods.carried_allocation(pod)
    if allocation is None or names.GATE in pods.gates(pod):
        return ()
    shares = [share for each in allocation.containers for share in each.shares]
    return tuple(HeldPart(each.uuid, each.memory, cores=each.cores) for each in shares[:MOST_PARTS])


SYSTEM = SharingSystem("gpufraction", "gpufraction", cards=_cards, held=_held, passing=(f"{names.GROUP}/",))
