"""
The status of a GPUNode, to the model and back.

The node's agent writes the GPUNode; all other programs read it, in older and newer versions too. Whatever the object
is, reading it raises `Malformed` and no other exception. This is the part that programs read; the agent adds fields for
people, and decides when to write.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from contract.encoding import quantity
from contract.encoding.reading import Malformed, Reader
from contract.model import MOST_MEMORY, MOST_ON_NODE, WITHHELD, Delivery, Gpu, Inventory, PoolSharing


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
    return Delivery(
        found.texts("runtimeClasses"),
        found.text("cdiKind", ""),
        found.flag("byAnnotation"),
        found.text("mounts", ""),
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
    name = Reader(gpunode.get("metadata"), "metadata").text("name")
    status = Reader(gpunode.get("status") or {}, "status")
    options = tuple((item.text("name"), item.text("value")) for item in status.objects("options"))
    sharing = sharing_of(dict(options))
    gpus = [_gpu_from_json(item, sharing) for item in status.objects("gpus", most=MOST_ON_NODE)]
    if len({gpu.uuid for gpu in gpus}) != len(gpus):
        raise Malformed("status.gpus names a GPU twice")
    return Inventory(
        node=name,
        gpus=tuple(sorted(gpus, key=lambda gpu: gpu.index)),
        driver=status.text("driverVersion", ""),
        cuda=status.text("cudaVersion", ""),
        problem=status.text("problem", ""),
        kernel=status.text("kernelVersion", ""),
        cgroup=status.text("cgroupMode", ""),
        delivery=_delivery_from_json(status),
        isolation=status.texts("isolation"),
        pool=status.text("pool", ""),
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
        model=item.text("model", ""),
        memory=memory,
        usable=min(memory, item.amount("usableBytes", memory)),
        # An unknown word of a newer agent means that something is wrong.
        healthy=health == "Healthy",
        reason=item.text("reason", ""),
        withheld=health if health in WITHHELD else "",
        pci=item.text("pciAddress", ""),
        capability=item.text("computeCapability", ""),
        numa=item.amount("numaNode", 0) if item.has("numaNode") else -1,
        nvlinks=item.amount("nvlinks", 0),
        links=tuple((link.text("uuid"), link.text("path")) for link in item.objects("links")),
        parent=item.text("parent", ""),
        sharing=sharing,
    )
