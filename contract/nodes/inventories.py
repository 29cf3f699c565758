"""
The status of a GPUNode, to the model and back.

The node's agent writes the GPUNode; all other programs read it, in older and newer versions too. Whatever the object
is, reading it raises `Malformed` and no other exception. This is the part that programs read; the agent adds fields for
people, and decides when to write.

A stranger may have one node's agent. So names are names as Kubernetes has them, levels of isolation are those that are
known, and text for people is made fit to be shown, each field within its bound.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from contract.encoding import quantity
from contract.encoding.plain import MESSAGE
from contract.encoding.reading import Malformed, Reader, are_kinds
from contract.isolation import ISOLATION
from contract.model import (
    LONGEST_WORD,
    MOST_MEMORY,
    MOST_ON_NODE,
    WITHHELD,
    Delivery,
    Gpu,
    Inventory,
    PoolSharing,
)

_MOST_OPTIONS, _MOST_CLASSES = 64, 64
_SHORT = 64
"""Bytes of a version, an address or a word."""


def inventory_to_status(inventory: Inventory) -> dict[str, Any]:
    """The `status` of a GPUNode, without the time of its writing. Quantities are plain bytes: programs read this."""
    return {
        "driverVersion": inventory.driver,
        "cudaVersion": inventory.cuda,
        "problem": inventory.problem,
        "kernelVersion": inventory.kernel,
        "cgroupMode": inventory.cgroup,
        "delivery": _delivery_to_json(inventory.delivery),
        "isolation": list(inventory.isolation),
        "pool": inventory.pool,
        "options": [{"name": name, "value": value} for name, value in inventory.options],
        "gpus": [_gpu_to_json(gpu) for gpu in inventory.gpus],
    }


def _delivery_to_json(delivery: Delivery | None) -> dict[str, Any] | None:
    """The delivery as JSON. `modes` is for people; programs read the rest."""
    if delivery is None:
        return None
    modes = {
        ("env-plain" if not name else "env-class") + ("-cdi" if delivery.kind else "") for name in delivery.classes
    }
    if delivery.nri:
        modes = {"nri-annotation"}
    if delivery.dra:
        modes = {"dra"}
    return {
        "modes": sorted(modes) or ["none"],
        "runtimeClasses": list(delivery.classes),
        "cdiKind": delivery.kind,
        "byAnnotation": delivery.nri,
        "mounts": delivery.mounts,
        "oneGpuPerContainer": delivery.single,
        "partitions": delivery.partitions,
        "byClaim": delivery.dra,
    }


def _delivery_from_json(status: Reader) -> Delivery | None:
    if not status.has("delivery"):
        return None
    found = status.object("delivery")
    classes, kind = found.lines("runtimeClasses"), found.text("cdiKind", "")
    if len(classes) > _MOST_CLASSES:
        raise Malformed(f"status.delivery.runtimeClasses has more than {_MOST_CLASSES} items")
    if not are_kinds(kind):
        raise Malformed("status.delivery.cdiKind is not a CDI kind")
    return Delivery(
        classes,
        kind,
        found.flag("byAnnotation"),
        found.line("mounts", "", most=_SHORT),
        found.flag("oneGpuPerContainer"),
        found.flag("partitions"),
        found.flag("byClaim"),
    )


def _gpu_to_json(gpu: Gpu) -> dict[str, Any]:
    document: dict[str, Any] = {
        "uuid": gpu.uuid,
        "index": gpu.index,
        "model": gpu.model,
        "memoryBytes": gpu.memory,
        "usableBytes": gpu.usable,
        "health": gpu.withheld or ("Healthy" if gpu.healthy else "Unhealthy"),
        "reason": gpu.reason,
    }
    optional = {
        "pciAddress": gpu.pci,
        "computeCapability": gpu.capability,
        "nvlinks": gpu.nvlinks,
        "links": [{"uuid": uuid, "path": path} for uuid, path in gpu.links],
        "parent": gpu.parent,
    }
    document.update({key: value for key, value in optional.items() if value})
    if gpu.numa >= 0:
        document["numaNode"] = gpu.numa
    return document


def inventory_from_object(gpunode: Mapping[str, Any]) -> Inventory:
    """Read a GPUNode, whose name is its node's. Raises `Malformed`."""
    if not isinstance(gpunode, Mapping):
        raise Malformed("the GPUNode is not an object")
    name = Reader(gpunode.get("metadata"), "metadata").name("name")
    status = Reader(gpunode.get("status") or {}, "status")
    listed, levels = status.objects("options", most=_MOST_OPTIONS), status.texts("isolation")
    options = tuple((item.line("name", most=_SHORT), item.line("value")) for item in listed)
    sharing = sharing_of(dict(options))
    gpus = [_gpu_from_json(item, sharing) for item in status.objects("gpus", most=MOST_ON_NODE)]
    if len({gpu.uuid for gpu in gpus}) != len(gpus):
        raise Malformed("status.gpus names a GPU twice")
    return Inventory(
        node=name,
        gpus=tuple(sorted(gpus, key=lambda gpu: gpu.index)),
        driver=status.line("driverVersion", "", most=_SHORT),
        cuda=status.line("cudaVersion", "", most=_SHORT),
        problem=status.line("problem", "", most=MESSAGE),
        kernel=status.line("kernelVersion", "", most=LONGEST_WORD),
        cgroup=status.line("cgroupMode", "", most=_SHORT),
        delivery=_delivery_from_json(status),
        isolation=tuple(level for level in ISOLATION if level in levels),
        pool=status.line("pool", ""),
        options=options,
    )


def sharing_of(options: Mapping[str, str]) -> PoolSharing:
    """How GPUs are shared, from options by name. Raises `Malformed`."""
    try:
        sharers = quantity.integer(options.get("deviceSplitCount", "0"))
        factor, ratio = (
            float(quantity.parse(options.get(name, "0"))) for name in ("deviceMemoryScaling", "memoryLimitRatio")
        )
    except quantity.BadQuantity as error:
        raise Malformed(f"status.options: {error}") from error
    except OverflowError:
        factor = ratio = math.inf  # more than a float holds is more than a GPU can bear
    if not 0 <= sharers <= 1024 or not all(times == 0 or 1 <= times <= 10 for times in (factor, ratio)):
        raise Malformed("status.options asks for sharers, scaling or limits beyond what a GPU can bear")
    return PoolSharing(sharers, factor, options.get("disablecorelimit") == "true", ratio)


def _gpu_from_json(item: Reader, sharing: PoolSharing) -> Gpu:
    memory = item.amount("memoryBytes", most=MOST_MEMORY)
    health = item.text("health", "Unhealthy")
    return Gpu(
        uuid=item.uuid("uuid"),
        index=item.amount("index", most=1 << 16),
        model=item.line("model", "", most=LONGEST_WORD),
        memory=memory,
        usable=min(memory, item.amount("usableBytes", memory)),
        # An unknown word of a newer agent means that something is wrong.
        healthy=health == "Healthy",
        reason=item.line("reason", ""),
        withheld=health if health in WITHHELD else "",
        pci=item.line("pciAddress", "", most=_SHORT),
        capability=item.line("computeCapability", "", most=_SHORT),
        numa=item.amount("numaNode", 0) if item.has("numaNode") else -1,
        nvlinks=item.amount("nvlinks", 0),
        links=tuple(
            (link.line("uuid", most=LONGEST_WORD), link.line("path", most=_SHORT))
            for link in item.objects("links", most=MOST_ON_NODE)
        ),
        parent=item.line("parent", "", most=LONGEST_WORD),
        sharing=sharing,
    )
