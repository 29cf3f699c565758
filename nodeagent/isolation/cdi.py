"""
The CDI description that gives a container what limits it to its share, without a hostPath volume in its pod.

A container gets the device `gpufraction.io/share=<UUID>` beside the GPU itself. Its runtime finds the device in this
description and adds its mounts and variables: the sockets of that GPU's MPS daemon, or the preloaded library. Pod
Security does not see them. Form: the Container Device Interface's specification, version 0.5.0, which the container
runtimes of all supported Kubernetes releases read.

Every GPU of the node is described, also one without a limit: a container whose device is missing does not start, and
one that was placed while there was a limit must be able to start again later.

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
Where the library keeps its counts, by the container's `CUDA_DEVICE_MEMORY_SHARED_CACHE`. It is memory, new at each
start of the container: in a file that outlasts it, a killed process would count again once another process has its id.
"""
LIBRARY_IN_CONTAINER = "/usr/local/vgpu/libvgpu.so"
"""Where HAMi-core looks for itself by default."""
PRELOAD_IN_CONTAINER = "/etc/ld.so.preload"
"""A file, not a variable, so that a program started with an empty environment is limited too."""
ISOLATION_VARIABLE = "GPUFRACTION_ISOLATION"
"""Names what limits the container. Each device has it, since a device without any change is refused."""
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


def description(uuids: Iterable[str], *, mps: Collection[str], places: MpsPaths, preloaded: Preloaded | None) -> str:
    """
    The file's content. `mps`: GPUs whose daemon new containers use; the others get the preloaded library if there is
    one. Slices of cards get neither: MPS does not limit them, and the library was not made for them.
    """
    devices = [_device(uuid, uuid in mps, places, preloaded) for uuid in sorted(set(uuids))]
    return json.dumps({"cdiVersion": VERSION, "kind": SHARE_KIND, "devices": devices}, indent=1) + "\n"


def _device(uuid: str, mps: bool, places: MpsPaths, preloaded: Preloaded | None) -> dict[str, Any]:
    if mps:
        mounts = [
            _mount(places.of(uuid) / "pipe", PIPE_IN_CONTAINER, "rw"),
            # Daemon and clients share memory there.
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
        # Otherwise its messages would be among the lines that programs parse.
        env = [f"{ISOLATION_VARIABLE}=preload", "LIBCUDA_LOG_LEVEL=0"]
    else:
        return {"name": uuid, "containerEdits": {"env": [f"{ISOLATION_VARIABLE}=none"]}}
    return {"name": uuid, "containerEdits": {"env": env, "mounts": mounts}}


def _mount(host: Path, container: str, access: str) -> dict[str, Any]:
    return {"hostPath": str(host), "containerPath": container, "options": [access, "nosuid", "nodev", "bind"]}
