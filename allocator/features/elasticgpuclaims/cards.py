"""
The GPU objects: one for each card, with its available amounts.

`status.allocatable` is the rest after all booked shares, including those of unused claims. It contains memory and cores
twice: in the format of that system's own agent (`qgpu-core`, and `qgpu-memory` in whole GiB), and exactly
(`elasticgpu.io/gpu-core`, and `elasticgpu.io/gpu-memory` in MiB). It does not show the holders of shares: an object
without a namespace must not name tenants.

Pure: node states in, writes out, each only where something differs from what was written last.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from allocator.features.elasticgpuclaims.objects import CARD, GROUP_VERSION
from allocator.features.elasticgpuclaims.rendering import card_name
from contract.encoding.quantity import GIB, mib
from contract.model import WHOLE, Gpu, NodeState, Usage
from contract.scheduling.filters import Limits, free

JSON = dict[str, Any]
NODE_LABEL = "elasticgpu.io/node"
_LABEL_MAX = 63
_OURS = "gpufraction"
MANAGED = "app.kubernetes.io/managed-by"


@dataclass(frozen=True, slots=True)
class CardWrite:
    """`create`, `status` or `delete` the GPU object of this name; `body` is the object, or its status."""

    verb: str
    name: str
    body: JSON


def wanted(nodes: Iterable[NodeState], limits: Limits) -> dict[str, JSON]:
    """The desired state of every GPU object, by name. If several cards have the same name, the first counts."""
    found: dict[str, JSON] = {}
    for node in nodes:
        for gpu, usage in zip(node.gpus, node.usage, strict=True):
            found.setdefault(card_name(node.name, gpu.index), _document(node.name, gpu, usage, limits))
    return found


def writes(known: Mapping[str, JSON], documents: Mapping[str, JSON]) -> Iterator[CardWrite]:
    """
    The writes that turn `known`, the present objects, into the wanted ones. They never touch objects that are not ours.

    A card that replaced another is a new object of the same name: the former is deleted first.
    """
    for name, document in sorted(documents.items()):
        before = known.get(name)
        if before is None:
            yield CardWrite("create", name, {key: value for key, value in document.items() if key != "status"})
        elif not is_ours(before):
            continue
        elif before.get("spec") != document["spec"]:
            yield CardWrite("delete", name, {})
        elif before.get("status") != document["status"]:
            yield CardWrite("status", name, document["status"])
    for name in sorted(set(known) - set(documents)):
        if is_ours(known[name]):
            yield CardWrite("delete", name, {})


def is_ours(document: Mapping[str, Any]) -> bool:
    """Whether we created the object. The agent of the old system may have left its own objects."""
    labels = (document.get("metadata") or {}).get("labels") or {}
    return bool(labels.get(MANAGED) == _OURS)


def _document(node: str, gpu: Gpu, usage: Usage, limits: Limits) -> JSON:
    labels = {MANAGED: _OURS, **({NODE_LABEL: node} if len(node) <= _LABEL_MAX else {})}
    return {
        "apiVersion": GROUP_VERSION,
        "kind": CARD,
        "metadata": {"name": card_name(node, gpu.index), "labels": labels},
        "spec": {
            "index": gpu.index,
            "uuid": gpu.uuid,
            "model": gpu.model,
            "memory": gpu.memory,
            "nodeName": node,
        },
        "status": {
            "state": gpu.health,
            "capacity": _amounts(limits.capacity(gpu), WHOLE),
            "allocatable": _amounts(*free(gpu, usage, limits)),
        },
    }


def _amounts(memory: int, cores: int) -> dict[str, str]:
    return {
        "qgpu-core": str(cores),
        "qgpu-memory": str(memory // GIB),
        "elasticgpu.io/gpu-core": str(cores),
        "elasticgpu.io/gpu-memory": str(mib(memory)),
    }
