"""
Frozen values to JSON and back, by their declared types.

For what only this program writes and reads, so that a field added to a value is in its JSON without another line. Not
for annotations or the API: their formats are contracts and stand in `contract.encoding.codec`. Reading is total: what
does not have the type's shape is `Malformed`, with the path of the first part that is wrong. A field that the JSON
lacks takes its default; one that the type lacks is left alone, so that an older program reads a newer one's file.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, TypeVar

from contract.encoding.reading import Malformed

T = TypeVar("T")
JSON = dict[str, Any]
_PLAIN = (str, int, float, bool, type(None))


def to_json(value: Any) -> Any:
    """
    Dataclasses, tuples, frozensets, mappings and plain values. A mapping whose keys are no texts becomes a list of
    pairs. Fields at their default are left out.
    """
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value):
            return {key: to_json(item) for key, item in value.items()}
        return [[to_json(key), to_json(item)] for key, item in value.items()]
    if isinstance(value, frozenset):
        return sorted(to_json(item) for item in value)
    if isinstance(value, tuple | list):
        return [to_json(item) for item in value]
    return {
        field.name: to_json(getattr(value, field.name))
        for field in _fields(type(value))
        if not _is_default(field, getattr(value, field.name))
    }


def _fields(kind: type) -> list[dataclasses.Field[Any]]:
    """Those that a value is made of; others it works out itself."""
    return [field for field in dataclasses.fields(kind) if field.init]


def _is_default(field: dataclasses.Field[Any], value: Any) -> bool:
    if field.default_factory is not dataclasses.MISSING:
        return bool(value == field.default_factory())
    return field.default is not dataclasses.MISSING and bool(value == field.default)


def from_json(kind: type[T], document: Any, path: str) -> T:
    """Read a value of that type; `path` is what the whole is called in messages. Raises `Malformed`."""
    read: T = _read(kind, document, path)
    return read


def _read(kind: Any, value: Any, path: str) -> Any:
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _read_fields(kind, value, path)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in arguments:
            return None
        (only,) = [one for one in arguments if one is not type(None)]
        return _read(only, value, path)
    if origin in (tuple, frozenset):
        return _read_sequence(origin, arguments, value, path)
    if origin in (dict, Mapping):
        return _read_mapping(arguments, value, path)
    if isinstance(kind, type) and issubclass(kind, dict):
        return kind(_read_mapping((str, str), value, path))
    if origin is typing.Literal:
        if value not in arguments:
            raise Malformed(f"{path} is none of {', '.join(map(str, arguments))}")
        return value
    return _read_plain(kind, value, path)


def _read_mapping(arguments: tuple[Any, ...], value: Any, path: str) -> dict[Any, Any]:
    of_key, of_item = arguments
    if of_key is not str and (isinstance(value, list) or value == {}):
        pairs = ((f"{path}[{i}]", pair) for i, pair in enumerate(value))
        return {_read(of_key, key, at): _read(of_item, item, at) for at, (key, item) in map(_pair, pairs)}
    if not isinstance(value, dict):
        raise Malformed(f"{path} is not an object")
    return {str(key): _read(of_item, item, f"{path}.{key}") for key, item in value.items()}


def _pair(found: tuple[str, Any]) -> tuple[str, tuple[Any, Any]]:
    path, value = found
    if not isinstance(value, list) or len(value) != 2:
        raise Malformed(f"{path} is no pair of a key and a value")
    return path, (value[0], value[1])


def _read_plain(kind: Any, value: Any, path: str) -> Any:
    if issubclass(kind, StrEnum):
        return _read_word(kind, value, path)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise Malformed(f"{path} is not of type {kind.__name__}")
    return value


def _read_word(kind: type[StrEnum], value: Any, path: str) -> StrEnum:
    if value not in list(kind):
        raise Malformed(f"{path} is none of {', '.join(kind)}")
    return kind(value)


def _read_fields(kind: type, value: Any, path: str) -> Any:
    if not isinstance(value, dict):
        raise Malformed(f"{path} is not an object")
    given = {}
    for field in _fields(kind):
        if field.name in value:
            given[field.name] = _read(_hints(kind)[field.name], value[field.name], f"{path}.{field.name}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise Malformed(f"{path}.{field.name} is missing")
    return kind(**given)


def _read_sequence(origin: Any, arguments: tuple[Any, ...], value: Any, path: str) -> Any:
    if not isinstance(value, list):
        raise Malformed(f"{path} is not a list")
    if len(arguments) == 1 or arguments[-1] is Ellipsis:
        return origin(_read(arguments[0], item, f"{path}[{i}]") for i, item in enumerate(value))
    if len(value) != len(arguments):
        raise Malformed(f"{path} has {len(value)} parts, expected {len(arguments)}")
    return origin(_read(one, item, f"{path}[{i}]") for i, (one, item) in enumerate(zip(arguments, value, strict=True)))


@functools.cache
def _hints(kind: type) -> Mapping[str, Any]:
    return typing.get_type_hints(kind)
