"""
The fields that a CEL expression can read, determined from its text, so that it gets only those.

The result may have too many fields: a field's name, or a word inside a string, also counts as a variable if it looks
like one. An expression that gets more fields than it needs has the same value.
"""

import re
from typing import Any, TypeAlias

Fields: TypeAlias = dict[str, Any] | None
"""Fields of an object, each with the `Fields` of its own that are read; None for everything."""
_NAMED = r"(?<!\w){}(?!\w)(?:(?P<path>(?:\.\w+)+)(?P<call>\s*\()?|(?P<null>\s*[!=]=\s*null(?!\w)))?"
"""A variable, and the fields that are read of it. Whether it is null can be told from any part of it."""


def fields(text: str, name: str) -> Fields:
    """What an expression can read of a variable that it names."""
    found: dict[str, Any] = {}
    for match in re.finditer(_NAMED.format(name), text):
        path = (match["path"] or "").split(".")[1:]
        if match["call"]:
            path.pop()  # a method of the preceding value
        if path:
            _add(found, path)
        elif not match["null"]:
            return None
    return found


def part(value: Any, read: Fields) -> Any:
    """A value with no more than these fields."""
    if read is None or not isinstance(value, dict):
        return value
    return {key: part(value[key], inner) for key, inner in read.items() if key in value}


def _add(read: dict[str, Any], path: list[str]) -> None:
    """Read a field too, by its path, with everything in it."""
    *above, last = path
    for step in above:
        inner = read.setdefault(step, {})
        if inner is None:
            return
        read = inner
    read[last] = None
