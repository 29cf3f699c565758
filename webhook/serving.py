"""
The webhook under gunicorn: one process of threads behind TLS, and its stop.

One worker process, because metrics are kept per process and replicas are the way to more; many threads, because a
review waits for the allocator most of its time. Connections are kept alive longer than the API server keeps them, so
that it is never our end that closes one while a review is on its way.
"""

from __future__ import annotations

import gc
import socket
import ssl
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flask import Flask
from gunicorn.app.base import BaseApplication
from gunicorn.glogging import Logger
from gunicorn.workers import gthread
from gunicorn.workers.gthread import ThreadWorker

from runtime.httpserver import Routes, listening, serve_http
from webhook import health
from webhook.certfiles import CERTIFICATE, KEY
from webhook.tls import SILENCE, ServingContext

KEEPALIVE = 120
"""Seconds; the API server's HTTP client gives an idle connection up after 90."""
CONNECTIONS = 1000
BACKLOG = 1024
_NEWER = ("control_socket_disable",)
"""Settings that older releases of gunicorn do not have, and whose effect those have anyway."""


@dataclass(frozen=True, slots=True)
class Listening:
    """Where and how to serve."""

    bind: str
    """`address:port`."""
    certificates: Path
    """Directory with tls.crt and tls.key."""
    threads: int = 16
    grace: int = 20
    """Seconds that running requests get when the process is stopped."""
    silence: float = SILENCE
    """Seconds that a client may take over a handshake or over sending a request."""
    health: tuple[str, int] | None = None
    """Host and port of the probes and the metrics."""


@dataclass(frozen=True, slots=True)
class Service:
    """What is served: the reviews, and what is told on the port for probes."""

    app: Flask
    health: Routes


class _Logger(Logger):  # type: ignore[misc]  # gunicorn has no types
    """gunicorn's log goes where the process's own goes, in the same form."""

    def setup(self, cfg: Any) -> None:
        self.error_log.propagate = True


class _Worker(ThreadWorker):  # type: ignore[misc]  # gunicorn has no types
    """
    gunicorn's worker of threads, which gives no thread to a client that has not said anything yet.

    Its own waits for the first byte on a thread, so that as many silent clients as there are threads stop the rest.
    """

    def enqueue_req(self, conn: Any) -> None:
        """A connection is new, or something came on it."""
        if conn.initialized or conn.data_ready:
            super().enqueue_req(conn)
            return
        nothing_yet: Future[Any] = Future()
        nothing_yet.set_result(gthread._DEFER)
        self.finish_request(conn, nothing_yet)
        conn.timeout = time.monotonic() + SILENCE


class _Application(BaseApplication):  # type: ignore[misc]  # gunicorn has no types
    def __init__(self, settings: dict[str, Any], make: Callable[[], Service], probes: socket.socket | None) -> None:
        self._settings, self._make, self._probes = settings, make, probes
        super().__init__()

    def load_config(self) -> None:
        for key, value in self._settings.items():
            if key in self.cfg.settings or key not in _NEWER:
                self.cfg.set(key, value)

    def load(self) -> Flask:
        """Called in the worker, after the fork: threads and sockets made here are the worker's own."""
        made = self._make()
        if self._probes is not None:
            serve_http(made.health, self._probes, name="health", limits=health.LIMITS)
        # What is there by now stays. Looking for garbage among all of it holds every review up.
        gc.collect()
        gc.freeze()
        return made.app


def gunicorn_settings(where: Listening) -> dict[str, Any]:
    """The settings by gunicorn's own names. The files' existence is checked by gunicorn as it reads them."""
    context = ServingContext(where.certificates, silence=where.silence)

    def current(config: object, default: Callable[[], ssl.SSLContext]) -> ssl.SSLContext:
        return context.current()

    return {
        "bind": where.bind,
        "certfile": str(where.certificates / CERTIFICATE),
        "keyfile": str(where.certificates / KEY),
        "ssl_context": current,
        # An older gunicorn does so by itself.
        "worker_class": _Worker if hasattr(gthread, "_DEFER") else ThreadWorker,
        "workers": 1,
        "threads": where.threads,
        "worker_connections": CONNECTIONS,
        "backlog": BACKLOG,
        "keepalive": KEEPALIVE,
        "graceful_timeout": where.grace,
        "timeout": 60,
        "proc_name": "gpufraction-webhook",
        "worker_tmp_dir": "/dev/shm" if Path("/dev/shm").is_dir() else None,
        "control_socket_disable": True,
        "logger_class": _Logger,
        "accesslog": None,
    }


def serve(where: Listening, make: Callable[[], Service]) -> None:
    """
    Serve what `make` makes until SIGTERM or SIGINT, then let running requests finish.

    Raises OSError where the port for probes cannot be listened on.
    """
    probes = listening(where.health) if where.health is not None else None
    _Application(gunicorn_settings(where), make, probes).run()
