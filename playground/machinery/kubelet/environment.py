"""
A container's environment, resolved as kubelet does it when the container starts.

Sources: the Kubernetes documentation of `EnvVar`, "Expose Pod Information to Containers Through Environment Variables"
and "Dependent environment variables". A missing required part is a value (`Missing`), because kubelet then reports a
waiting container. Pure: a function passes in the ConfigMaps and Secrets.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from contract.encoding.quantity import parse
from contract.scheduling import needs
from playground.api.kinds.values import JSON, dig

Lookup: TypeAlias = Callable[[str, str], Mapping[str, str] | None]
"""(`ConfigMap` or `Secret`, name) -> its data as text, None where there is no such object."""

_MAP_FIELD = re.compile(r"metadata\.(?P<map>annotations|labels)\['(?P<key>[^']+)'\]")
_REFERENCE = re.compile(r"\$(?:\$|\((?P<name>[^)]*)\))")
_SOURCES = {
    "configMapKeyRef": "ConfigMap",
    "secretKeyRef": "Secret",
    "configMapRef": "ConfigMap",
    "secretRef": "Secret",
}
_NODE_DEFAULTS = ("limits.cpu", "limits.memory", "limits.ephemeral-storage")


@dataclass(frozen=True, slots=True)
class Missing:
    """The container cannot be created: kubelet's reason and message for its waiting state."""

    message: str
    reason: str = "CreateContainerConfigError"


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The objects to which a container's environment may refer, other than its pod."""

    lookup: Lookup = field(default=lambda kind, name: None)
    pod_ip: str = ""
    host_ip: str = ""
    allocatable: Mapping[str, Any] = field(default_factory=dict)
    """The node's allocatable quantities, which a `resourceFieldRef` gives for an absent limit."""
    devices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """CDI devices of the pod's ResourceClaims, by container."""


def resolve(pod: JSON, container: JSON, around: Surroundings) -> dict[str, str] | Missing:
    """The variables in the order in which they are defined; a later one of the same name wins."""
    resolved: dict[str, str] = {}
    for source in container.get("envFrom") or []:
        found = _all_of(source, around)
        if isinstance(found, Missing):
            return found
        resolved.update(found)
    for variable in container.get("env") or []:
        value = _value(pod, container, variable, resolved, around)
        if isinstance(value, Missing):
            return value
        if value is not None:
            resolved[variable["name"]] = value
    return resolved


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Replace `$(NAME)` with the variable's value, and `$$` with a dollar. References to undefined variables stay."""

    def put(match: re.Match[str]) -> str:
        name = match["name"]
        if name is None:
            return "$"
        return variables.get(name, match[0])

    return _REFERENCE.sub(put, text)


def _all_of(source: JSON, around: Surroundings) -> dict[str, str] | Missing:
    for key in ("configMapRef", "secretRef"):
        reference = source.get(key)
        if reference is None:
            continue
        name, kind = reference.get("name", ""), _SOURCES[key]
        data = around.lookup(kind, name)
        if data is None:
            return {} if reference.get("optional") else Missing(f'{kind.lower()} "{name}" not found')
        return {source.get("prefix", "") + entry: text for entry, text in data.items()}
    return {}


def _value(
    pod: JSON, container: JSON, variable: JSON, defined: Mapping[str, str], around: Surroundings
) -> str | Missing | None:
    """The value; None where an optional source is absent, which leaves the variable undefined."""
    source = variable.get("valueFrom")
    if not source:
        return expand(str(variable.get("value") or ""), defined)
    if reference := source.get("fieldRef"):
        return _field(pod, reference.get("fieldPath", ""), around)
    if reference := source.get("resourceFieldRef"):
        return _resource(pod, container, reference, around)
    for key in ("configMapKeyRef", "secretKeyRef"):
        if reference := source.get(key):
            return _entry(pod, reference, _SOURCES[key], around)
    return Missing(f"env {variable.get('name')!r}: valueFrom names no known source")


def _entry(pod: JSON, reference: JSON, kind: str, around: Surroundings) -> str | Missing | None:
    name, key = reference.get("name", ""), reference.get("key", "")
    data = around.lookup(kind, name)
    if data is not None and key in data:
        return data[key]
    if reference.get("optional"):
        return None
    if data is None:
        return Missing(f'{kind.lower()} "{name}" not found')
    return Missing(f"couldn't find key {key} in {kind} {pod['metadata'].get('namespace', '')}/{name}")


def _field(pod: JSON, path: str, around: Surroundings) -> str | Missing:
    """A field of the pod; a missing label or annotation is the empty text, as in kubelet."""
    if match := _MAP_FIELD.fullmatch(path):
        return str((pod["metadata"].get(match["map"]) or {}).get(match["key"], ""))
    match path:
        case "metadata.name" | "metadata.namespace" | "metadata.uid":
            return str(pod["metadata"].get(path.partition(".")[2], ""))
        case "spec.nodeName" | "spec.serviceAccountName":
            return str(pod["spec"].get(path.partition(".")[2], ""))
        case "status.podIP" | "status.podIPs":
            return around.pod_ip
        case "status.hostIP" | "status.hostIPs":
            return around.host_ip
    return Missing(f"env fieldRef: unsupported fieldPath: {path}")


def _resource(pod: JSON, container: JSON, reference: JSON, around: Surroundings) -> str | Missing:
    """An amount in units of the divisor, rounded up."""
    wanted, path = reference.get("containerName"), reference.get("resource", "")
    for candidate, _ in needs.containers(pod["spec"]):
        if wanted and candidate.get("name") == wanted:
            container = candidate
    section, _, name = path.partition(".")
    if section not in ("limits", "requests"):
        return Missing(f"env resourceFieldRef: unsupported resource: {path}")
    amount = dig(container, "resources", section, name)
    if amount is None and path in _NODE_DEFAULTS:
        amount = around.allocatable.get(name)
    divisor = parse(reference.get("divisor") or "1") or parse("1")
    exact = parse(amount or 0) / divisor
    return str(-(-exact.numerator // exact.denominator))
