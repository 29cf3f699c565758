"""The kubelet's side of the plugin's two sockets, for tests."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc

from nodeagent.dra import wire
from nodeagent.dra.wire import ClaimRef


def call(socket: Path, service: str, method: str, message: bytes = b"", *, timeout: float = 10.0) -> bytes:
    """One call. Raises `grpc.RpcError`."""
    with grpc.insecure_channel(f"unix:{socket}") as channel:
        answer: bytes = channel.unary_unary(f"/{service}/{method}")(message, timeout=timeout, wait_for_ready=True)
        return answer


def claims_message(claims: Sequence[ClaimRef]) -> bytes:
    return b"".join(
        _field(1, b"".join(_field(n, t.encode()) for n, t in enumerate((c.namespace, c.uid, c.name), 1)))
        for c in claims
    )


def _field(number: int, value: bytes) -> bytes:
    assert len(value) < 128
    return bytes([number << 3 | 2, len(value)]) + value


def prepare(socket: Path, *claims: ClaimRef) -> bytes:
    return call(socket, wire.SERVICE, "NodePrepareResources", claims_message(claims))


def unprepare(socket: Path, *claims: ClaimRef) -> bytes:
    return call(socket, wire.SERVICE, "NodeUnprepareResources", claims_message(claims))


@contextlib.contextmanager
def watching(socket: Path) -> Iterator[Any]:
    """The stream of the devices' health, as kubelet opens it. Yields its messages in turn."""
    with grpc.insecure_channel(f"unix:{socket}") as channel:
        stream = channel.unary_stream(f"/{wire.HEALTH}/NodeWatchResources")(b"", timeout=30, wait_for_ready=True)
        try:
            yield stream
        finally:
            stream.cancel()
