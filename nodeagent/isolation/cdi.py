"""
The CDI description by which a container gets what holds it to its share, without a hostPath volume of its pod.

A container is given `gpufraction.io/share=<UUID>` beside the GPU itself; its runtime looks the device up in this
description and adds what stands there: the sockets of that GPU's MPS daemon, or the preloaded library. Pod Security
never sees any of it. Form: the Container Device Interface's specification, version 0.5.0, which the container runtimes
of all Kubernetes releases that we run on read.

Every GPU of the node is described, also where nothing limits it: a device that is not found keeps a container from
starting, and one that was placed while something did must start again afterwards.

Pure. Must not: write files.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contract.model import SHARE_KIND, Allocation, Delivery
from nodeagent.mps.exchange import PIPE_IN_CONTAINER, MpsPaths

FILE = "gpufraction.io-share.json"
VERSION = "0.5.0"
CACHE_IN_CONTAINER = "/var/lib/gpufraction"
"""
Where the library keeps its counts, by the container's `CUDA_DEVICE_MEMORY_SHARED_CACHE`: of memory, and so new at each
start of the container. In a file that outlasts it, who was killed still counts when another has its process id.
"""
LIBRARY_IN_CONTAINER = "/usr/local/vgpu/libvgpu.so"
"""Where HAMi-core looks for itself by default."""
PRELOAD_IN_CONTAINER = "/etc/ld.so.preload"
"""Not a variable: what a program starts with an empty environment is limited too."""
ISOLATION_VARIABLE = "GPUFRACTION_ISOLATION"
"""Names what limits the container; a device must change something, too, or the description is refused."""
_JIT = "runtime.nvidia.com/"
"""Devices of this vendor are made up by the toolkit for one container, which refuses any other vendor's beside them."""


@dataclass(frozen=True, slots=True)
class Preloaded:
    """The library's files on the host."""

    library: Path
    preload: Path
    """The content of the container's `/etc/ld.so.preload`."""


def possible(delivery: Delivery | None) -> bool:
    """Whether a device of ours can be given beside the vendor's there."""
    return delivery is not None and bool(delivery.kind) and not delivery.kind.startswith(_JIT)


def needed(allocations: Iterable[Allocation]) -> frozenset[str]:
    """GPUs whose device of ours is given to somebody."""
    return frozenset(
        share.uuid
        for allocation in allocations
        for container in allocation.containers
        for share in container.shares
        if SHARE_KIND in share.cdi.split(",")
    )


def description(uuids: Iterable[str], *, mps: Collection[str], places: MpsPaths, preloaded: Preloaded | None) -> str:
    """
    The file's content. `mps`: GPUs whose daemon new containers are to use; the others get the preloaded library where
    there is one. Slices of cards get neither: MPS limits none, and the library was not made for them.
    """
    devices = [_device(uuid, uuid in mps, places, preloaded) for uuid in sorted(set(uuids))]
    return json.dumps({"cdiVersion": VERSION, "kind": SHARE_KIND, "devices": devices}, indent=1) + "\n"


def _device(uuid: str, mps: bool, places: MpsPaths, preloaded: Preloaded | None) -> dict[str, Any]:
    if mps:
        mounts = [
            _mount(places.of(uuid) / "pipe", PIPE_IN_CONTAINER, "rw"),
            # Daemon and clients pass each other memory there.
            _mount(places.root / "shm", "/dev/shm", "rw"),
        ]
        env = [f"{ISOLATION_VARIABLE}=mps", f"CUDA_MPS_PIPE_DIRECTORY={PIPE_IN_CONTAINER}"]
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
        # Its messages would come between the lines that programs parse.
        env = [f"{ISOLATION_VARIABLE}=preload", "LIBCUDA_LOG_LEVEL=0"]
    else:
        return {"name": uuid, "containerEdits": {"env": [f"{ISOLATION_VARIABLE}=none"]}}
    return {"name": uuid, "containerEdits": {"env": env, "mounts": mounts}}


def _mount(host: Path, container: str, access: str) -> dict[str, Any]:
    return {"hostPath": str(host), "containerPath": container, "options": [access, "nosuid", "nodev", "bind"]}
