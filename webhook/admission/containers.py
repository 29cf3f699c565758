"""
What admission puts into a pod's containers: accounting resources, environment, and the volumes of limiters.

The rule that everything here serves: a container sees the GPUs in its allocation and no other, and a container without
one sees none. Volumes are for what holds a container to its share:

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

from contract import dialects, names, pods
from contract.dialects.base import env_from_annotation
from contract.encoding import quantity
from contract.model import FractionRequest, PodRequest
from contract.scheduling import needs

JSON = dict[str, Any]

_ACCOUNTING = frozenset((str(names.GPU_MEMORY), str(names.GPU_CORES)))
_NOTHING: JSON = {"name": str(names.VISIBLE_DEVICES), "value": names.NO_DEVICES}
CACHE_VARIABLE = "CUDA_DEVICE_MEMORY_SHARED_CACHE"
CACHE_FOLDER = "/var/lib/gpufraction"
MPS_ON_HOST = "/run/gpufraction/mps"
PRELOAD_ON_HOST = "/var/lib/gpufraction/preload"
_CACHE, _SOCKETS, _SHM, _LIBRARY, _LINKER = (
    f"gpufraction-{name}" for name in ("cache", "mps", "shm", "library", "preload")
)
OURS = frozenset((_CACHE, _SOCKETS, _SHM, _LIBRARY, _LINKER))
MPS, PRELOAD = "mps", "preload"


def rewrite(
    spec: JSON, request: PodRequest, totals: Mapping[str, int], ranged: dialects.RangedRequests = dialects.NO_RANGE
) -> None:
    """
    Give every container of the pod its accounting resources and its environment.

    `totals`: memory in bytes over all GPUs of a container; none for one that uses a claim's. `ranged`: what a
    LimitRange wrote. Where that is an accounting resource which the container does not count, it stays as 0: the API
    server refuses a container that lacks what its namespace has a `max` for.
    """
    asking = {fraction.container: fraction for fraction in request.containers}
    environments = {name: _environment(request, fraction) for name, fraction in asking.items()}
    ours = {entry["name"] for entries in environments.values() for entry in entries} | {_NOTHING["name"]}
    for container, _ in needs.containers(spec):
        name = container["name"]
        fraction = asking.get(name)
        counted: dict[str, str] = {}
        if fraction is not None:
            counted = pods.accounting(fraction, totals.get(name, 0))
        _set_resources(container, counted, ranged.get(name, frozenset()))
        _set_environment(container, environments.get(name, [_NOTHING]), ours)


def _set_resources(container: JSON, counted: dict[str, str], ranged: frozenset[str]) -> None:
    """Extended resources must be equal in limits and requests, so both are written."""
    for kind in ("limits", "requests"):
        resources = container.get("resources") or {}
        before = resources.get(kind) or {}
        none = {key: "0" for key in _ACCOUNTING & before.keys() if key in ranged or _is_zero(before[key])}
        after = {key: value for key, value in before.items() if key not in dialects.RESOURCES} | none | counted
        if after:
            container["resources"] = {**resources, kind: after}
        elif before:
            container["resources"] = {key: value for key, value in resources.items() if key != kind}


def _is_zero(amount: object) -> bool:
    try:
        return quantity.parse(amount) == 0
    except quantity.BadQuantity:
        return False


def _environment(request: PodRequest, fraction: FractionRequest) -> list[JSON]:
    """A container's environment as its share determines it; a name that two systems use has one entry."""
    entries = {
        variable: env_from_annotation(variable, names.per_container(prefix, fraction.container))
        for variable, prefix in names.ENVIRONMENT
    }
    dialect = dialects.dialect_named(request.dialect)
    for entry in dialect.environment(request, fraction) if dialect else []:
        entries.setdefault(entry["name"], entry)
    return [{**entry, "name": str(name)} for name, entry in entries.items()]


def _set_environment(container: JSON, entries: list[JSON], ours: set[str]) -> None:
    """
    Put our entries in front, where later ones may refer to them, and drop every other entry of a reserved name.

    Entries in `env` win over those of `envFrom`, so that needs no care.
    """
    others = [
        _without_limiter(entry)
        for entry in container.get("env") or []
        if entry.get("name") not in ours and not _reserved(entry.get("name") or "")
    ]
    container["env"] = [dict(entry) for entry in entries] + [entry for entry in others if entry is not None]


def _without_limiter(entry: JSON) -> JSON | None:
    """
    `LD_PRELOAD` without a limiter of the tenant's own choice; None where nothing else is in it.

    ld.so takes spaces and colons between its libraries (ld.so(8)).
    """
    value = entry.get("value")
    if entry.get("name") != "LD_PRELOAD" or not isinstance(value, str) or names.LIMITER_LIBRARY not in value:
        return entry
    kept = [path for path in value.replace(":", " ").split() if names.LIMITER_LIBRARY not in path]
    return {**entry, "value": ":".join(kept)} if kept else None


def _reserved(variable: str) -> bool:
    return variable in names.RESERVED_ENVIRONMENT or variable.startswith(names.RESERVED_ENVIRONMENT_PREFIXES)


# -- volumes ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Volumes:
    """The volumes that pods with a share get. `host_paths`: of `MPS` and `PRELOAD`."""

    cache: bool = False
    host_paths: frozenset[str] = frozenset()


NO_VOLUMES = Volumes()


def with_volumes(pod: JSON, containers: Collection[str], what: Volumes) -> JSON:
    """The pod with its volumes; `containers` have shares. `pod` is not changed."""
    if what == NO_VOLUMES:
        return pod
    spec = dict(pod["spec"])
    spec["volumes"] = _merged(spec.get("volumes"), _volumes(what), "name", OURS)
    for kind in ("initContainers", "containers"):
        if spec.get(kind):
            spec[kind] = [_with_mounts(c, what) if c["name"] in containers else c for c in spec[kind]]
    return {**pod, "spec": spec}


def _volumes(what: Volumes) -> Iterator[JSON]:
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


def _mounts(what: Volumes) -> Iterator[JSON]:
    if what.cache:
        yield {"name": _CACHE, "mountPath": CACHE_FOLDER}
    if MPS in what.host_paths:
        folder = f"$({names.VISIBLE_DEVICES})/pipe"
        yield {"name": _SOCKETS, "mountPath": "/tmp/nvidia-mps", "subPathExpr": folder}
        yield {"name": _SHM, "mountPath": "/dev/shm"}
    if PRELOAD in what.host_paths:
        yield {"name": _LIBRARY, "mountPath": "/usr/local/vgpu/libvgpu.so", "readOnly": True}
        yield {"name": _LINKER, "mountPath": "/etc/ld.so.preload", "readOnly": True}


def _with_mounts(container: Mapping[str, Any], what: Volumes) -> JSON:
    # Two mounts of one path are refused, so a tenant's own at ours goes.
    mounts = _merged(container.get("volumeMounts"), _mounts(what), "mountPath", ())
    changed = {**container, "volumeMounts": mounts}
    ours = dict(_variables(container["name"], what))
    if ours:
        # In front, where everything of ours in the environment is.
        others = [item for item in container.get("env") or [] if item.get("name") not in ours]
        changed["env"] = [*({"name": name, "value": value} for name, value in ours.items()), *others]
    return changed


def _variables(container: str, what: Volumes) -> Iterator[tuple[str, str]]:
    if what.cache:
        # A file of its own for each container.
        yield CACHE_VARIABLE, f"{CACHE_FOLDER}/{container}.cache"
    if PRELOAD in what.host_paths:
        # The library's messages would come between the lines that programs parse. It still writes its errors.
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
