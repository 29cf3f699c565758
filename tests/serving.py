"""Replaces `serve_http` of `runtime.httpserver` without a socket: routes by name, and a client for them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from runtime import unixhttp
from runtime.httpserver import Address, Reply, Request, Routes, Server, ServerLimits, TlsOf, answered


@dataclass(frozen=True)
class Opened:
    """What is served, until it is closed."""

    routes: Routes
    address: Address
    closings: list[float]
    """The grace period passed to each call of `close`."""

    def close(self, grace: float = 5.0) -> None:
        self.closings.append(grace)

    def get(self, path: str) -> Reply:
        return answered(self.routes, Request("GET", path, "", {}, b""))


@dataclass(frozen=True)
class InProcess:
    """A `Serve` that records what it is asked to serve."""

    opened: dict[str, Opened] = field(default_factory=dict)

    def __call__(
        self,
        routes: Routes,
        address: Address,
        *,
        name: str,
        mode: int = 0o600,
        limits: ServerLimits | None = None,
        tls: TlsOf | None = None,
    ) -> Server:
        self.opened[name] = Opened(routes, address, [])
        return self.opened[name]


@dataclass(frozen=True)
class RoutesClient:
    """A client like `runtime.unixhttp.UnixClient`, for routes in this process."""

    routes: Routes

    def post(self, target: str, document: Any, *, timeout: float) -> unixhttp.Answer:
        return self._ask("POST", target, json.dumps(document).encode())

    def get(self, target: str, *, timeout: float) -> unixhttp.Answer:
        return self._ask("GET", target, b"")

    def _ask(self, method: str, target: str, body: bytes) -> unixhttp.Answer:
        reply = answered(self.routes, Request(method, target, "", {}, body))
        return unixhttp.Answer(reply.status, reply.body)
