"""
What admission does inside a pod's containers: resources taken out and put in, environment replaced.

Pure; changes the spec that it is given. The rule that everything here serves: a container sees the GPUs in its
allocation and no other, and a container without one sees none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from contract import dialects, names, pods
from contract.dialects.base import env_from_annotation
from contract.dialects.limitranges import NOTHING, Written
from contract.encoding import quantity
from contract.model import FractionRequest, PodRequest
from contract.scheduling import needs

JSON = dict[str, Any]

_ACCOUNTING = frozenset((str(names.GPU_MEMORY), str(names.GPU_CORES)))
_NOTHING: JSON = {"name": str(names.VISIBLE_DEVICES), "value": names.NO_DEVICES}


def in_class(pod: Mapping[str, Any], runtime_class: str) -> JSON:
    """The pod in this runtime class, unless it names one itself or none is to be given; `pod` is not changed."""
    spec = pod.get("spec")
    if not runtime_class or not isinstance(spec, Mapping) or spec.get("runtimeClassName"):
        return dict(pod)
    return {**pod, "spec": {**spec, "runtimeClassName": runtime_class}}


def rewrite(spec: JSON, request: PodRequest, totals: Mapping[str, int], ranged: Written = NOTHING) -> None:
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
