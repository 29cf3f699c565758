"""
The cost of a waiting pod in the allocator's memory, as a number that depends only on the stored parts of the pod.

The sizes are those of CPython's objects, in bytes, rounded up. They need not be exact: they must be the same in each
process and each time, and never far less than what is used. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

_ATOM = 32
_TEXT, _WIDE = 56, 80
"""The size of a text without characters: in ASCII, which takes a byte for each, and any other, which takes up to
four."""
_LIST, _PLACE = 64, 8
_DICT, _ENTRY = 232, 100
_SET, _MEMBER = 216, 32
_RECORD = 48
POD = 4_096
"""In addition to what is read of a pod: its place in the order, its record, and its last reported condition."""


def size_of(value: Any) -> int:
    """Bytes of a value of texts, numbers, collections and dataclasses."""
    if value is None or isinstance(value, int):
        return _ATOM
    if isinstance(value, str):
        return _TEXT + len(value) if value.isascii() else _WIDE + 4 * len(value)
    if isinstance(value, Mapping):
        return _DICT + sum(_ENTRY + size_of(key) + size_of(each) for key, each in value.items())
    if isinstance(value, Set):
        return _SET + sum(_MEMBER + size_of(each) for each in value)
    if isinstance(value, list | tuple):
        return _LIST + sum(_PLACE + size_of(each) for each in value)
    fields = getattr(value, "__dataclass_fields__", None)
    if fields is not None:
        return _RECORD + sum(_PLACE + size_of(getattr(value, name)) for name in fields)
    return _ATOM
