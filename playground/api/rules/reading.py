"""
What a CEL expression can read: told from its text, so that it need not be handed more.

A cautious guess. What looks like a variable inside a text, or is the name of a field, counts as one too: an expression
that is handed too much has the same value.
"""

import functools
import re
from collections.abc import Mapping
from typing import Any, TypeAlias

Fields: TypeAlias = dict[str, Any] | None
"""Fields of an object, each with the `Fields` of its own that are read; None for everything."""
_NAMED = r"(?<!\w){}(?!\w)(?:(?P<path>(?:\.\w+)+)(?P<call>\s*\()?|(?P<null>\s*[!=]=\s*null(?!\w)))?"
"""A variable, and the fields that are read of it. Whether it is null can be told from any part of it."""


def part(variables: Mapping[str, Any], text: str) -> dict[str, Any]:
    """The variables that an expression names, each with what the expression can read of it."""
    return {name: _part(variables[name], fields) for name, fields in _reads(text, tuple(variables))}


def _part(value: Any, fields: Fields) -> Any:
    if fields is None or not isinstance(value, dict):
        return value
    return {key: _part(value[key], inner) for key, inner in fields.items() if key in value}


@functools.lru_cache(maxsize=1024)
def _reads(text: str, names: tuple[str, ...]) -> tuple[tuple[str, Fields], ...]:
    return tuple((name, _fields(text, name)) for name in names if re.search(_NAMED.format(name), text))


def _fields(text: str, name: str) -> Fields:
    found: dict[str, Any] = {}
    for match in re.finditer(_NAMED.format(name), text):
        path = (match["path"] or "").split(".")[1:]
        if match["call"]:
            path.pop()  # a method of what stands before it
        if path:
            _add(found, path)
        elif not match["null"]:
            return None
    return found


def _add(fields: dict[str, Any], path: list[str]) -> None:
    """Read a field too, by its path, with everything in it."""
    *above, last = path
    for step in above:
        inner = fields.setdefault(step, {})
        if inner is None:
            return
        fields = inner
    fields[last] = None
