"""
Draws the GPUs for a terminal: every card, how full it is, and how many pods share it.

Reads only from the API server: the cards from GPUNodes, and their use from the pods' allocations. 80 columns wide.
"""

from __future__ import annotations

from typing import Any

from contract import names, pods
from contract.encoding.quantity import GIB
from contract.nodes.inventories import inventory_from_object
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube

JSON = dict[str, Any]
_WIDTH = 24


def draw(kube: Kube) -> str:
    """One line for each GPU."""
    taken: dict[str, list[int]] = {}
    for pod in kube.list(paths.pods()).items:
        for uuid, memory in _shares(pod).items():
            taken.setdefault(uuid, []).append(memory)
    gpunodes = kube.list(paths.path(names.GPUNODE_GROUP_VERSION, names.GPUNODE_PLURAL)).items
    lines = []
    for item in sorted(gpunodes, key=lambda g: str(g["metadata"]["name"])):
        inventory = inventory_from_object(item)
        for gpu in inventory.gpus:
            here = taken.get(gpu.uuid, [])
            lines.append(_line(inventory.node, gpu.index, gpu.model, sum(here), gpu.memory, len(here)))
    return "\n".join(lines)


def _shares(pod: JSON) -> dict[str, int]:
    request = pods.admitted(pod)
    if request is None or pods.finished(pod) or names.GATE in pods.gates(pod):
        return {}
    allocation = pods.allocation_of(pod, request)
    shares: dict[str, int] = {}
    for container in allocation.containers if allocation else ():
        for share in container.shares:
            shares[share.uuid] = shares.get(share.uuid, 0) + share.memory
    return shares


def _line(node: str, index: int, model: str, taken: int, total: int, sharers: int) -> str:
    filled = min(_WIDTH, -(-taken * _WIDTH // total)) if taken else 0
    bar = "#" * filled + "." * (_WIDTH - filled)
    who = f"{sharers} pod{'s' * (sharers != 1)}" if sharers else "free"
    return f"{node:5} {index} {model[:20]:20} [{bar}] {taken / GIB:5.1f} of {total / GIB:4.1f} GiB  {who}"
