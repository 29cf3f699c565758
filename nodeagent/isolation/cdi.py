"""
The CDI description that gives a container what limits it to its share, without a hostPath volume in its pod.

A container gets the device `gpufraction.io/share=<UUID>` beside the GPU itself. Its runtime finds the device in this
description and adds its mounts and variables: the sockets of that GPU's MPS daemon, or the preloaded library. Pod
Security does not see them. Form: the Container Device Interface's specification, version 0.5.0, which the container
runtimes of all supported Kubernetes releases read.

Every GPU of the node is described, also one without a limit: a container whose device is missing does not start, and
one that was placed while there was a limit must be able to start again later.

Where cores are reserved, a container gets the device `gpufraction.io/partition=<UUID>.<allocation>` instead, with the
same mounts and its pod's partition. It is described once the daemon has made the partition; until then the container
does not start, and the kubelet tries it again.

Pure. Must not: write files.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from contract.isolation import MPS, NO_LEVEL, PRELOAD
from contract.model import PARTITION_KIND, SHARE_KIND, Allocation, Delivery
from nodeagent.mps.exchange import PIPE_IN_CONTAINER, MpsPaths
from nodeagent.mps.partitions import COMMON, cores_of

PARTITION_FILE = "gpufraction.io-partition.json"
FILE = "gpufraction.io-share.json"
VERSION = "0.5.0"
CACHE_IN_CONTAINER = "/var/lib/gpufraction"
"""
Where the library keeps its counts, by the container's `CUDA_DEVICE_MEMORY_SHARED_CACHE`. It is memory, new at each
start of the container: in a file that outlasts it, a killed process would count again once another process has its id.
"""
LIBRARY_IN_CONTAINER = "/usr/local/vgpu/libvgpu.so"
"""Where HAMi-core looks for itself by default."""
PRELOAD_IN_CONTAINER = "/etc/ld.so.preload"
"""A file, not a variable, so that a program started with an empty environment is limited too."""
ISOLATION_VARIABLE = "GPUFRACTION_ISOLATION"
"""Names what limits the container. Each device has it, since a device without any change is refused."""
PARTITION_VARIABLE = "CUDA_MPS_SM_PARTITION"
"""MPS clients of a daemon that gives out partitions must have it."""
_JIT = "runtime.nvidia.com/"
"""The toolkit makes devices of this vendor for one container, and refuses those of another vendor beside them."""


@dataclass(frozen=True, slots=True)
class Preloaded:
    """The library's files on the host."""

    library: Path
    preload: Path
    """The content of the container's `/etc/ld.so.preload`."""


def possible(delivery: Delivery | None) -> bool:
    """Whether a container can get a device of ours beside the vendor's."""
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


@dataclass(frozen=True, slots=True)
class Way:
    """
    What limits new containers. `mps`: GPUs whose daemon they use; on the others they get the preloaded library if there
    is one. Slices of cards get neither: MPS does not limit them, and the library was not made for them. `partitions`:
    of each GPU whose daemon gives out partitions, their names by the key of the share.
    """

    mps: Collection[str]
    places: MpsPaths
    preloaded: Preloaded | None = None
    partitions: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def description(uuids: Iterable[str], way: Way) -> str:
    """The file's content for all pods' device of each of these GPUs."""
    devices = []
    for uuid in sorted(set(uuids)):
        common = way.partitions.get(uuid, {}).get(COMMON, "")
        devices.append({"name": uuid, "containerEdits": _edits(uuid, way, common)})
    return _text(SHARE_KIND, devices)


def partition_description(allocations: Iterable[Allocation], way: Way) -> str:
    """
    The file's content for the pods' own devices; empty if no pod here has one. A device is left out while its GPU's
    daemon has not made its partition.
    """
    devices, some = {}, False
    for allocation in allocations:
        for uuid, cores in cores_of(allocation).items():
            some = True
            name, made = allocation.partition(uuid), way.partitions.get(uuid)
            own = made.get(name if cores else COMMON, "") if made is not None else ""
            if made is None or own:
                devices[name] = {"name": name, "containerEdits": _edits(uuid, way, own)}
    return _text(PARTITION_KIND, [devices[name] for name in sorted(devices)]) if some else ""


def _text(kind: str, devices: Sequence[Mapping[str, Any]]) -> str:
    return json.dumps({"cdiVersion": VERSION, "kind": kind, "devices": devices}, indent=1) + "\n"


def _edits(uuid: str, way: Way, partition: str) -> dict[str, Any]:
    places, preloaded = way.places, way.preloaded
    if uuid in way.mps:
        mounts = [
            _mount(places.of(uuid) / "pipe", PIPE_IN_CONTAINER, "rw"),
            # Daemon and clients share memory there.
            _mount(places.root / "shm", "/dev/shm", "rw"),
        ]
        env = [f"{ISOLATION_VARIABLE}={MPS.name}", f"CUDA_MPS_PIPE_DIRECTORY={PIPE_IN_CONTAINER}"]
        if partition:
            env.append(f"{PARTITION_VARIABLE}={uuid}/{partition}")
    elif preloaded is not None and not uuid.startswith("MIG-"):
        mounts = [
            _mount(preloaded.library, LIBRARY_IN_CONTAINER, "ro"),
            _mount(preloaded.preload, PRELOAD_IN_CONTAINER, "ro"),
            {
                "hostPath": "tmpfs",
                "containerPath": CACHE_IN_CONTAINER,
                "type": "tmpfs",
                "options": ["mode=1777", "size=16m", "nosuid", "nodev", "noexec"],
            },
        ]
        # Otherwise its messages would be among the lines that programs parse.
        env = [f"{ISOLATION_VARIABLE}={PRELOAD.name}", "LIBCUDA_LOG_LEVEL=0"]
    else:
        return {"env": [f"{ISOLATION_VARIABLE}={NO_LEVEL}"]}
    return {"env": env, "mounts": mounts}


def _mount(host: Path, container: str, access: str) -> dict[str, Any]:
    return {"hostPath": str(host), "containerPath": container, "options": [access, "nosuid", "nodev", "bind"]}
