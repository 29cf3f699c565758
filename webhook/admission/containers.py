"""
Writes the additions of admission into a pod's containers: accounting resources, environment, and the volumes of
limiters.

Everything here serves one rule: a container sees the GPUs in its allocation and no others, and a container without an
allocation sees none. `rewrite` and `with_volumes` are for pods with a share, `hidden` and `debugged` for pods without.

Pure. A second pass changes nothing. What a tenant wrote under our names is replaced.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any

from contract import names, pods
from contract.dialects import DIALECTS, limitranges
from contract.dialects.base import Dialect, env_from_annotation
from contract.dialects.table import Dialects
from contract.encoding import quantity
from contract.encoding.reading import shown
from contract.isolation import MPS, PRELOAD
from contract.model import FractionRequest, PodRequest
from contract.nodes.capacity import VENDOR_GPU, vendor_gpus
from contract.scheduling import needs, protection
from contract.scheduling.demand import uncounted

JSON = dict[str, Any]

_ACCOUNTING = frozenset((str(names.GPU_MEMORY), str(names.GPU_CORES), str(names.GPU_MEMORY_LIMIT)))
_NOTHING: JSON = {"name": str(names.VISIBLE_DEVICES), "value": names.NO_DEVICES}
CACHE_VARIABLE = "CUDA_DEVICE_MEMORY_SHARED_CACHE"
CACHE_FOLDER = "/var/lib/gpufraction"
MPS_ON_HOST = "/run/gpufraction/mps"
PRELOAD_ON_HOST = "/var/lib/gpufraction/preload"
_CACHE, _SOCKETS, _SHM, _LIBRARY, _LINKER = (
    f"gpufraction-{name}" for name in ("cache", "mps", "shm", "library", "preload")
)
OURS = frozenset((_CACHE, _SOCKETS, _SHM, _LIBRARY, _LINKER))


def rewrite(
    spec: JSON,
    request: PodRequest,
    totals: Mapping[str, int],
    ranged: limitranges.RangedRequests = limitranges.NO_RANGE,
    dialects: Dialects = DIALECTS,
) -> None:
    """
    Write every container's accounting resources and environment into the pod's spec.

    `totals`: memory in bytes over all GPUs of a container; none for a container with a claim. `ranged`: the resources
    that a LimitRange wrote. An accounting resource among them that the container does not count stays as 0, since the
    API server refuses a container without a resource for which its namespace has a `max`.
    """
    sharing = {fraction.container: fraction for fraction in request.containers}
    besides = uncounted(request, totals)
    dialect = dialects.named(request.dialect)
    environments = {name: _environment(dialect, request, fraction) for name, fraction in sharing.items()}
    ours = {entry["name"] for entries in environments.values() for entry in entries} | {_NOTHING["name"]}
    for container, _ in needs.containers(spec):
        name = container["name"]
        fraction = sharing.get(name)
        counted: dict[str, str] = {}
        if fraction is not None:
            counted = pods.accounting(fraction, totals.get(name, 0), besides)
        _set_resources(container, counted, ranged.get(name, frozenset()), dialects.resources)
        _set_environment(container, environments.get(name, [_NOTHING]), ours)


def _set_resources(container: JSON, counted: dict[str, str], ranged: frozenset[str], replaced: frozenset[str]) -> None:
    """
    Write what is counted, without the resources that are `replaced` by it. Extended resources must be equal in limits
    and requests, so both are written.
    """
    for kind in ("limits", "requests"):
        resources = container.get("resources") or {}
        before = resources.get(kind) or {}
        none = {key: "0" for key in _ACCOUNTING & before.keys() if key in ranged or quantity.is_zero(before[key])}
        after = {key: value for key, value in before.items() if key not in replaced} | none | counted
        if after:
            container["resources"] = {**resources, kind: after}
        elif before:
            container["resources"] = {key: value for key, value in resources.items() if key != kind}


def _environment(dialect: Dialect | None, request: PodRequest, fraction: FractionRequest) -> list[JSON]:
    """The environment entries of a container with a share; a name that two systems use has one entry."""
    entries = {
        variable: env_from_annotation(variable, names.per_container(prefix, fraction.container))
        for variable, prefix in (*names.ENVIRONMENT, *(names.BURST_ENVIRONMENT if fraction.limit else ()))
    }
    for entry in dialect.environment(request, fraction) if dialect else []:
        entries.setdefault(entry["name"], entry)
    return [{**entry, "name": str(name)} for name, entry in entries.items()]


def _set_environment(container: JSON, entries: list[JSON], ours: set[str]) -> None:
    """
    Put our entries first, where later entries may refer to them, and drop all other entries with reserved names.

    `envFrom` is left alone, since entries in `env` win over it.
    """
    reserved = ours.union(names.RESERVED_ENVIRONMENT)
    others = [
        _without_limiter(entry)
        for entry in container.get("env") or []
        if entry.get("name") not in reserved
        and not (entry.get("name") or "").startswith(names.RESERVED_ENVIRONMENT_PREFIXES)
    ]
    container["env"] = [dict(entry) for entry in entries] + [entry for entry in others if entry is not None]


def with_toolkit_limits(pod: JSON, sharing: Collection[str]) -> JSON:
    """The pod with the variables of `names.TOOLKIT_ENVIRONMENT` in its containers with a share, after `rewrite`."""
    spec = needs.with_containers(pod["spec"], dict)
    for container, _ in needs.containers(spec):
        if container["name"] in sharing:
            values = {entry["name"]: entry for entry in container["env"]}
            added = [{**values[ours], "name": theirs} for theirs, ours in names.TOOLKIT_ENVIRONMENT]
            container["env"] = [*container["env"], *added]
    return {**pod, "spec": spec}


def _without_limiter(entry: JSON) -> JSON | None:
    """
    `LD_PRELOAD` without a limiter of the tenant's own choice; None if nothing else is in it.

    ld.so takes spaces and colons between its libraries (ld.so(8)).
    """
    value = entry.get("value")
    if entry.get("name") != "LD_PRELOAD" or not isinstance(value, str) or names.LIMITER_LIBRARY not in value:
        return entry
    kept = [path for path in value.replace(":", " ").split() if names.LIMITER_LIBRARY not in path]
    return {**entry, "value": ":".join(kept)} if kept else None


# -- volumes ------------------------------------------------------------------------------------------------------
#
#   cache    a folder for HAMi-core's shared region, one file for each container: HAMi-core ends a program that cannot
#            write there. An emptyDir, which kubelet makes writable for everybody and removes with the pod
#   mps      the sockets of the GPU's MPS daemon and the memory that it shares with its clients } hostPath, for nodes
#   preload  HAMi-core's library, and the file by which the linker loads it                     } without CDI only
#
# The node is not known at admission, and volumes cannot be added later. So every pod with a share gets the volumes, and
# a container finds the folder of its GPU when it starts, by the variable that names its GPU. Without an allocation the
# path is refused, and the container does not start.


@dataclass(frozen=True, slots=True)
class Volumes:
    """The volumes that pods with a share get. `host_paths`: of `contract.isolation.WITH_VOLUMES`."""

    cache: bool = False
    host_paths: frozenset[str] = frozenset()


NO_VOLUMES = Volumes()


def with_volumes(pod: JSON, sharing: Collection[str], what: Volumes) -> JSON:
    """
    The pod with its volumes, and the containers named in `sharing` with their mounts. `pod` is not changed.

    An annotation says that the volumes keep no node: they are emptyDirs and hostPaths.
    """
    if what == NO_VOLUMES:
        return pod
    spec, metadata = dict(pod["spec"]), dict(pod.get("metadata") or {})
    spec["volumes"] = _merged(spec.get("volumes"), _volumes(what), "name", OURS)
    ours = (volume["name"] for volume in _volumes(what))
    metadata["annotations"] = protection.evictable(metadata.get("annotations") or {}, ours)
    return {
        **pod,
        "metadata": metadata,
        "spec": needs.with_containers(spec, lambda c: _with_mounts(c, what) if c["name"] in sharing else c),
    }


def _volumes(what: Volumes) -> Iterator[JSON]:
    if what.cache:
        yield {"name": _CACHE, "emptyDir": {"sizeLimit": "64Mi"}}
    if MPS.name in what.host_paths:
        yield _host_path(_SOCKETS, MPS_ON_HOST, "DirectoryOrCreate")
        yield _host_path(_SHM, f"{MPS_ON_HOST}/shm", "DirectoryOrCreate")
    if PRELOAD.name in what.host_paths:
        yield _host_path(_LIBRARY, f"{PRELOAD_ON_HOST}/libvgpu.so", "File")
        yield _host_path(_LINKER, f"{PRELOAD_ON_HOST}/ld.so.preload", "File")


def _host_path(name: str, path: str, kind: str) -> JSON:
    return {"name": name, "hostPath": {"path": path, "type": kind}}


def _mounts(what: Volumes) -> Iterator[JSON]:
    if what.cache:
        yield {"name": _CACHE, "mountPath": CACHE_FOLDER}
    if MPS.name in what.host_paths:
        folder = f"$({names.VISIBLE_DEVICES})/pipe"
        yield {"name": _SOCKETS, "mountPath": "/tmp/nvidia-mps", "subPathExpr": folder}
        yield {"name": _SHM, "mountPath": "/dev/shm"}
    if PRELOAD.name in what.host_paths:
        yield {"name": _LIBRARY, "mountPath": "/usr/local/vgpu/libvgpu.so", "readOnly": True}
        yield {"name": _LINKER, "mountPath": "/etc/ld.so.preload", "readOnly": True}


def _with_mounts(container: Mapping[str, Any], what: Volumes) -> JSON:
    # The API server refuses two mounts of one path, so ours replaces a tenant's.
    mounts = _merged(container.get("volumeMounts"), _mounts(what), "mountPath", ())
    changed = {**container, "volumeMounts": mounts}
    ours = dict(_variables(container["name"], what))
    if ours:
        # In front, like all our entries in the environment.
        others = [item for item in container.get("env") or [] if item.get("name") not in ours]
        changed["env"] = [*({"name": name, "value": value} for name, value in ours.items()), *others]
    return changed


def _variables(container: str, what: Volumes) -> Iterator[tuple[str, str]]:
    if what.cache:
        # A separate file for each container.
        yield CACHE_VARIABLE, f"{CACHE_FOLDER}/{container}.cache"
    if PRELOAD.name in what.host_paths:
        # The library's messages would mix with output that programs parse. It still writes its errors.
        yield "LIBCUDA_LOG_LEVEL", "0"


def _merged(before: Any, ours: Iterable[JSON], key: str, reserved: Collection[str]) -> list[JSON]:
    """The list with our entries, each where it is or at the end, and without others of the same or a reserved key."""
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


# -- hiding GPUs --------------------------------------------------------------------------------------------------
#
# On a node whose default container runtime is NVIDIA's, an image made for CUDA sets `NVIDIA_VISIBLE_DEVICES=all`, so a
# pod that requests nothing sees every GPU. `void` in the container's own environment hides them. Where NVIDIA's NRI
# plugin is on, an annotation of the pod names devices too, so it is removed. Hiding is off by default, since with it
# every pod of the labelled namespaces depends on the webhook. It cannot help against privileged containers, which see
# all devices of their node.
#
# A container that asks NVIDIA's own device plugin for a GPU keeps what the plugin gives it, which comes in the same
# variable. Only the plugin's own resource names count (`contract.nodes.capacity`). For a pod that names its node, only
# those count that the node offers: kube-scheduler never looks at such a pod, and kubelet admits a pod that requests a
# resource which its node does not have, so any tenant could invent a name.

_NONE: frozenset[str] = frozenset()


def vendor_resources(pod: Mapping[str, Any], *, whole: bool) -> frozenset[str]:
    """
    The resources by which containers of the pod ask NVIDIA's own plugin for a GPU.

    `whole`: whether `nvidia.com/gpu` is the plugin's here; else a pod that requests it requests a share.
    """
    found = [_vendor_gpus(container) for container, _ in needs.containers(pod.get("spec") or {})]
    return _NONE.union(*found) - (_NONE if whole else {VENDOR_GPU})


def hidden(pod: Mapping[str, Any], offered: Set[str] = _NONE) -> JSON:
    """
    The pod with no GPU visible in its containers; shares structure with `pod`, which is not changed.

    A container that requests one of the resources `offered` sees the GPUs that NVIDIA's plugin gives it.
    """
    metadata, annotations = pod.get("metadata") or {}, pods.annotations_of(pod)
    kept = {key: value for key, value in annotations.items() if not key.startswith(names.DEVICE_ANNOTATION_PREFIXES)}
    named = {} if kept == annotations else {"metadata": {**metadata, "annotations": kept}}
    spec = needs.with_containers(
        pod.get("spec") or {}, lambda c: _without_own_choice(c) if _vendor_gpus(c) & offered else _hidden(c)
    )
    return {**pod, **named, "spec": spec}


def not_offered(node: str, resources: Set[str]) -> str:
    """The warning about resources that a pod requests and its node does not offer; empty if there are none."""
    if not resources:
        return ""
    first = min(resources)
    return (
        f"spec.nodeName: found {shown(node)}, which may not have {first}, so containers that request it see no GPU; "
        f"remove spec.nodeName (a nodeSelector can choose the node)"
    )


def debugged(pod: Mapping[str, Any], before: Mapping[str, Any]) -> JSON:
    """
    The pod with no GPU visible in the ephemeral containers that `before` does not have; the others cannot change.

    Ephemeral containers have no share, even if the pod has one: a container from an image of the tenant's choice must
    not see the cards of others.
    """
    spec = dict(pod.get("spec") or {})
    known = {c.get("name") for c in (before.get("spec") or {}).get("ephemeralContainers") or []}
    if spec.get("ephemeralContainers"):
        spec["ephemeralContainers"] = [c if c.get("name") in known else _hidden(c) for c in spec["ephemeralContainers"]]
    return {**pod, "spec": spec}


def _hidden(container: JSON) -> JSON:
    # In front, so that a second pass changes nothing.
    return {**container, "env": [{"name": str(names.VISIBLE_DEVICES), "value": names.NO_DEVICES}, *_others(container)]}


def _without_own_choice(container: JSON) -> JSON:
    """The container without the tenant's own choice of GPUs, which would win over the plugin's."""
    kept = _others(container)
    return container if len(kept) == len(container.get("env") or []) else {**container, "env": kept}


def _others(container: Mapping[str, Any]) -> list[JSON]:
    return [entry for entry in container.get("env") or [] if entry.get("name") != names.VISIBLE_DEVICES]


def _vendor_gpus(container: Mapping[str, Any]) -> frozenset[str]:
    """The resources by which the container asks NVIDIA's plugin for at least one GPU."""
    resources = container.get("resources") or {}
    named = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return vendor_gpus(named)
