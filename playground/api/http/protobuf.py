"""
The few request bodies that kubectl always sends as protobuf: reviews, and the objects that it creates.

Reading only, by the tables of `messages`. A kind that is not in them is refused with 415; every answer is JSON.
"""

import base64
from collections.abc import Iterator
from typing import Any

from playground.api.http.messages import SHAPES, Field, Shape
from playground.api.kinds.errors import ApiError, bad_request, unsupported_media_type
from playground.api.kinds.values import JSON

MEDIA = "application/vnd.kubernetes.protobuf"
_ACCEPTED = ("application/json", "application/yaml")
_MAGIC = b"k8s\x00"
_UNKNOWN: Shape = {
    1: Field("typeMeta", "message", {1: Field("apiVersion"), 2: Field("kind")}),
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
        shape = SHAPES.get(about.get("kind", ""))
        if shape is None:
            raise _unread(about.get("kind", ""))
        return {**about, **_read(envelope.get("raw", b""), shape)}
    except (IndexError, UnicodeDecodeError) as failure:
        raise bad_request(f"the body is not a Kubernetes protobuf message: {failure}") from None


_MAPS = {
    "map": Field("value"),
    "bytemap": Field("value", "bytes"),
    "quantities": Field("value", "message", {1: Field("")}),
}
"""What the values of each kind of map are."""


def _unread(kind: str) -> ApiError:
    """A refusal that says what works instead. kubectl shows it to users, who made no mistake."""
    refusal = unsupported_media_type(_ACCEPTED)
    hint = f" (the playground reads no {kind[:64]} as protobuf: add `--dry-run=client -o yaml | kubectl apply -f -`)"
    return ApiError(refusal.code, refusal.reason, refusal.message + (hint if kind else ""), {})


def _read(content: bytes, shape: Shape) -> JSON:
    """Read a message. A field that the shape does not name must be zero, so that no sent value is ignored."""
    value: JSON = {}
    for number, part in _fields(content):
        field = shape.get(number)
        if field is None and part not in (0, b""):
            raise unsupported_media_type(_ACCEPTED)
        if field is None or field.kind == "ignored":
            continue
        if field.kind in _MAPS:
            entry = _read(part, {1: Field("key"), 2: _MAPS[field.kind]})
            found = entry.get("value", "")
            value.setdefault(field.name, {})[entry.get("key", "")] = (
                found.get("", "") if isinstance(found, dict) else found
            )
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
