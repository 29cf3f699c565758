"""
JSON patches (RFC 6902) applied to a document, for what the webhook and the allocator write: add, remove, replace, test.

Pure. The document is not changed; parts that no operation names are shared with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from jsonpointer import unescape


class PatchFailed(ValueError):
    """An operation does not fit the document: a test failed, or there is no such place."""


def patched(document: Any, operations: Iterable[Mapping[str, Any]]) -> Any:
    """The document after all of the operations. Raises `PatchFailed`."""
    for each in operations:
        tokens = [unescape(token) for token in str(each["path"]).split("/")[1:]]
        document = _at(document, tokens, each)
    return document


def _at(parent: Any, tokens: list[str], operation: Mapping[str, Any]) -> Any:
    if not tokens:
        return _root(parent, operation)
    key, rest = tokens[0], tokens[1:]
    if isinstance(parent, Mapping):
        made = dict(parent)
        if rest:
            if key not in made:
                raise PatchFailed(f"{operation['path']}: no {key}")
            made[key] = _at(made[key], rest, operation)
            return made
        return _in_object(made, key, operation)
    if isinstance(parent, list):
        return _in_list(list(parent), key, rest, operation)
    raise PatchFailed(f"{operation['path']}: {key} is in neither an object nor a list")


def _root(document: Any, operation: Mapping[str, Any]) -> Any:
    if operation["op"] == "test":
        return _tested(document, operation)
    return operation["value"]


def _in_object(made: dict[str, Any], key: str, operation: Mapping[str, Any]) -> dict[str, Any]:
    kind = operation["op"]
    if kind != "add" and key not in made:
        raise PatchFailed(f"{operation['path']}: no {key}")
    if kind == "test":
        _tested(made[key], operation)
    elif kind == "remove":
        del made[key]
    else:
        made[key] = operation["value"]
    return made


def _in_list(made: list[Any], key: str, rest: list[str], operation: Mapping[str, Any]) -> list[Any]:
    kind = operation["op"]
    at = len(made) if key == "-" else int(key) if key.isdigit() else -1
    if not 0 <= at <= len(made) - (kind != "add" or bool(rest)):
        raise PatchFailed(f"{operation['path']}: no item {key}")
    if rest:
        made[at] = _at(made[at], rest, operation)
    elif kind == "test":
        _tested(made[at], operation)
    elif kind == "add":
        made.insert(at, operation["value"])
    elif kind == "remove":
        del made[at]
    else:
        made[at] = operation["value"]
    return made


def _tested(found: Any, operation: Mapping[str, Any]) -> Any:
    if found != operation["value"]:
        raise PatchFailed(f"{operation['path']}: not as it was")
    return found
