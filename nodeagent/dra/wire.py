"""
The protobuf messages of kubelet's plugin registration (v1), of its DRA plugins (v1) and of the health of their devices
(v1alpha1), written by hand.

They are two dozen fields in all, of text, numbers and nested messages. So the wire format itself is read and written
here (protobuf.dev, "Encoding"), and neither generated code nor protobuf's runtime is needed. Unknown fields are
skipped, as the format requires.

Pure. Reading any bytes raises `BadMessage` and no other exception.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum

from contract.encoding.resourceclaims import PreparedDevice

REGISTRATION = "pluginregistration.Registration"
SERVICE = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
HEALTH = "v1alpha1.DRAResourceHealth"
VERSIONS = ("v1.DRAPlugin", HEALTH)
"""
The services that we report to kubelet: kubelets from 1.34 on know the first. They call the second, if at all, without
looking for it here.
"""
_TYPE = "DRAPlugin"
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_MOST_BITS = 64
_LONGEST_MESSAGE = 1024
"""Bytes. Kubelet cuts a longer one, also within a character."""


class BadMessage(ValueError):
    """The bytes are no message of the expected form."""


@dataclass(frozen=True, slots=True)
class ClaimRef:
    """A ResourceClaim as kubelet names it."""

    namespace: str
    uid: str
    name: str


Answer = tuple[PreparedDevice, ...] | str
"""The devices of one claim; or, as text, why there are none."""


class HealthStatus(IntEnum):
    """The health of a device, with the numbers of the protocol."""

    UNKNOWN = 0
    HEALTHY = 1
    UNHEALTHY = 2


@dataclass(frozen=True, slots=True)
class DeviceHealth:
    """A device of a pool. `message`: why it is not healthy; empty if it is."""

    pool: str
    device: str
    health: HealthStatus
    message: str = ""


# -- our answers --------------------------------------------------------------------------------------------------


def plugin_info(name: str, endpoint: str) -> bytes:
    """`PluginInfo`: our identity, and the socket on which the plugin itself listens."""
    fields = [_text(1, _TYPE), _text(2, name), _text(3, endpoint), *(_text(4, version) for version in VERSIONS)]
    return b"".join(fields)


def prepared(answers: Mapping[str, Answer]) -> bytes:
    """`NodePrepareResourcesResponse`: the answer for each claim, by its uid."""
    return b"".join(_entry(uid, _answer(answer)) for uid, answer in answers.items())


def unprepared(errors: Mapping[str, str]) -> bytes:
    """`NodeUnprepareResourcesResponse`: for each claim, by its uid, why it failed; empty where it did not."""
    return b"".join(_entry(uid, _text(1, error) if error else b"") for uid, error in errors.items())


def device_healths(devices: Iterable[DeviceHealth], *, at: int, timeout: int) -> bytes:
    """`NodeWatchResourcesResponse`. `at`: seconds since the epoch; `timeout`: seconds for which it is true."""
    return b"".join(_bytes(1, _health(device, at, timeout)) for device in devices)


def _health(device: DeviceHealth, at: int, timeout: int) -> bytes:
    message = device.message.encode(errors="replace")[:_LONGEST_MESSAGE].decode(errors="ignore")
    fields = [_bytes(1, _text(1, device.pool) + _text(2, device.device))]
    # A field that is 0 or empty is left out, as the format requires.
    fields += [_number(2, device.health), _number(3, at), _number(4, timeout), _text(5, message) if message else b""]
    return b"".join(fields)


def _answer(answer: Answer) -> bytes:
    if isinstance(answer, str):
        return _text(2, answer)
    return b"".join(_bytes(1, _device(device)) for device in answer)


def _device(device: PreparedDevice) -> bytes:
    fields = [_text(1, device.request), _text(2, device.pool), _text(3, device.device)]
    return b"".join([*fields, *(_text(4, name) for name in device.cdi)])


def _entry(uid: str, value: bytes) -> bytes:
    """An entry of the map in field 1."""
    return _bytes(1, _text(1, uid) + _bytes(2, value))


# -- kubelet's requests -------------------------------------------------------------------------------------------


def claims(message: bytes) -> tuple[ClaimRef, ...]:
    """The claims of a `NodePrepareResourcesRequest` or `NodeUnprepareResourcesRequest`."""
    return tuple(ClaimRef(*(_one_text(_fields(each), number) for number in (1, 2, 3))) for each in _all(message, 1))


def registration(message: bytes) -> tuple[bool, str]:
    """A `RegistrationStatus`: whether kubelet registered the plugin, and why not."""
    found = _fields(message)
    return bool(next((value for number, value in found if number == 1 and isinstance(value, int)), 0)), _one_text(
        found, 2
    )


# -- the wire format ----------------------------------------------------------------------------------------------

Fields = list[tuple[int, int | bytes]]


def _all(message: bytes, wanted: int) -> Iterable[bytes]:
    return [value for number, value in _fields(message) if number == wanted and isinstance(value, bytes)]


def _one_text(fields: Fields, wanted: int) -> str:
    """The last one counts, as the format requires."""
    found = [value for number, value in fields if number == wanted and isinstance(value, bytes)]
    try:
        return found[-1].decode() if found else ""
    except UnicodeDecodeError as error:
        raise BadMessage(f"field {wanted} is not text") from error


def _fields(message: bytes) -> Fields:
    found: Fields = []
    at = 0
    while at < len(message):
        key, at = _read_varint(message, at)
        number, kind = key >> 3, key & 7
        value: int | bytes
        if kind == _VARINT:
            value, at = _read_varint(message, at)
        elif kind in (_LENGTH, _FIXED64, _FIXED32):
            size, at = _read_varint(message, at) if kind == _LENGTH else (8 if kind == _FIXED64 else 4, at)
            value, at = message[at : at + size], at + size
        else:
            raise BadMessage(f"field {number} has the unknown wire type {kind}")
        if at > len(message) or not number:
            raise BadMessage("the message is cut off")
        found.append((number, value))
    return found


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, _MOST_BITS + 6, 7):
        if at >= len(message):
            break
        byte = message[at]
        value, at = value | (byte & 0x7F) << shift, at + 1
        if byte < 0x80:
            return value, at
    raise BadMessage("a number is cut off or too long")


def _varint(value: int) -> bytes:
    written = bytearray()
    while value >= 0x80:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)


def _number(number: int, value: int) -> bytes:
    return _varint(number << 3 | _VARINT) + _varint(value) if value else b""


def _bytes(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | _LENGTH) + _varint(len(value)) + value


def _text(number: int, value: str) -> bytes:
    return _bytes(number, value.encode())
