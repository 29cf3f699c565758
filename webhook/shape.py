"""
Whether a pod's JSON has the structure that everything behind this module takes for granted.

The API server sends nothing else, but whoever can reach the port can, and after this check no code of ours meets a
string where it reads a list. Only fields that we read are looked at; unknown fields and null are fine anywhere, since
Kubernetes omits and nulls freely. Values (amounts, names) are judged where they are understood, not here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from contract.dialects import Refusal

_Check = Callable[[Any, str], Iterator[Refusal]]
"""Yields a refusal for every part of a value that is wrong; the text is the value's path."""

_NAMES = {dict: "an object", list: "a list", str: "text", bool: "true or false", int: "a number", float: "a number"}


def problem(pod: Mapping[str, Any]) -> Refusal | None:
    """The first part of the pod that has the wrong structure, or None."""
    found = next(_POD(pod, ""), None)
    return found or next(_names_twice(pod.get("spec") or {}), None)


def _names_twice(spec: Mapping[str, Any]) -> Iterator[Refusal]:
    """Containers are known by their names, so two that share one could not be told apart."""
    seen: set[str] = set()
    for kind in ("initContainers", "containers"):
        for position, container in enumerate(spec.get(kind) or []):
            name = container.get("name") or ""
            if not name or name in seen:
                yield Refusal(f"spec.{kind}[{position}].name", repr(name), "give every container a name of its own")
            seen.add(name)


def _is(*kinds: type) -> _Check:
    wanted = " or ".join(dict.fromkeys(_NAMES[kind] for kind in kinds))

    def check(value: Any, path: str) -> Iterator[Refusal]:
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            yield Refusal(path or "the pod", _NAMES.get(type(value), type(value).__name__), f"give {wanted}")

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
                yield from inner(item, f"{path}[{key}]")

    return check


_OBJECT, _LIST, _TEXT = _is(dict), _is(list), _is(str)
_TEXTS, _AMOUNTS = _values(_TEXT), _values(_is(str, int, float))
_EXPRESSIONS = _each(_fields(key=_TEXT, operator=_TEXT, values=_each(_TEXT)))
_NODE_SELECTOR = _fields(nodeSelectorTerms=_each(_fields(matchExpressions=_EXPRESSIONS, matchFields=_EXPRESSIONS)))
_CONTAINERS = _each(
    _fields(
        name=_TEXT,
        restartPolicy=_TEXT,
        resources=_fields(limits=_AMOUNTS, requests=_AMOUNTS),
        env=_each(_fields(name=_TEXT)),
        volumeMounts=_each(_fields(name=_TEXT, mountPath=_TEXT)),
        ports=_each(_fields(hostPort=_is(int), containerPort=_is(int), hostIP=_TEXT, protocol=_TEXT)),
    )
)
_POD = _fields(
    metadata=_fields(
        name=_TEXT,
        generateName=_TEXT,
        namespace=_TEXT,
        annotations=_TEXTS,
        labels=_TEXTS,
        ownerReferences=_each(_fields(kind=_TEXT, name=_TEXT, uid=_TEXT)),
    ),
    spec=_fields(
        nodeName=_TEXT,
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
