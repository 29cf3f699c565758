"""
The webhook under gunicorn: one process behind TLS, supervised, with a port of its own for probes; and its stop.

gunicorn listens, starts the serving process again should it ever end, and passes signals on. In that process `Front`
looks after the connections. One process, because metrics are kept per process and replicas are the way to more.
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

from runtime.httpserver import Routes, listening, serve_probes
from runtime.malloc import give_back_freed_memory
from webhook.certificates.store import CERTIFICATE, KEY
from webhook.serving.application import MAX_BODY
from webhook.serving.connections import Bounds
from webhook.serving.front import Front
from webhook.serving.health import Pulse
from webhook.serving.tls import SILENCE, ServingContext, names_of

BACKLOG = 1024
_TURN = 0.001
_TO_SPARE = 1.0
"""Seconds before gunicorn ends a worker that has not stopped in time, which loses more than stopping does."""
_NEWER = ("control_socket_disable",)
"""Settings that older releases of gunicorn do not have, and whose effect those have anyway."""


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """Where and how to serve."""

    bind: str
    """`address:port`."""
    certificates: Path
    """Directory with tls.crt and tls.key."""
    threads: int = 16
    grace: int = 20
    """Seconds that running requests get when the process is stopped."""
    silence: float = SILENCE
    """Seconds that a client may take over a handshake, over sending a request, and over taking its answer."""
    client_ca: Path | None = None
    """The authorities of whom clients must have a certificate."""
    client_names: frozenset[str] = frozenset()
    """Names of which it must have one; empty: any."""
    health: tuple[str, int] | None = None
    """Host and port of the probes and the metrics."""


@dataclass(frozen=True, slots=True)
class Service:
    """What is served: the reviews, and what is told on the port for probes."""

    app: Flask
    health: Routes
    pulse: Pulse = field(default_factory=Pulse)
    turned_away: Callable[[str], None] = lambda reason: None
    """Told why a client was given up or refused before its review was read."""
    watch_open: Callable[[Callable[[], float]], None] = lambda count: None
    """Given how to count the open connections."""


class _Logger(Logger):  # type: ignore[misc]  # gunicorn has no types
    """gunicorn's log goes where the process's own goes, in the same form."""

    def setup(self, cfg: Any) -> None:
        self.error_log.propagate = True


class _Worker(Worker):  # type: ignore[misc]  # gunicorn has no types
    """gunicorn's worker as far as signals, the parent and its watchdog go; the rest is `Front`'s."""

    def run(self) -> None:
        front = self.app.front(self.sockets, self.notify)
        # gunicorn has the number of each signal written to a pipe of its own, which would wake nobody here.
        signal.set_wakeup_fd(front.wakes)
        front.run(lambda: bool(self.alive) and self.ppid == os.getppid(), grace=self.cfg.graceful_timeout - _TO_SPARE)


class _Application(BaseApplication):  # type: ignore[misc]  # gunicorn has no types
    def __init__(self, where: ListenAddress, make: Callable[[], Service], probes: socket.socket | None) -> None:
        self._where, self._make, self._probes = where, make, probes
        self._made: Service | None = None
        self._context = ServingContext(where.certificates, client_ca=where.client_ca)
        super().__init__()

    def load_config(self) -> None:
        for key, value in gunicorn_settings(self._where).items():
            if key in self.cfg.settings or key not in _NEWER:
                self.cfg.set(key, value)

    def load(self) -> Flask:
        """Called in the worker, after the fork: threads and sockets made here are the worker's own."""
        give_back_freed_memory()
        # The thread that looks after the connections waits this long for one that computes; by default 5 ms.
        sys.setswitchinterval(_TURN)
        self._made = made = self._make()
        if self._probes is not None:
            serve_probes(made.health, self._probes, name="health")
        # What is there by now stays. Looking for garbage among all of it holds every review up.
        gc.collect()
        gc.freeze()
        return made.app

    def front(self, listeners: Sequence[Any], notify: Callable[[], None]) -> Front:
        """What serves, in the worker. `notify` tells gunicorn that the worker lives."""
        made, where = self._made, self._where
        assert made is not None  # `load` comes first

        def beat() -> None:
            notify()
            made.pulse.beat()

        front = Front(
            listeners,
            made.app,
            context=self._context.current,
            threads=where.threads,
            bounds=Bounds(silence=where.silence, max_body=MAX_BODY),
            admitted=lambda client: not where.client_names or bool(names_of(client.getpeercert()) & where.client_names),
            turned_away=made.turned_away,
            beat=beat,
        )
        made.watch_open(lambda: float(front.open))
        return front


def gunicorn_settings(where: ListenAddress) -> dict[str, Any]:
    """The settings by gunicorn's own names. The files' existence is checked by gunicorn as it reads them."""
    return {
        "bind": where.bind,
        "certfile": str(where.certificates / CERTIFICATE),
        "keyfile": str(where.certificates / KEY),
        "worker_class": _Worker,
        "workers": 1,
        "backlog": BACKLOG,
        "graceful_timeout": where.grace,
        "timeout": 60,
        "proc_name": "gpufraction-webhook",
        "worker_tmp_dir": "/dev/shm" if Path("/dev/shm").is_dir() else None,
        "control_socket_disable": True,
        "logger_class": _Logger,
        "accesslog": None,
    }


def serve(where: ListenAddress, make: Callable[[], Service]) -> None:
    """
    Serve what `make` makes until SIGTERM or SIGINT, then let running requests finish.

    Raises OSError where the port for probes cannot be listened on.
    """
    probes = listening(where.health) if where.health is not None else None
    _Application(where, make, probes).run()
