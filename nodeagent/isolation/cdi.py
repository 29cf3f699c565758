"""
The CDI description that gives a container what limits it to its share, without a hostPath volume in its pod.

A container gets the device `gpufraction.io/share=<UUID>` alongside the GPU itself. Its runtime finds the device in this
description and adds the mounts and variables of the mechanism that limits it. Pod Security does not see them. Form: the
Container Device Interface's specification, version 0.5.0, which the container runtimes of all supported Kubernetes
releases read.

Every GPU of the node is described, also one without a limit: a container whose device is missing does not start, and
one that was placed while there was a limit must be able to start again later.

Where cores are reserved, a container gets the device `gpufraction.io/partition=<UUID>.<allocation>` instead, with the
same mounts and its pod's partition. It is described once the daemon has made the partition; until then the container
does not start, and the kubelet tries it again.

Pure. Must not: write files.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contract.isolation import NO_LEVEL
from contract.model import PARTITION_KIND, SHARE_KIND, Allocation, Delivery
from nodeagent.mps.partitions import COMMON, cores_of

PARTITION_FILE = "gpufraction.io-partition.json"
FILE = "gpufraction.io-share.json"
VERSION = "0.5.0"
ISOLATION_VARIABLE = "GPUFRACTION_ISOLATION"
"""Names what limits the container. Each device has it, since a device without any change is refused."""
_JIT = "runtime.nvidia.com/"
"""The toolkit makes devices of this vendor for one container, and refuses those of another vendor alongside them."""


@dataclass(frozen=True, slots=True)
class Edits:
    """
    A mechanism's edits to a container. `env`: `NAME=value`. `mounts`: as in a CDI description. `ready`: False while a
    pod's own device cannot be made yet, so that its container does not start.
    """

    env: tuple[str, ...] = ()
    mounts: tuple[Mapping[str, Any], ...] = ()
    ready: bool = True


NOTHING: tuple[str, Edits] = (NO_LEVEL, Edits())
"""The edits if no mechanism limits a container."""
Choose = Callable[[str, str | None], tuple[str, Edits]]
"""The level that limits a container and its edits, by GPU and by the key of its partition, as for `Mechanism.edits`."""


def possible(delivery: Delivery | None) -> bool:
    """Whether a container can get a device of ours alongside the vendor's."""
    return delivery is not None and bool(delivery.kind) and not delivery.kind.startswith(_JIT)


def needed(allocations: Iterable[Allocation]) -> frozenset[str]:
    """GPUs of which a pod here has our device."""
    return frozenset(
        share.uuid
        for allocation in allocations
        for container in allocation.containers
        for share in container.shares
        if SHARE_KIND in share.cdi.split(",")
    )


def description(uuids: Iterable[str], choose: Choose) -> str:
    """The file's content for all pods' device of each of these GPUs."""
    return _text(SHARE_KIND, [_device(uuid, *choose(uuid, None)) for uuid in sorted(set(uuids))])


def partition_description(allocations: Iterable[Allocation], choose: Choose) -> str:
    """The file's content for the pods' own devices that are ready; empty if no pod here has one."""
    devices, some = {}, False
    for allocation in allocations:
        for uuid, cores in cores_of(allocation).items():
            some, name = True, allocation.partition(uuid)
            level, edits = choose(uuid, name if cores else COMMON)
            if edits.ready:
                devices[name] = _device(name, level, edits)
    return _text(PARTITION_KIND, [devices[name] for name in sorted(devices)]) if some else ""


def mount(host: Path, container: str, access: str) -> dict[str, Any]:
    """A file or folder of the host in the container. `access`: `ro` or `rw`."""
    return {"hostPath": str(host), "containerPath": container, "options": [access, "nosuid", "nodev", "bind"]}


def _device(name: str, level: str, edits: Edits) -> dict[str, Any]:
    found: dict[str, Any] = {"env": [f"{ISOLATION_VARIABLE}={level}", *edits.env]}
    if edits.mounts:
        found["mounts"] = edits.mounts
    return {"name": name, "containerEdits": found}


def _text(kind: str, devices: Sequence[Mapping[str, Any]]) -> str:
    return json.dumps({"cdiVersion": VERSION, "kind": kind, "devices": devices}, indent=1) + "\n"
