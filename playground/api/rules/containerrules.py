"""
The validation of the containers of a pod: names, mounts, environment, ports, resources.
"""

import re
from collections.abc import Iterator, Mapping

from contract.encoding.quantity import BadQuantity, parse
from playground.api.kinds.errors import FieldError, duplicate, invalid_field, required, unsupported
from playground.api.kinds.values import JSON
from playground.api.rules.formats import env_name_problem, label_problem, qualified_name_problem

_STANDARD = ("cpu", "memory", "ephemeral-storage")
_PULL = ("Always", "IfNotPresent", "Never")
_PROTOCOLS = ("SCTP", "TCP", "UDP")
_POD_FIELDS = (
    *("metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "spec.serviceAccountName"),
    *("status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs"),
)
_SUBSCRIPT = re.compile(r"(?P<map>metadata\.(?:labels|annotations))\['(?P<key>[^']*)'\]")
_INTEGER = "must be an integer"


def container_problems(path: str, spec: JSON, volumes: set[str]) -> Iterator[FieldError]:
    """Everything that is wrong with the (init) containers of a pod spec."""
    seen: set[str] = set()
    containers = spec.get("containers") or ()
    if not containers:
        yield required(f"{path}.containers")
    for field in ("initContainers", "containers"):
        for i, container in enumerate(spec.get(field) or ()):
            at = f"{path}.{field}[{i}]"
            yield from _name(at, container, seen)
            yield from _container(at, container, volumes)


def _name(at: str, container: JSON, seen: set[str]) -> Iterator[FieldError]:
    name = str(container.get("name", ""))
    if not name:
        yield required(f"{at}.name")
    elif problem := label_problem(name):
        yield invalid_field(f"{at}.name", name, problem)
    elif name in seen:
        yield duplicate(f"{at}.name", name)
    seen.add(name)


def _container(at: str, container: JSON, volumes: set[str]) -> Iterator[FieldError]:
    if not container.get("image"):
        yield required(f"{at}.image")
    if (policy := container.get("imagePullPolicy")) not in _PULL:
        yield unsupported(f"{at}.imagePullPolicy", policy, _PULL)
    for i, mount in enumerate(container.get("volumeMounts") or ()):
        yield from _mount(f"{at}.volumeMounts[{i}]", mount, volumes)
    for i, entry in enumerate(container.get("env") or ()):
        yield from _env(f"{at}.env[{i}]", entry)
    for i, port in enumerate(container.get("ports") or ()):
        yield from _port(f"{at}.ports[{i}]", port)
    yield from _resources(f"{at}.resources", container.get("resources") or {})


def _mount(at: str, mount: JSON, volumes: set[str]) -> Iterator[FieldError]:
    name = str(mount.get("name", ""))
    if not name:
        yield required(f"{at}.name")
    elif name not in volumes:
        yield FieldError("NotFound", f"{at}.name", "", name)
    if not mount.get("mountPath"):
        yield required(f"{at}.mountPath")


def _port(at: str, port: JSON) -> Iterator[FieldError]:
    number = port.get("containerPort")
    if number is None:
        yield required(f"{at}.containerPort")
    elif not isinstance(number, int) or not 0 < number < 65536:
        yield invalid_field(f"{at}.containerPort", number, "must be between 1 and 65535, inclusive")
    if (protocol := port.get("protocol")) not in _PROTOCOLS:
        yield unsupported(f"{at}.protocol", protocol, _PROTOCOLS)


def _env(at: str, entry: JSON) -> Iterator[FieldError]:
    name = str(entry.get("name", ""))
    if not name:
        yield required(f"{at}.name")
    elif problem := env_name_problem(name):
        yield invalid_field(f"{at}.name", name, problem)
    source = entry.get("valueFrom")
    if source is None:
        return
    kinds = [key for key in source if source[key] is not None]
    if entry.get("value"):
        yield invalid_field(f"{at}.valueFrom", "", "may not be specified when `value` is not empty")
    if len(kinds) != 1:
        detail = "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef` or `secretKeyRef`"
        if len(kinds) > 1:
            detail = "may not have more than one field specified at a time"
        yield invalid_field(f"{at}.valueFrom", "", detail)
    if field := source.get("fieldRef"):
        yield from _field_ref(f"{at}.valueFrom.fieldRef.fieldPath", str(field.get("fieldPath", "")))


def _field_ref(at: str, path: str) -> Iterator[FieldError]:
    if not path:
        yield required(at)
    elif match := _SUBSCRIPT.fullmatch(path):
        key = match["key"] if match["map"] == "metadata.labels" else match["key"].lower()
        if problem := qualified_name_problem(key):
            yield invalid_field(at, match["key"], problem)
    elif path in ("metadata.labels", "metadata.annotations"):
        yield unsupported(at, path, _POD_FIELDS)
    elif path not in _POD_FIELDS:
        yield invalid_field(at, path, f"error converting fieldPath: field label not supported: {path}")


def _resources(at: str, resources: JSON) -> Iterator[FieldError]:
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for field, amounts in (("limits", limits), ("requests", requests)):
        for name, amount in amounts.items():
            yield from _amount(f"{at}.{field}", name, amount)
    for name, amount in requests.items():
        yield from _against_limit(at, name, amount, limits)
    for name in limits:
        if _extended(name) and name not in requests:
            yield required(f"{at}.requests", "Request must be set for non overcommitable resources")


def _extended(name: str) -> bool:
    return "/" in name and not name.split("/")[0].endswith("kubernetes.io")


def _amount(at: str, name: str, amount: object) -> Iterator[FieldError]:
    path = f"{at}[{name}]"
    if problem := qualified_name_problem(name):
        yield invalid_field(path, name, problem)
    elif "/" not in name and name not in _STANDARD and not name.startswith("hugepages-"):
        yield invalid_field(path, name, "must be a standard resource type or fully qualified")
        yield invalid_field(path, name, "must be a standard resource for containers")
    elif name.startswith("requests."):
        yield invalid_field(path, name, "doesn't follow extended resource name standard")
    yield from amount_problems(path, name, amount)


def amount_problems(path: str, name: str, amount: object) -> Iterator[FieldError]:
    """An amount of a resource: not negative, and whole for extended resources."""
    try:
        exact = parse(amount)
    except BadQuantity:
        return  # decoding has already refused it in every reachable case
    if exact < 0:
        yield invalid_field(path, amount, "must be greater than or equal to 0")
    if _extended(name) and exact.denominator != 1:
        yield invalid_field(path, amount, _INTEGER)


def _against_limit(at: str, name: str, amount: object, limits: Mapping[str, object]) -> Iterator[FieldError]:
    strict = _extended(name)
    if name not in limits:
        if strict:
            yield required(f"{at}.limits", "Limit must be set for non overcommitable resources")
        return
    try:
        wanted, limit = parse(amount), parse(limits[name])
    except BadQuantity:
        return
    if strict and wanted != limit:
        yield invalid_field(f"{at}.requests", str(amount), f"must be equal to {name} limit of {limits[name]}")
    elif wanted > limit:
        yield invalid_field(
            f"{at}.requests", str(amount), f"must be less than or equal to {name} limit of {limits[name]}"
        )
