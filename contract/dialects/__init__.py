"""
The table of dialects, and reading a pod through it.

Adding a dialect is one module and one line here. The order only decides how a message lists two that conflict. A pod
speaks one dialect: where two are named, it is refused, since nobody could say which of them was meant.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from contract import names
from contract.dialects import aliyun, claims, elastic, hami, kai, nano, native
from contract.dialects.base import Context, Decided, Dialect, Refusal, Refused, Rendering
from contract.dialects.options import DEFAULTS, VENDOR, Options
from contract.model import Allocation, PodRequest

__all__ = [
    "DIALECTS",
    "Options",
    "Refusal",
    "Rendering",
    "asked",
    "dialect_named",
    "read",
    "render",
    "standard",
    "started",
]

DIALECTS: tuple[Dialect, ...] = (
    native.DIALECT,
    aliyun.DIALECT,
    elastic.DIALECT,
    claims.DIALECT,
    hami.DIALECT,
    nano.DIALECT,
    kai.DIALECT,
)

_BY_NAME = {dialect.name: dialect for dialect in DIALECTS}
RESOURCES = frozenset(resource for dialect in DIALECTS for resource in dialect.resources)
"""Every resource name by which a container can ask for a share."""


def dialect_named(name: str) -> Dialect | None:
    """The dialect of that name, or None: a request annotation may come from a newer version."""
    return _BY_NAME.get(name)


def asked(pod: Mapping[str, Any], dialects: Iterable[Dialect] = DIALECTS) -> tuple[Dialect, ...]:
    """The dialects in which the pod asks for something, in the table's order."""
    context = Context(pod, DEFAULTS)
    resources = {name for container in context.containers() for name in container.names()}
    annotations = context.annotations.keys()
    return tuple(
        dialect
        for dialect in dialects
        if not resources.isdisjoint(dialect.resources)
        or not annotations.isdisjoint(dialect.annotations)
        or (dialect.annotation_prefixes and any(key.startswith(dialect.annotation_prefixes) for key in annotations))
    )


def _mentions(pod: Mapping[str, Any], dialect: Dialect) -> Iterator[str]:
    """The path of every field by which the pod speaks the dialect."""
    context = Context(pod, DEFAULTS)
    for container in context.containers():
        for resource in dialect.resources:
            if container.asks(resource):
                yield container.field(resource)
    for annotation in dialect.annotations:
        if annotation in context.annotations:
            yield f"metadata.annotations[{annotation}]"
    for prefix in dialect.annotation_prefixes:
        for annotation in context.annotations:
            if annotation.startswith(prefix):
                yield f"metadata.annotations[{annotation}]"


def read(pod: Mapping[str, Any], options: Options = DEFAULTS) -> PodRequest | Refusal | None:
    """What the pod asks for; None where it asks for nothing; a `Refusal` where it cannot be served as written."""
    speaking = asked(pod)
    if not speaking:
        return None
    if len(speaking) > 1:
        first, second = speaking[0], speaking[1]
        return Refusal(
            next(_mentions(pod, second)),
            f"{second.title} beside {first.title} ({next(_mentions(pod, first))})",
            "ask in one dialect only: remove one of the two",
        )
    context = Context(pod, options)
    try:
        context.bounded()  # before any container is read: some of a dialect's rules look at all those before it
        return speaking[0].read(context)
    except Refused as refused:
        return refused.refusal


def render(pod: Mapping[str, Any], request: PodRequest, allocation: Allocation, now_ns: int) -> Rendering:
    """The allocation in the words of the dialect that the request came in; nothing where that is unknown here."""
    dialect = dialect_named(request.dialect)
    if dialect is None:
        return Rendering()
    listed = (pod.get("spec") or {}).get("containers") or []
    containers = tuple(str(container.get("name", "")) for container in listed)
    return dialect.render(Decided(request, allocation, containers, now_ns))


def started(pod: Mapping[str, Any]) -> dict[str, str]:
    """The annotations that change now that the containers of a pod of ours run; none while they do not."""
    annotations = (pod.get("metadata") or {}).get("annotations") or {}
    if names.ALLOCATION not in annotations or (pod.get("status") or {}).get("phase") != "Running":
        return {}
    return {key: value for dialect in DIALECTS for key, value in dialect.started(annotations).items()}


def standard(pod: dict[str, Any], options: Options = DEFAULTS) -> dict[str, Any] | None:
    """
    The pod in the standard names of resources and without an older system's own scheduler; None if it is not ours.

    Not ours: a pod that names `nvidia.com/gpu` and no share, where the administrator leaves those to the vendor's
    plugin. Shares structure with `pod`, which is not changed. Where a container names a resource both ways, the
    standard name stays beside the other, and nothing is renamed there.
    """
    if options.whole_gpus == VENDOR and _only_whole_gpus(pod):
        return None
    pod = _renamed(pod, dict(options.resource_names))
    scheduler = _object(pod.get("spec")).get("schedulerName")
    if any(scheduler in dialect.schedulers for dialect in asked(pod)):
        spec = {**_object(pod.get("spec")), "schedulerName": "default-scheduler"}
        pod = {**pod, "spec": spec}
    return pod


def _only_whole_gpus(pod: Mapping[str, Any]) -> bool:
    speaking = asked(pod)
    return [dialect.name for dialect in speaking] == [hami.DIALECT.name] and not any(
        asking.asks(resource)
        for asking in Context(pod, DEFAULTS).containers()
        for resource in hami.DIALECT.resources
        if resource != hami.GPU
    )


def _renamed(pod: dict[str, Any], standard_of: Mapping[str, str]) -> dict[str, Any]:
    if not standard_of or not isinstance(pod.get("spec"), Mapping):
        return pod
    spec = dict(_object(pod.get("spec")))
    for kind in ("initContainers", "containers"):
        if isinstance(spec.get(kind), list):
            spec[kind] = [_container_renamed(container, standard_of) for container in spec[kind]]
    return {**pod, "spec": spec}


def _container_renamed(container: Any, standard_of: Mapping[str, str]) -> Any:
    resources = dict(_object(_object(container).get("resources")))
    changed = False
    for kind in ("limits", "requests"):
        amounts = _object(resources.get(kind))
        if any(name in standard_of and standard_of[name] not in amounts for name in amounts):
            resources[kind] = {
                standard_of[name] if standard_of.get(name, name) not in amounts else name: amount
                for name, amount in amounts.items()
            }
            changed = True
    return {**container, "resources": resources} if changed else container


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def ours(resource: str) -> bool:
    """Whether a resource name is one of a dialect, or one that admission puts in."""
    return resource in RESOURCES or resource in (names.GPU_MEMORY, names.GPU_CORES)
