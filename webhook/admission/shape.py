"""
Whether a pod's JSON has the structure that everything behind this module takes for granted.

The API server sends nothing else, but another client of the port can, and after this check no code of ours meets a
string where it reads a list. Only fields that we read are looked at; unknown fields and null are fine anywhere, since
Kubernetes omits and nulls freely. Values (amounts, names) are judged where they are understood, not here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from contract.dialects import Refusal
from contract.encoding import reading
from contract.encoding.reading import shown

_Check = Callable[[Any, str], Iterator[Refusal]]
"""Yields a refusal for every part of a value that is wrong; the text is the value's path."""

_NAMES = {dict: "an object", list: "a list", str: "text", bool: "true or false", int: "a number", float: "a number"}


def problem(pod: Mapping[str, Any]) -> Refusal | None:
    """The first part of the pod that has the wrong structure, or None."""
    found = next(_POD(pod, ""), None)
    return found or next(_names_twice(pod.get("spec") or {}), None)


def _names_twice(spec: Mapping[str, Any]) -> Iterator[Refusal]:
    """Containers are known by their names, so two of the same name could not be distinguished."""
    seen: set[str] = set()
    for kind in ("initContainers", "containers"):
        for position, container in enumerate(spec.get(kind) or []):
            name = container.get("name") or ""
            if not name or name in seen:
                yield Refusal(f"spec.{kind}[{position}].name", shown(name), "give every container a name of its own")
            seen.add(name)


def _is(*kinds: type) -> _Check:
    wanted = " or ".join(dict.fromkeys(_NAMES[kind] for kind in kinds))

    def check(value: Any, path: str) -> Iterator[Refusal]:
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            yield Refusal(path or "the pod", _NAMES.get(type(value), type(value).__name__), f"give {wanted}")

    return check


def _name(holds: Callable[[str], bool], cure: str) -> _Check:
    """Text that is empty, or a name as Kubernetes has them."""

    def check(value: Any, path: str) -> Iterator[Refusal]:
        if not isinstance(value, str):
            yield from _TEXT(value, path)
        elif value and not holds(value):
            yield Refusal(path, shown(value), f"give {cure}")

    return check


def _fields(**fields: _Check) -> _Check:
    """An object; the fields that are named here and not null must pass their checks."""

    def check(value: Any, path: str) -> Iterator[Refusal]:
        yield from _OBJECT(value, path)
        if isinstance(value, dict):
            for key, inner in fields.items():
                if value.get(key) is not None:
                    yield from inner(value[key], f"{path}.{key}" if path else key)

    return check


def _each(inner: _Check) -> _Check:
    """A list whose items all pass; null is no item."""

    def check(value: Any, path: str) -> Iterator[Refusal]:
        yield from _LIST(value, path)
        if isinstance(value, list):
            for position, item in enumerate(value):
                yield from inner(item, f"{path}[{position}]")

    return check


def _values(inner: _Check) -> _Check:
    """An object whose values all pass."""

    def check(value: Any, path: str) -> Iterator[Refusal]:
        yield from _OBJECT(value, path)
        if isinstance(value, dict):
            for key, item in value.items():
                yield from inner(item, f"{path}[{key if len(key) <= _LONGEST_KEY else shown(key)}]")

    return check


_LONGEST_KEY = 320
"""Characters of the longest key that Kubernetes has: a domain, a slash and a name."""
_OBJECT, _LIST, _TEXT = _is(dict), _is(list), _is(str)
_SUBDOMAIN = _name(reading.is_subdomain, "a name of at most 253 of a-z, 0-9, - and .")
_BEGINNING = _name(reading.is_beginning, "the beginning of a name, of a-z, 0-9, - and .")
_LABEL = _name(reading.is_label, "a name of at most 63 of a-z, 0-9 and -")
_TEXTS, _AMOUNTS = _values(_TEXT), _values(_is(str, int, float))
_EXPRESSIONS = _each(_fields(key=_TEXT, operator=_TEXT, values=_each(_TEXT)))
_NODE_SELECTOR = _fields(nodeSelectorTerms=_each(_fields(matchExpressions=_EXPRESSIONS, matchFields=_EXPRESSIONS)))
_CONTAINERS = _each(
    _fields(
        name=_LABEL,
        restartPolicy=_TEXT,
        resources=_fields(limits=_AMOUNTS, requests=_AMOUNTS),
        env=_each(_fields(name=_TEXT)),
        volumeMounts=_each(_fields(name=_TEXT, mountPath=_TEXT)),
        ports=_each(_fields(hostPort=_is(int), containerPort=_is(int), hostIP=_TEXT, protocol=_TEXT)),
    )
)
_POD = _fields(
    metadata=_fields(
        name=_SUBDOMAIN,
        generateName=_BEGINNING,
        namespace=_LABEL,
        annotations=_TEXTS,
        labels=_TEXTS,
        ownerReferences=_each(_fields(kind=_TEXT, name=_TEXT, uid=_TEXT)),
    ),
    spec=_fields(
        nodeName=_SUBDOMAIN,
        nodeSelector=_TEXTS,
        schedulerName=_TEXT,
        hostNetwork=_is(bool),
        os=_fields(name=_TEXT),
        overhead=_AMOUNTS,
        affinity=_fields(nodeAffinity=_fields(requiredDuringSchedulingIgnoredDuringExecution=_NODE_SELECTOR)),
        tolerations=_each(_fields(key=_TEXT, operator=_TEXT, value=_TEXT, effect=_TEXT)),
        schedulingGates=_each(_fields(name=_TEXT)),
        volumes=_each(_fields(name=_TEXT)),
        initContainers=_CONTAINERS,
        ephemeralContainers=_CONTAINERS,
        containers=_CONTAINERS,
    ),
    status=_fields(phase=_TEXT, conditions=_each(_OBJECT)),
)
