"""
The two sockets of the kubelet plugin, over gRPC.

    <kubelet>/plugins/gpufraction.io/dra.sock            the plugin itself, and the health of its devices
    <kubelet>/plugins_registry/gpufraction.io-reg.sock   kubelet finds it, and requests our identity

Kubelet watches the second folder: it connects when the socket appears, and reports whether it registered the plugin.
After a restart of kubelet it looks through the folder again.

Must not: decide what a claim gives (`nodeagent.dra.plugin` does).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from contract import names
from nodeagent.dra import health, wire
from nodeagent.dra.health import HealthWatch
from nodeagent.dra.plugin import ClaimPlugin

log = logging.getLogger(__name__)
_THREADS = 8
"""Calls at the same time; kubelet makes one for each pod that starts."""
_STREAMS = 2
"""
Concurrent streams of health, each with a thread of its own: kubelet has one, and after its restart one that has not
ended yet. An unread stream holds only its own thread.
"""
_GRACE = 2.0


@dataclass(frozen=True, slots=True)
class PluginPaths:
    """The files of the plugin below the kubelet's folder, which has the same path on the host and here."""

    kubelet: Path

    @property
    def folder(self) -> Path:
        return self.kubelet / "plugins" / names.GROUP

    @property
    def endpoint(self) -> Path:
        return self.folder / "dra.sock"

    @property
    def registration(self) -> Path:
        return self.kubelet / "plugins_registry" / f"{names.GROUP}-reg.sock"

    @property
    def checkpoint(self) -> Path:
        return self.folder / "prepared.json"


class PluginServer:
    """
    Serves the plugin until stopped. `watch`: the health of its devices. `changed` is called when kubelet has registered
    the plugin, or refused it.
    """

    def __init__(
        self,
        plugin: ClaimPlugin,
        paths: PluginPaths,
        watch: HealthWatch,
        *,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._plugin = plugin
        self._paths = paths
        self._watch = watch
        self._changed = changed
        self._streams = threading.BoundedSemaphore(_STREAMS)
        self._registered: bool | None = None
        self._why = ""

    @property
    def registered(self) -> bool | None:
        """Whether kubelet registered the plugin; None before that."""
        return self._registered

    @property
    def why(self) -> str:
        """Why kubelet refused it; empty if it did not."""
        return self._why

    def run(self, stop: threading.Event) -> None:
        """Serve until stopped. Raises OSError or RuntimeError where a socket cannot be made."""
        self._paths.folder.mkdir(parents=True, exist_ok=True)
        servers: list[grpc.Server] = []
        try:
            servers.append(self._started(self._paths.endpoint, self._services(), self._health(stop)))
            # Last, since kubelet calls the plugin as soon as it sees this socket.
            servers.append(self._started(self._paths.registration, self._registration()))
            log.info("kubelet plugin listens", extra={"socket": str(self._paths.endpoint)})
            stop.wait()
        finally:
            self._watch.wake()
            for server in reversed(servers):
                server.stop(_GRACE).wait()
            self._registered = None

    def _started(self, path: Path, *handlers: Any) -> grpc.Server:
        path.unlink(missing_ok=True)
        server = grpc.server(ThreadPoolExecutor(_THREADS + _STREAMS, thread_name_prefix="dra"))
        server.add_generic_rpc_handlers(handlers)
        server.add_insecure_port(f"unix:{path}")
        server.start()
        path.chmod(0o600)
        return server

    def _services(self) -> Any:
        return _handlers(
            wire.SERVICE,
            NodePrepareResources=lambda message: wire.prepared(self._plugin.prepare(wire.claims(message))),
            NodeUnprepareResources=lambda message: wire.unprepared(self._plugin.unprepare(wire.claims(message))),
        )

    def _health(self, stop: threading.Event) -> Any:
        def watched(message: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
            if not self._streams.acquire(blocking=False):
                context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{_STREAMS} streams of health are open already")
            if not context.add_callback(self._streams.release):
                self._streams.release()
                return
            context.add_callback(self._watch.wake)
            updates = self._watch.updates(self._plugin.devices, ended=lambda: stop.is_set() or not context.is_active())
            for devices in updates:
                yield wire.device_healths(devices, at=int(time.time()), timeout=health.TIMEOUT)

        return grpc.method_handlers_generic_handler(
            wire.HEALTH, {"NodeWatchResources": grpc.unary_stream_rpc_method_handler(watched)}
        )

    def _registration(self) -> Any:
        return _handlers(
            wire.REGISTRATION,
            GetInfo=lambda message: wire.plugin_info(names.GROUP, str(self._paths.endpoint)),
            NotifyRegistrationStatus=self._notified,
        )

    def _notified(self, message: bytes) -> bytes:
        self._registered, self._why = wire.registration(message)
        log.info("kubelet answered", extra={"registered": self._registered, "reason": self._why})
        self._changed()
        return b""


def _handlers(service: str, **methods: Callable[[bytes], bytes]) -> Any:
    """The calls of one service, whose messages stay bytes."""
    return grpc.method_handlers_generic_handler(
        service, {name: grpc.unary_unary_rpc_method_handler(_guarded(call)) for name, call in methods.items()}
    )


def _guarded(call: Callable[[bytes], bytes]) -> Callable[[bytes, grpc.ServicerContext], bytes]:
    def handler(message: bytes, context: grpc.ServicerContext) -> bytes:
        try:
            return call(message)
        except wire.BadMessage as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            raise AssertionError("abort raises") from error

    return handler
