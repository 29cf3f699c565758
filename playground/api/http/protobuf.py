"""
The few request bodies that kubectl sends as protobuf whatever the server prefers: reviews, and simple kinds.

Reading only, by hand-made tables of the published `generated.proto` field numbers. A kind that is not in the tables is
refused with 415; every answer is JSON.
"""

import base64
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from playground.api.kinds.errors import bad_request, unsupported_media_type
from playground.api.kinds.values import JSON

MEDIA = "application/vnd.kubernetes.protobuf"
_ACCEPTED = ("application/json", "application/yaml")
_MAGIC = b"k8s\x00"

Shape: TypeAlias = Mapping[int, "Field"]


@dataclass(frozen=True, slots=True)
class Field:
    """`kind`: text, bytes, raw, int, bool, map, bytemap, ignored, or a message of a shape."""

    name: str
    kind: str = "text"
    shape: Shape | None = None
    repeated: bool = False


def _message(name: str, shape: Shape, *, repeated: bool = False) -> Field:
    return Field(name, "message", shape, repeated)


_META: Shape = {
    1: Field("name"),
    2: Field("generateName"),
    3: Field("namespace"),
    5: Field("uid"),
    6: Field("resourceVersion"),
    11: Field("labels", "map"),
    12: Field("annotations", "map"),
    14: Field("finalizers", repeated=True),
}
_RESOURCE: Shape = {
    1: Field("namespace"),
    2: Field("verb"),
    3: Field("group"),
    4: Field("version"),
    5: Field("resource"),
    6: Field("subresource"),
    7: Field("name"),
}
_NON_RESOURCE: Shape = {1: Field("path"), 2: Field("verb")}
_PRECONDITIONS: Shape = {1: Field("uid"), 2: Field("resourceVersion")}
_DELETE: Shape = {
    1: Field("gracePeriodSeconds", "int"),
    2: _message("preconditions", _PRECONDITIONS),
    3: Field("orphanDependents", "bool"),
    4: Field("propagationPolicy"),
    5: Field("dryRun", repeated=True),
}
_ACCESS: Shape = {1: _message("resourceAttributes", _RESOURCE), 2: _message("nonResourceAttributes", _NON_RESOURCE)}
_METADATA = _message("metadata", _META)
_STATUS = Field("status", "ignored")  # the server sets its own
_SHAPES: Mapping[str, Shape] = {
    "Namespace": {1: _METADATA, 2: Field("spec", "ignored"), 3: _STATUS},
    "ServiceAccount": {1: _METADATA},
    "ConfigMap": {
        1: _METADATA,
        2: Field("data", "map"),
        3: Field("binaryData", "bytemap"),
        4: Field("immutable", "bool"),
    },
    "Secret": {1: _METADATA, 2: Field("data", "bytemap"), 3: Field("type"), 4: Field("stringData", "map")},
    "SelfSubjectAccessReview": {1: _METADATA, 2: _message("spec", _ACCESS), 3: _STATUS},
    "SelfSubjectRulesReview": {1: _METADATA, 2: _message("spec", {1: Field("namespace")}), 3: _STATUS},
    "SelfSubjectReview": {1: _METADATA, 2: _STATUS},
    "Eviction": {1: _METADATA, 2: _message("deleteOptions", _DELETE)},
    "DeleteOptions": _DELETE,
}
_UNKNOWN: Shape = {
    1: _message("typeMeta", {1: Field("apiVersion"), 2: Field("kind")}),
    2: Field("raw", "raw"),
    3: Field("contentEncoding", "ignored"),
    4: Field("contentType", "ignored"),
}


def decode(content: bytes) -> JSON:
    """The object in a Kubernetes protobuf envelope. Raises `ApiError` 400 or 415."""
    if not content.startswith(_MAGIC):
        raise bad_request("the body is not a Kubernetes protobuf message: it does not begin with its magic bytes")
    try:
        envelope = _read(content[len(_MAGIC) :], _UNKNOWN)
        about = envelope.get("typeMeta") or {}
        shape = _SHAPES.get(about.get("kind", ""))
        if shape is None:
            raise unsupported_media_type(_ACCEPTED)
        return {**about, **_read(envelope.get("raw", b""), shape)}
    except (IndexError, UnicodeDecodeError) as failure:
        raise bad_request(f"the body is not a Kubernetes protobuf message: {failure}") from None


def _read(content: bytes, shape: Shape) -> JSON:
    """A message. A field that the shape does not name may only be zero: nothing that was sent is passed over."""
    value: JSON = {}
    for number, part in _fields(content):
        field = shape.get(number)
        if field is None and part not in (0, b""):
            raise unsupported_media_type(_ACCEPTED)
        if field is None or field.kind == "ignored":
            continue
        if field.kind in ("map", "bytemap"):
            entry = _read(part, {1: Field("key"), 2: Field("value", "text" if field.kind == "map" else "bytes")})
            value.setdefault(field.name, {})[entry.get("key", "")] = entry.get("value", "")
        elif field.repeated:
            value.setdefault(field.name, []).append(_single(field, part))
        else:
            value[field.name] = _single(field, part)
    return {key: part for key, part in value.items() if part != ""}


def _single(field: Field, part: Any) -> Any:
    match field.kind:
        case "message":
            return _read(part, field.shape or {})
        case "int":
            return part if part < 1 << 63 else part - (1 << 64)
        case "bool":
            return bool(part)
        case "raw":
            return part
        case "bytes":
            return base64.b64encode(part).decode()
    return part.decode()


def _fields(content: bytes) -> Iterator[tuple[int, Any]]:
    at = 0
    while at < len(content):
        tag, at = _varint(content, at)
        match tag & 7:
            case 0:
                value, at = _varint(content, at)
                yield tag >> 3, value
            case 2:
                size, at = _varint(content, at)
                if at + size > len(content):
                    raise IndexError("a field is longer than the message")
                yield tag >> 3, content[at : at + size]
                at += size
            case 1 | 5 as wire:
                at += 8 if wire == 1 else 4
                yield tag >> 3, None
            case wire:
                raise IndexError(f"wire type {wire} is not known")


def _varint(content: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = content[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at
        if shift > 63:
            raise IndexError("a number is longer than 64 bits")
