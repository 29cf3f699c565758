"""
The kubelet's side of a Dynamic Resource Allocation plugin: registers it, and asks it for the devices of claims.

This stand-in for kubelet uses the sockets and the protocol of a real one: `pluginregistration.Registration`, then
`NodePrepareResources` and `NodeUnprepareResources` of `dra.v1`. gRPC is needed only if such a plugin runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

_REGISTRATION = "pluginregistration.Registration"
_SERVICE = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
_VERSION = "v1.DRAPlugin"
_REGISTERED = b"\x08\x01"
_LENGTH = 2

Devices = Mapping[str, tuple[str, ...]]
"""Names of CDI devices, by the claim's request."""


class PluginError(Exception):
    """The plugin does not answer, or refuses; the message says why."""


class KubeletPlugins:
    """The plugins of one driver on several nodes, each below its kubelet's folder."""

    def __init__(self, driver: str, folders: Mapping[str, Path]) -> None:
        self._driver = driver
        self._folders = dict(folders)
        for folder in self._folders.values():
            (folder / "plugins_registry").mkdir(parents=True, exist_ok=True)
        self._registered: dict[str, int] = {}
        """The inode of the socket by which a node's plugin was registered; a plugin that restarts has another one."""

    def prepare(self, node: str, namespace: str, uid: str, name: str) -> Devices | str:
        """The devices of one claim; or, as text, why there are none."""
        try:
            answer = self._ask(node, "NodePrepareResources", (namespace, uid, name))
        except PluginError as error:
            return str(error)
        refused = one_text(answer, 2)
        if refused:
            return f"NodePrepareResources failed for ResourceClaim {name}: {refused}"
        found: dict[str, tuple[str, ...]] = {}
        for device in values(answer, 1):
            named = tuple(each.decode() for each in values(device, 4))
            for request in values(device, 1):
                found[request.decode()] = (*found.get(request.decode(), ()), *named)
        return found

    def unprepare(self, node: str, namespace: str, uid: str, name: str) -> str:
        """Why the claim could not be unprepared; empty if it was."""
        try:
            return one_text(self._ask(node, "NodeUnprepareResources", (namespace, uid, name)), 1)
        except PluginError as error:
            return str(error)

    def register(self, node: str) -> Path:
        """Register the node's plugin if it is new, as kubelet does. Returns its socket. Raises `PluginError`."""
        socket = self._folders[node] / "plugins_registry" / f"{self._driver}-reg.sock"
        try:
            inode = socket.stat().st_ino
        except OSError as error:
            raise PluginError(f"DRA driver {self._driver} is not registered") from error
        info = call(socket, _REGISTRATION, "GetInfo", b"")
        if (one_text(info, 1), one_text(info, 2)) != ("DRAPlugin", self._driver):
            raise PluginError(f"{socket} is the socket of another plugin")
        if _VERSION not in [each.decode() for each in values(info, 4)]:
            raise PluginError(f"DRA driver {self._driver} does not support {_VERSION}")
        if self._registered.get(node) != inode:
            call(socket, _REGISTRATION, "NotifyRegistrationStatus", _REGISTERED)
            self._registered[node] = inode
        return Path(one_text(info, 3))

    def _ask(self, node: str, method: str, claim: tuple[str, str, str]) -> bytes:
        """The plugin's response about one claim, which is given by namespace, uid and name."""
        reference = b"".join(field(number, text) for number, text in enumerate(claim, 1))
        answer = call(self.register(node), _SERVICE, method, field(1, reference))
        for entry in values(answer, 1):
            if one_text(entry, 1) == claim[1]:
                return next(values(entry, 2), b"")
        raise PluginError(f"{method} skipped 1 ResourceClaims")


def call(socket: Path, service: str, method: str, message: bytes, *, timeout: float = 10.0) -> bytes:
    """One call of a plugin. Raises `PluginError`."""
    import grpc

    try:
        with grpc.insecure_channel(f"unix:{socket}") as channel:
            answer: bytes = channel.unary_unary(f"/{service}/{method}")(message, timeout=timeout)
            return answer
    except grpc.RpcError as error:
        raise PluginError(f"{method} of {socket.name}: {error.code().name}: {error.details()}") from error


# -- protobuf's wire format, as far as these messages use it --------------------------------------------------------


def field(number: int, value: str | bytes) -> bytes:
    """A field of text or of a nested message."""
    data = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | _LENGTH) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    low, high = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + _varint(high) if high else bytes([low])


def values(message: bytes, wanted: int) -> Iterator[bytes]:
    """The fields of that number that are text or nested messages."""
    at = 0
    while at < len(message):
        key, at = _number(message, at)
        if key & 7 != _LENGTH:
            _, at = _number(message, at)
            continue
        size, at = _number(message, at)
        if key >> 3 == wanted:
            yield message[at : at + size]
        at += size


def _number(message: bytes, at: int) -> tuple[int, int]:
    value, shift = 0, 0
    while message[at] >= 0x80:
        value, shift, at = value | (message[at] & 0x7F) << shift, shift + 7, at + 1
    return value | message[at] << shift, at + 1


def one_text(message: bytes, wanted: int) -> str:
    """The first field of that number, as text; empty where there is none."""
    return next(values(message, wanted), b"").decode()
