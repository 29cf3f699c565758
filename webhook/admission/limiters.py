"""
What a pod with a share is given to read and write, for what holds it to that share: volumes and their mounts.

    cache    a folder for HAMi-core's shared region, one file for each container: where it cannot write that, it ends
             the program. An emptyDir, which kubelet makes for everybody's use and takes away with the pod
    mps      the sockets of the GPU's MPS daemon and the memory that it shares with its clients } hostPath, for nodes
    preload  HAMi-core's library, and the file by which the linker loads it                     } without CDI only

Which node a pod goes to is not known yet, and volumes cannot be added later. So every pod with a share gets them, and
the folder of its GPU is found when a container starts, from the variable that names its GPU: without an allocation the
path is refused, and the container does not start.

Pure. A second pass changes nothing; what a tenant wrote under our names is replaced.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from contract import names

JSON = dict[str, Any]

CACHE_VARIABLE = "CUDA_DEVICE_MEMORY_SHARED_CACHE"
CACHE_FOLDER = "/var/lib/gpufraction"
MPS_ON_HOST = "/run/gpufraction/mps"
PRELOAD_ON_HOST = "/var/lib/gpufraction/preload"
_CACHE, _SOCKETS, _SHM, _LIBRARY, _LINKER = (
    f"gpufraction-{name}" for name in ("cache", "mps", "shm", "library", "preload")
)
OURS = frozenset((_CACHE, _SOCKETS, _SHM, _LIBRARY, _LINKER))
MPS, PRELOAD = "mps", "preload"


@dataclass(frozen=True, slots=True)
class Given:
    """What pods get. `host_paths`: of `MPS` and `PRELOAD`."""

    cache: bool = False
    host_paths: frozenset[str] = frozenset()


NOTHING = Given()


def given(pod: JSON, containers: Collection[str], what: Given) -> JSON:
    """The pod with its volumes; `containers` have shares. `pod` is not changed."""
    if what == NOTHING:
        return pod
    spec = dict(pod["spec"])
    spec["volumes"] = _merged(spec.get("volumes"), _volumes(what), "name", OURS)
    for kind in ("initContainers", "containers"):
        if spec.get(kind):
            spec[kind] = [_container(c, what) if c["name"] in containers else c for c in spec[kind]]
    return {**pod, "spec": spec}


def _volumes(what: Given) -> Iterator[JSON]:
    if what.cache:
        yield {"name": _CACHE, "emptyDir": {"sizeLimit": "64Mi"}}
    if MPS in what.host_paths:
        yield _host_path(_SOCKETS, MPS_ON_HOST, "DirectoryOrCreate")
        yield _host_path(_SHM, f"{MPS_ON_HOST}/shm", "DirectoryOrCreate")
    if PRELOAD in what.host_paths:
        yield _host_path(_LIBRARY, f"{PRELOAD_ON_HOST}/libvgpu.so", "File")
        yield _host_path(_LINKER, f"{PRELOAD_ON_HOST}/ld.so.preload", "File")


def _host_path(name: str, path: str, kind: str) -> JSON:
    return {"name": name, "hostPath": {"path": path, "type": kind}}


def _mounts(what: Given) -> Iterator[JSON]:
    if what.cache:
        yield {"name": _CACHE, "mountPath": CACHE_FOLDER}
    if MPS in what.host_paths:
        folder = f"$({names.VISIBLE_DEVICES})/pipe"
        yield {"name": _SOCKETS, "mountPath": "/tmp/nvidia-mps", "subPathExpr": folder}
        yield {"name": _SHM, "mountPath": "/dev/shm"}
    if PRELOAD in what.host_paths:
        yield {"name": _LIBRARY, "mountPath": "/usr/local/vgpu/libvgpu.so", "readOnly": True}
        yield {"name": _LINKER, "mountPath": "/etc/ld.so.preload", "readOnly": True}


def _container(container: Mapping[str, Any], what: Given) -> JSON:
    # Two mounts of one path are refused, so a tenant's own at ours goes.
    mounts = _merged(container.get("volumeMounts"), _mounts(what), "mountPath", ())
    changed = {**container, "volumeMounts": mounts}
    ours = dict(_variables(container["name"], what))
    if ours:
        # In front, where everything of ours in the environment is.
        others = [item for item in container.get("env") or [] if item.get("name") not in ours]
        changed["env"] = [*({"name": name, "value": value} for name, value in ours.items()), *others]
    return changed


def _variables(container: str, what: Given) -> Iterator[tuple[str, str]]:
    if what.cache:
        # A file of its own for each container.
        yield CACHE_VARIABLE, f"{CACHE_FOLDER}/{container}.cache"
    if PRELOAD in what.host_paths:
        # The library's messages would come between the lines that programs parse. Its errors are told still.
        yield "LIBCUDA_LOG_LEVEL", "0"


def _merged(before: Any, ours: Iterable[JSON], key: str, reserved: Collection[str]) -> list[JSON]:
    """A list with our entries: where they are already, or at its end. Others of the same key or a reserved one go."""
    wanted = {entry[key]: entry for entry in ours}
    left = dict(wanted)
    merged: list[JSON] = []
    for entry in before or []:
        name = entry.get(key)
        if name not in wanted and name not in reserved:
            merged.append(entry)
        elif name in left and left[name] == entry:
            merged.append(left.pop(name))
    return [*merged, *left.values()]
