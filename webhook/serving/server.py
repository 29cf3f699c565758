"""
The webhook under gunicorn: one supervised process behind TLS, and a port of its own for probes.

gunicorn listens, restarts the serving process if it ends, and forwards signals. In that process `Front` serves the
connections. There is one process, because metrics are counted per process; more capacity comes from replicas.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flask import Flask
from gunicorn.app.base import BaseApplication
from gunicorn.glogging import Logger
from gunicorn.workers.base import Worker

from runtime.httpserver import ANYWHERE, Routes, has_ipv6, listening, serve_probes
from runtime.malloc import give_back_freed_memory
from runtime.scraping import Scraping
from webhook.certificates.store import CERTIFICATE, KEY
from webhook.serving.application import MAX_BODY
from webhook.serving.connections import Bounds
from webhook.serving.front import Front
from webhook.serving.health import Pulse
from webhook.serving.tls import ServingContext, names_of
from webhook.settings import ServeSettings

BACKLOG = 1024
THREADS = 16
"""Reviews that are answered at the same time. They share one interpreter, so more of them would only wait in it."""
_TURN = 0.001
_GRACE = 20
"""Seconds that running reviews have at a stop; the pod's grace period is longer by the preStop pause."""
_TO_SPARE = 1.0
"""Seconds by which our stop ends before gunicorn kills the worker, which would lose more requests."""
_NEWER = ("control_socket_disable",)
"""Settings that older releases of gunicorn do not have, and do not need."""


@dataclass(frozen=True, slots=True)
class Service:
    """What is served: the reviews, and the routes of the port for probes."""

    app: Flask
    health: Routes
    pulse: Pulse = field(default_factory=Pulse)
    turned_away: Callable[[str], None] = lambda reason: None
    """Called with the reason why a client was given up or refused before its review was read."""
    watch_open: Callable[[Callable[[], float]], None] = lambda count: None
    """Called with a function that counts the open connections."""
    scraping: Scraping = field(default_factory=Scraping)
    """Who may read the metrics."""
    stop: Callable[[], None] = lambda: None
    """Ends the threads that it has started; in production they end with the process."""


class _Logger(Logger):  # type: ignore[misc]  # gunicorn has no types
    """Sends gunicorn's log to the process's own log."""

    def setup(self, cfg: Any) -> None:
        self.error_log.propagate = True


class _Worker(Worker):  # type: ignore[misc]  # gunicorn has no types
    """gunicorn's worker for signals, the check of the parent, and the watchdog; `Front` does the rest."""

    def run(self) -> None:
        front = self.app.front(self.sockets, self.notify)
        # gunicorn has signals written to a pipe of its own, on which `Front` does not wait.
        signal.set_wakeup_fd(front.wakes)
        front.run(lambda: bool(self.alive) and self.ppid == os.getppid(), grace=self.cfg.graceful_timeout - _TO_SPARE)


class _Application(BaseApplication):  # type: ignore[misc]  # gunicorn has no types
    def __init__(self, settings: ServeSettings, make: Callable[[], Service], probes: socket.socket | None) -> None:
        self._settings = settings
        self._make = make
        self._probes = probes
        self._made: Service | None = None
        self._context = ServingContext(settings.certificates, client_ca=settings.client_ca)
        super().__init__()

    def load_config(self) -> None:
        for key, value in gunicorn_settings(self._settings).items():
            if key in self.cfg.settings or key not in _NEWER:
                self.cfg.set(key, value)

    def load(self) -> Flask:
        """Called in the worker, after the fork: threads and sockets made here are the worker's own."""
        give_back_freed_memory()
        # The loop over the connections waits at most this long for a thread that computes; by default 5 ms.
        sys.setswitchinterval(_TURN)
        self._made = made = self._make()
        if self._probes is not None:
            scrapes = made.scraping
            serve_probes(made.health, self._probes, name="health", guard=scrapes.guard, tls=scrapes.tls)
        # The objects made so far stay forever; searching them for garbage would delay every review.
        gc.collect()
        gc.freeze()
        return made.app

    def front(self, listeners: Sequence[Any], notify: Callable[[], None]) -> Front:
        """The server, in the worker. `notify` tells gunicorn that the worker is alive."""
        made, settings = self._made, self._settings
        assert made is not None  # `load` comes first
        names = frozenset(settings.client_names)

        def beat() -> None:
            notify()
            made.pulse.beat()

        front = Front(
            listeners,
            made.app,
            context=self._context.current,
            threads=THREADS,
            bounds=Bounds(max_body=MAX_BODY),
            admitted=lambda client: not names or bool(names_of(client.getpeercert()) & names),
            turned_away=made.turned_away,
            beat=beat,
        )
        made.watch_open(lambda: float(front.open))
        return front


def gunicorn_settings(settings: ServeSettings) -> dict[str, Any]:
    """The settings by gunicorn's own names. gunicorn itself checks that the files exist."""
    return {
        "bind": _bind(settings.bind),
        "certfile": str(settings.certificates / CERTIFICATE),
        "keyfile": str(settings.certificates / KEY),
        "worker_class": _Worker,
        "workers": 1,
        "backlog": BACKLOG,
        "graceful_timeout": _GRACE,
        "timeout": 60,
        "proc_name": "gpufraction-webhook",
        "worker_tmp_dir": "/dev/shm" if Path("/dev/shm").is_dir() else None,
        "control_socket_disable": True,
        "logger_class": _Logger,
        "accesslog": None,
    }


def _bind(text: str) -> str:
    """The address for gunicorn. `[::]` is every address, of IPv4 alone on a machine without IPv6."""
    host, _, port = text.rpartition(":")
    return text if host != f"[{ANYWHERE}]" or has_ipv6() else f"0.0.0.0:{port}"


def serve(settings: ServeSettings, make: Callable[[], Service]) -> None:
    """
    Serve what `make` makes until SIGTERM or SIGINT, then let running requests finish.

    Raises OSError if the port for probes cannot be listened on.
    """
    address = settings.health_address()
    _Application(settings, make, listening(address) if address is not None else None).run()
