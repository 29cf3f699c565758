"""
HAMi: its agents write a node's cards into an annotation of the Node, and its scheduler a pod's shares into one of the
pod.

`hami.io/node-nvidia-register` is JSON, or before HAMi 2.5 a row `uuid,splits,MiB,cores,model,numa,health:` for each
card. `hami.io/vgpu-devices-allocated` has `UUID,NVIDIA,MiB,cores:` for each card and `;` after each container.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from contract.encoding.reading import is_gpu
from contract.model import MOST_ON_NODE
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
    number,
    percent,
)

_REGISTERS = ("hami.io/node-nvidia-register", "4pd.io/node-nvidia-register")
_ALLOCATED = ("hami.io/vgpu-devices-allocated", "4pd.io/vgpu-devices-allocated", "4pd.io/vgpu-ids-new")
_NODE = ("hami.io/vgpu-node", "4pd.io/vgpu-node")
_LARGEST = 256 << 10
"""Bytes of an annotation that are read: Kubernetes stores no longer one."""
_PHYSICAL = "nvidia.com/gpu.memory"
"""Label of GPU feature discovery: the MiB that each card of the node has."""


def _cards(node: Mapping[str, Any]) -> Cards:
    annotations = annotations_of(node)
    text = next((annotations[key] for key in _REGISTERS if isinstance(annotations.get(key), str)), "")
    if not text or len(text) > _LARGEST:
        return ()
    physical = mebibytes(labels_of(node).get(_PHYSICAL))
    found: dict[str, SeenCard] = {}
    for index, row in enumerate(_rows(text)):
        if len(found) == MOST_ON_NODE:
            break
        uuid, memory = row.get("id"), mebibytes(row.get("devmem"))
        if not isinstance(uuid, str) or not is_gpu(uuid) or not memory or uuid in found:
            continue
        found[uuid] = SeenCard(
            uuid,
            number(row.get("index"), MOST_ON_NODE, index),
            model_of(row.get("type")).removeprefix("NVIDIA-"),
            memory,
            healthy=row.get("health") in (True, "true"),
            physical=physical if 0 < physical < memory else 0,
        )
    return tuple(found.values())


def _rows(text: str) -> Iterator[Mapping[str, Any]]:
    try:
        listed = json.loads(text)
    except (ValueError, RecursionError):
        for row in text.split(":"):
            cells = row.split(",")
            if len(cells) >= 5:
                yield {
                    "id": cells[0],
                    "devmem": cells[2],
                    "type": cells[4],
                    "health": cells[-1] if len(cells) > 5 else "true",
                }
        return
    yield from (row for row in (listed if isinstance(listed, list) else ()) if isinstance(row, Mapping))


def _held(pod: Mapping[str, Any]) -> Parts:
    annotations, node = annotations_of(pod), (pod.get("spec") or {}).get("nodeName")
    text = next((annotations[key] for key in _ALLOCATED if isinstance(annotations.get(key), str)), "")
    chosen = next((annotations[key] for key in _NODE if key in annotations), node)
    if not node or chosen != node or len(text) > _LARGEST:
        return ()
    parts = []
    for cell in text.replace(";", ":").split(":"):
        fields = cell.split(",")
        if len(fields) == 4 and is_gpu(fields[0]):
            parts.append(HeldPart(fields[0], mebibytes(fields[2]), cores=percent(fields[3])))
        if len(parts) == MOST_PARTS:
            break
    return tuple(parts)


SYSTEM = SharingSystem(
    "hami",
    "HAMi",
    cards=_cards,
    held=_held,
    passing=("hami.io/", "4pd.io/"),
)
