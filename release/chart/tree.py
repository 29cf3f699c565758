"""
Objects that depend on switches: the manifests after kustomize's patches, for every choice at once.

A kustomization patches objects when it is built. A Helm chart must have all choices in it, as `{{ if }}`. So a patch is
applied here under a condition: where it changes a value, both values stay, with the condition between them. The merges
follow kustomize's own, down to the order of lists; tests hold the chart equal to what kustomize builds.

Pure. Must not: read files, or know what a switch means.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

Node = Any
"""A scalar, a map, a list, `ABSENT`, or one of the classes below; maps and lists have nodes inside."""


class Unsupported(ValueError):
    """A kustomization has a part that the chart cannot express. The message names the place."""


class Absent:
    """The sentinel for an absent key, item of a list, or whole object."""

    def __repr__(self) -> str:
        return "ABSENT"

    def __copy__(self) -> Absent:
        return self

    def __deepcopy__(self, memo: object) -> Absent:
        return self


ABSENT = Absent()


@dataclass(frozen=True)
class When:
    """`then` where the condition holds, else `otherwise`. A condition is a switch's name or a template's expression."""

    condition: str
    then: Node
    otherwise: Node = ABSENT


@dataclass(frozen=True)
class Expression:
    """A scalar that a template's expression gives."""

    text: str


@dataclass(frozen=True)
class Values:
    """A map or list from the chart's values: a key's value, or, as an item of a list, all of its items."""

    text: str


@dataclass(frozen=True)
class Text:
    """A text of several lines that is the YAML of one of the chart's values."""

    text: str


MORE = "\0more"
"""A key of a map: its value, `Values`, gives further keys."""

_KEYS: Mapping[str, str] = {
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "webhooks": "name",
    "imagePullSecrets": "name",
}
"""Lists that a patch merges item by item, with the key that names an item (Kubernetes' patchMergeKey)."""
_REPLACED = frozenset(
    {"args", "command", "tolerations", "nodeSelectorTerms", "requiredDuringSchedulingIgnoredDuringExecution", "items"}
    | {"rules"}
)
"""Lists that a patch replaces."""


def merged(old: Node, patch: Node, condition: str, key: str = "") -> Node:
    """
    The node after a strategic merge of `patch` under the condition. Raises `Unsupported`.

    `key` is the map's key at which both are; it determines how lists merge.
    """
    if isinstance(old, When):
        return When(
            old.condition, merged(old.then, patch, condition, key), merged(old.otherwise, patch, condition, key)
        )
    if patch is None:
        return When(condition, ABSENT, old)
    if isinstance(old, dict) and isinstance(patch, dict):
        names = [*old, *(name for name in patch if name not in old)]
        return {
            name: merged(old.get(name, ABSENT), patch[name], condition, name) if name in patch else old[name]
            for name in names
        }
    if isinstance(old, list) and isinstance(patch, list) and key in _KEYS:
        return _merged_items(old, patch, condition, _KEYS[key])
    if isinstance(patch, list) and isinstance(old, list) and key not in _REPLACED:
        raise Unsupported(f"{key}: a patch of this list; say in release/chart/tree.py how it merges")
    return old if old == patch else When(condition, copy.deepcopy(patch), old)


def _merged_items(old: list[Node], patch: list[Node], condition: str, name: str) -> list[Node]:
    """Named items: those of the patch come first, in its order and merged with the old ones, as in kustomize."""
    if any("$patch" in wanted for wanted in patch):
        raise Unsupported(f"{patch}: $patch of an item")
    # What is in its place already stays one item, with the conditions inside.
    kept = 0
    while kept < min(len(old), len(patch)) and _is(old[kept], name, patch[kept][name]):
        kept += 1
    first = [merged(old[i], patch[i], condition) for i in range(kept)]
    items, moved = old[kept:], []
    for wanted in patch[kept:]:
        node: Node = wanted
        for i, item in enumerate(items):
            if wanted[name] in _names(item, name):
                node = _instead(item, partial(merged, patch=wanted, condition=condition), node)
                items[i] = When(condition, ABSENT, item)
        moved.append(When(condition, node))
    return [*first, *moved, *items]


def _is(item: Node, key: str, value: str) -> bool:
    return isinstance(item, dict) and item.get(key) == value


def _names(item: Node, key: str) -> set[str]:
    if isinstance(item, When):
        return _names(item.then, key) | _names(item.otherwise, key)
    return {item[key]} if isinstance(item, dict) and key in item else set()


def _instead(item: Node, change: Callable[[Node], Node], other: Node) -> Node:
    """The changed item where it is there, and else the other one."""
    if isinstance(item, When):
        return When(item.condition, _instead(item.then, change, other), _instead(item.otherwise, change, other))
    return other if item is ABSENT else change(item)


def where_present(node: Node, change: Callable[[Node], Node]) -> Node:
    if isinstance(node, When):
        return When(node.condition, where_present(node.then, change), where_present(node.otherwise, change))
    return ABSENT if node is ABSENT else change(node)


def edited(node: Node, operations: Sequence[Mapping[str, Any]], condition: str) -> Node:
    """The node after the operations of a JSON patch (RFC 6902) under the condition. Raises `Unsupported`."""
    for operation in operations:
        parts = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
        node = _at(node, parts, operation, condition)
    return node


def _at(node: Node, parts: list[str], operation: Mapping[str, Any], condition: str) -> Node:
    def step(found: Node) -> Node:
        key: Any = parts[0]
        if isinstance(found, list):
            if key == "-":
                return [*found, When(condition, operation["value"])]
            key = int(key)
            if any(isinstance(item, When) and _may_be_absent(item) for item in found[: key + 1]):
                raise Unsupported(f"{operation['path']}: components add or remove items before this index")
        elif not isinstance(found, dict):
            raise Unsupported(f"{operation['path']}: nothing there")
        changed = copy.copy(found)
        if len(parts) > 1:
            changed[key] = _at(found[key], parts[1:], operation, condition)
        else:
            changed[key] = _operated(
                found.get(key, ABSENT) if isinstance(found, dict) else found[key], operation, condition
            )
        return changed

    return where_present(node, step)


def _may_be_absent(node: Node) -> bool:
    return node is ABSENT or (isinstance(node, When) and (_may_be_absent(node.then) or _may_be_absent(node.otherwise)))


def _operated(old: Node, operation: Mapping[str, Any], condition: str) -> Node:
    match operation["op"]:
        case "add" | "replace":
            return When(condition, operation["value"], old)
        case "remove":
            return When(condition, ABSENT, old)
        case "test":
            if operation["value"] not in _leaves(old):
                raise Unsupported(f"{operation['path']}: the test for {operation['value']!r} fails, found {old!r}")
            return old
    raise Unsupported(f"{operation['op']}: an operation that the chart does not know")


def _leaves(node: Node) -> list[Node]:
    return [*_leaves(node.then), *_leaves(node.otherwise)] if isinstance(node, When) else [node]


def simplified(node: Node, known: Mapping[str, bool], exclusive: frozenset[str]) -> Node:
    """
    The node without conditions whose value is known from those around them.

    `exclusive` are switches of which at most one is on.
    """
    if isinstance(node, When):
        if node.condition in known:
            return simplified(node.then if known[node.condition] else node.otherwise, known, exclusive)
        others = {name: False for name in exclusive} if node.condition in exclusive else {}
        then = simplified(node.then, {**known, **others, node.condition: True}, exclusive)
        otherwise = simplified(node.otherwise, {**known, node.condition: False}, exclusive)
        return then if then == otherwise else When(node.condition, then, otherwise)
    if isinstance(node, dict):
        inner = {key: simplified(value, known, exclusive) for key, value in node.items()}
        return {key: value for key, value in inner.items() if value is not ABSENT}
    if isinstance(node, list):
        items = [simplified(item, known, exclusive) for item in node]
        return [item for item in items if item is not ABSENT]
    return node
