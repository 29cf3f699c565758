"""
The status of a GPUNode, to the model and back.

The node's agent writes the GPUNode; all other programs read it, in older and newer versions too. Whatever the object
is, reading it raises `Malformed` and no other exception. This is the part that programs read; the agent adds fields for
people, and decides when to write.

A stranger may have one node's agent. So names must be valid in Kubernetes, levels of isolation must be known, and text
for people is made fit to be shown, each field within its bound.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from contract.encoding import quantity, wire
from contract.encoding.plain import MESSAGE
from contract.encoding.reading import Malformed, are_kinds
from contract.isolation import ISOLATION
from contract.model import (
    AS_SET,
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


def _gpu(*, health: str, memory: int, usable: int, **values: Any) -> Gpu:
    return Gpu(
        memory=memory,
        usable=min(memory, usable),
        # An unknown word of a newer agent means that something is wrong.
        healthy=health == "Healthy",
        withheld=health if health in WITHHELD else "",
        **values,
    )


_GPU = wire.record(
    Gpu,
    {
        "uuid": wire.GPU_UUID,
        "index": wire.number(1 << 16),
        "model": wire.line(LONGEST_WORD).otherwise(""),
        "memory": wire.number(MOST_MEMORY).named("memoryBytes"),
        "usable": wire.AMOUNT.named("usableBytes").otherwise(MOST_MEMORY),
        "health": wire.TEXT.otherwise("Unhealthy"),
        "reason": wire.line().always(),
        "pci": wire.line(_SHORT).named("pciAddress"),
        "capability": wire.line(_SHORT).named("computeCapability"),
        "nvlinks": wire.AMOUNT,
        "links": wire.listed(wire.row({"uuid": wire.line(LONGEST_WORD), "path": wire.line(_SHORT)}), MOST_ON_NODE),
        "parent": wire.line(LONGEST_WORD),
        "numa": wire.AMOUNT.named("numaNode"),
    },
    make=_gpu,
)


_DELIVERY = wire.record(
    Delivery,
    {
        "classes": wire.listed(wire.line(), _MOST_CLASSES).named("runtimeClasses"),
        "kind": wire.matching(are_kinds, "CDI kinds separated by commas").named("cdiKind"),
        "nri": wire.FLAG.named("byAnnotation"),
        "mounts": wire.line(_SHORT),
        "single": wire.FLAG.named("oneGpuPerContainer"),
        "partitions": wire.FLAG,
        "dra": wire.FLAG.named("byClaim"),
    },
    whole=True,
)


def _delivery_to_json(delivery: Delivery) -> dict[str, Any]:
    """The delivery as JSON. `modes` is for people; programs read the rest."""
    modes = {
        ("env-plain" if not name else "env-class") + ("-cdi" if delivery.kind else "") for name in delivery.classes
    }
    if delivery.nri:
        modes = {"nri-annotation"}
    if delivery.dra:
        modes = {"dra"}
    return {"modes": sorted(modes) or ["none"], **_DELIVERY.to_json(delivery)}


def _known_levels(words: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(level for level in ISOLATION if level in words)


_STATUS = wire.record(
    Inventory,
    {
        "driver": wire.line(_SHORT).named("driverVersion"),
        "cuda": wire.line(_SHORT).named("cudaVersion"),
        "problem": wire.line(MESSAGE),
        "kernel": wire.line(LONGEST_WORD).named("kernelVersion"),
        "cgroup": wire.line(_SHORT).named("cgroupMode"),
        "delivery": wire.optional(replace(_DELIVERY, write=_delivery_to_json)),
        "isolation": wire.listed(wire.TEXT).then(_known_levels),
        "proof": wire.optional(wire.line(_SHORT)).named("isolationProof"),
        "pool": wire.line(),
        "options": wire.listed(wire.row({"name": wire.line(_SHORT), "value": wire.line()}), _MOST_OPTIONS),
        "gpus": wire.listed(_GPU, MOST_ON_NODE),
    },
    make=dict,
    whole=True,
)
_GPUNODE = wire.struct(
    {"metadata": wire.struct({"name": wire.OBJECT_NAME}), "status": wire.optional(_STATUS).otherwise(None)}
)


def inventory_to_status(inventory: Inventory) -> dict[str, Any]:
    """The `status` of a GPUNode, without the time of its writing. Quantities are plain bytes: programs read this."""
    return cast(dict[str, Any], _STATUS.to_json(inventory))


def inventory_from_object(gpunode: object) -> Inventory:
    """Read a GPUNode, whose name is its node's. Raises `Malformed`."""
    found = _GPUNODE.from_json(gpunode)
    status = found["status"] or {}
    sharing, gpus = sharing_of(dict(status.get("options", ()))), status.pop("gpus", ())
    if len({gpu.uuid for gpu in gpus}) != len(gpus):
        raise Malformed("status.gpus names a GPU twice")
    if sharing != AS_SET:
        gpus = [replace(gpu, sharing=sharing) for gpu in gpus]
    return Inventory(found["metadata"]["name"], tuple(sorted(gpus, key=lambda gpu: gpu.index)), **status)


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
        factor = ratio = math.inf  # a number that no float holds is more than any GPU has
    if not 0 <= sharers <= 1024 or not all(times == 0 or 1 <= times <= 10 for times in (factor, ratio)):
        raise Malformed("status.options asks for sharers, scaling or limits beyond what a GPU can bear")
    return PoolSharing(sharers, factor, options.get("disablecorelimit") == "true", ratio)
