"""
The fields of the built-in kinds: which ones decoding accepts, drops and refuses.

The published OpenAPI types come with the `kubernetes` client, as its generated models; nothing else of it is used, and
it is imported when the first object is decoded. As in a real API server, an unknown field is dropped and reported, a
null is the same as nothing, and a value of another type ends the request.
"""

import functools
import importlib
import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from contract.encoding.quantity import BadQuantity, parse
from playground.api.kinds.errors import unhandled
from playground.api.kinds.kinds import Kind
from playground.api.kinds.values import JSON

_MODELS = "kubernetes.client.models"
_LIST = re.compile(r"list\[(.+)\]", re.IGNORECASE)
_DICT = re.compile(r"dict[(\[]str, ?(.+)[)\]]", re.IGNORECASE)
_SCALARS: Mapping[str, tuple[str, tuple[type, ...]]] = {
    "str": ("string", (str,)),
    "datetime": ("string", (str,)),
    "int": ("int32", (int,)),
    "float": ("float64", (int, float)),
    "bool": ("bool", (bool,)),
}
_QUANTITIES = frozenset(
    {
        *("limits", "requests", "capacity", "allocatable", "hard", "used", "overhead", "podFixed", "sizeLimit"),
        *("max", "min", "default", "defaultRequest", "maxLimitRequestRatio", "allocatedResources", "divisor"),
    }
)
"""Fields that contain quantities. The published types call them strings, but numbers are valid too."""
_NAMES: Mapping[str, str] = {"events": "CoreV1Event", "endpointslices.discovery.k8s.io": "V1EndpointSlice"}


@dataclass(frozen=True, slots=True)
class _Type:
    """The type of a field: a scalar, a model, or a list or map of another type. None of them: anything goes."""

    scalar: str = ""
    model: str = ""
    items: "_Type | None" = None
    values: "_Type | None" = None


def decode(kind: Kind, value: JSON, known: JSON | None = None) -> tuple[JSON, list[str]]:
    """
    The object without nulls and unknown fields, and the paths of those. Raises `ApiError` 400 for a wrong type.

    `known` is a state that was decoded before. Parts of `value` that are the same objects as in `known` are skipped.
    """
    reader = _Reader(kind)
    if kind.custom is not None:
        rest = {key: part for key, part in value.items() if key != "metadata"}
        meta, before = value.get("metadata") or {}, (known or {}).get("metadata")
        metadata = reader.read(_Type(model="V1ObjectMeta"), meta, before, ("metadata",), "ObjectMeta")
        return {**rest, "metadata": metadata}, reader.unknown
    model = _NAMES.get(kind.key, f"V1{kind.name}")
    return reader.read(_Type(model=model), value, known, (), kind.name), reader.unknown


class _Reader:
    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self.unknown: list[str] = []

    def read(self, wanted: _Type, value: Any, known: Any, path: tuple[str, ...], owner: str) -> Any:
        if value is known and known is not None:
            return value
        if wanted.model:
            return self._model(wanted.model, value, known, path, owner)
        if wanted.items is not None:
            return self._list(wanted.items, value, known, path, owner)
        if wanted.values is not None:
            return self._map(wanted.values, value, path, owner)
        if wanted.scalar:
            self._scalar(wanted.scalar, value, path, owner)
        return value

    def _list(self, wanted: _Type, value: Any, known: Any, path: tuple[str, ...], owner: str) -> Any:
        if not isinstance(value, list):
            raise self._mismatch(value, path, owner, f"[]{_go_name(wanted)}")
        before = known if isinstance(known, list) else ()
        pairs = itertools.zip_longest(value, before[: len(value)])
        return [self.read(wanted, item, old, (*path, f"[{i}]"), owner) for i, (item, old) in enumerate(pairs)]

    def _model(self, name: str, value: Any, known: Any, path: tuple[str, ...], owner: str) -> Any:
        fields = _fields(name)
        if fields is None:
            return value
        own = _go_name(_Type(model=name))
        if not isinstance(value, dict):
            raise self._mismatch(value, path, owner, own)
        read: JSON = {}
        before = known if isinstance(known, dict) else {}
        for key, part in value.items():
            if key not in fields:
                self.unknown.append(_shown((*path, key)))
            elif part is not None:
                read[key] = self.read(fields[key], part, before.get(key), (*path, key), own)
        return read

    def _map(self, wanted: _Type, value: Any, path: tuple[str, ...], owner: str) -> Any:
        if not isinstance(value, dict):
            raise self._mismatch(value, path, owner, f"map[string]{_go_name(wanted)}")
        if path[-1] in _QUANTITIES and all(isinstance(part, str | int | float) for part in value.values()):
            for part in value.values():
                self._quantity(part)
            return value
        return {
            key: self.read(wanted, part, None, (*path, key), owner) for key, part in value.items() if part is not None
        }

    def _scalar(self, wanted: str, value: Any, path: tuple[str, ...], owner: str) -> None:
        go_name, types = _SCALARS[wanted]
        fits = isinstance(value, types) and isinstance(value, bool) is (wanted == "bool")
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not fits and not (number and path[-1] in _QUANTITIES):
            raise self._mismatch(value, path, owner, go_name)

    def _quantity(self, value: str | int | float) -> None:
        try:
            parse(value)
        except BadQuantity:
            why = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
            raise unhandled(self._kind, self._kind.name, why) from None

    def _mismatch(self, value: Any, path: tuple[str, ...], owner: str, wanted: str) -> Exception:
        found = {dict: "object", list: "array", str: "string", bool: "bool"}.get(type(value), "number")
        steps = ".".join(step for step in path if not step.startswith("["))
        why = f"json: cannot unmarshal {found} into Go struct field {owner}.{steps} of type {wanted}"
        return unhandled(self._kind, self._kind.name, why)


def _shown(path: tuple[str, ...]) -> str:
    return ".".join(path).replace(".[", "[")


@functools.cache
def _go_name(wanted: _Type) -> str:
    """The Go type that messages name: `EnvVar` for the model `V1EnvVar`."""
    if wanted.model:
        return re.sub(r"^(?:Core)?V\d+(?:(?:alpha|beta)\d+)?", "", wanted.model)
    if wanted.scalar:
        return _SCALARS[wanted.scalar][0]
    return "interface {}"


@functools.cache
def _fields(model: str) -> Mapping[str, _Type] | None:
    """The fields of a model by their JSON names; None for a model that this version of the client does not have."""
    found = getattr(importlib.import_module(_MODELS), model, None)
    if found is None:
        return None
    return {found.attribute_map[name]: _parse(text) for name, text in found.openapi_types.items()}


@functools.cache
def _parse(text: str) -> _Type:
    if match := _LIST.fullmatch(text):
        return _Type(items=_parse(match[1]))
    if match := _DICT.fullmatch(text):
        return _Type(values=_parse(match[1]))
    if text in _SCALARS:
        return _Type(scalar=text)
    return _Type() if text == "object" else _Type(model=text)
