"""
The life of a process: one stop signal, threads that do not die in silence, and honest health.

A program makes one `Process`, starts its threads through it, and ends with `sys.exit(process.wait())`. Half a
program that still answers its probes is worse than a restart. So a thread that ends with an exception stops
the whole process with exit code 1; or, where it is supervised, it is started again, and where it goes on
failing the probe `/healthz` says so (`runtime.supervision`).

        running --- SIGTERM, SIGINT, stop() --------> stopping, exit 0
           +------- a thread raised, fail() --------> stopping, exit 1
        stopping -- a second signal ----------------> killed by it

Must not: know what the program does, or read the environment.
"""

from __future__ import annotations

import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterable
from typing import Any

from runtime.httpserver import Reply, Routes, json_reply
from runtime.metrics import Metrics
from runtime.supervision import Workers

log = logging.getLogger(__name__)


class Process:
    """What a program's threads share: whether to go on, and what to do when one of them cannot."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.workers = Workers()
        """Those that are started again; `workers.broken` belongs into the program's `/healthz`."""
        self._failed: str | None = None
        self._lock = threading.Lock()
        self._before: dict[int, Any] = {}
        self._told: tuple[socket.socket, socket.socket] | None = None
        """What a signal writes its number to, and where that is read."""

    @property
    def failed(self) -> str | None:
        """Why this process is ending with an error, None where it is not."""
        return self._failed

    def handle_signals(self, signals: Iterable[int] = (signal.SIGTERM, signal.SIGINT)) -> None:
        """Stop on these signals; a second one kills. Only from the main thread."""
        # A handler runs when the main thread next runs Python, which may be waiting for just this. And setting an Event
        # there can deadlock, since that thread may hold its lock. So the number of a signal is written to a socket at
        # once, whatever the main thread does, and a thread of our own passes the word on.
        reading, writing = socket.socketpair()
        writing.setblocking(False)
        self._told = (reading, writing)
        signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
        for number in signals:
            self._before[number] = signal.signal(number, _die_of_the_next)
        threading.Thread(target=self._relay, args=(reading,), name="signals", daemon=True).start()

    def restore_signals(self) -> None:
        """Put back what `handle_signals` replaced."""
        if self._told is None:
            return
        signal.set_wakeup_fd(-1)
        while self._before:
            number, before = self._before.popitem()
            signal.signal(number, before)
        _, writing = self._told
        self._told = None
        writing.close()

    def spawn(self, name: str, target: Callable[[], None]) -> threading.Thread:
        """Run `target` on a daemon thread of that name; what it raises ends the process."""

        def run() -> None:
            try:
                target()
            except Exception as error:
                log.critical("thread died", exc_info=True, extra={"thread_name": name})
                self.fail(f"thread {name}: {type(error).__name__}")

        thread = threading.Thread(target=run, name=name, daemon=True)
        thread.start()
        return thread

    def supervise(self, name: str, target: Callable[[], None]) -> threading.Thread:
        """
        Run `target`, which returns when `stop` is set, on a daemon thread of that name.

        It is called again after a pause when it raises, or returns before. The program's `/healthz` must have
        `workers.broken`, or nobody would learn of one that fails for good.
        """
        return self.spawn(name, lambda: self.workers.keep(name, target, self.stop))

    def watch_threads(self) -> None:
        """Let an exception that ends any other thread of this process (an informer's, say) end it too."""
        threading.excepthook = self._on_thread_death

    def fail(self, reason: str) -> None:
        """End the process with exit code 1. The first reason is kept."""
        with self._lock:
            self._failed = self._failed or reason
        self.stop.set()

    def wait(self) -> int:
        """Block until the process is to stop; the exit code."""
        self.stop.wait()
        if self._failed is not None:
            log.critical("stopping", extra={"reason": self._failed})
            return 1
        log.info("stopping")
        return 0

    def _relay(self, reading: socket.socket) -> None:
        with reading:
            for number in reading.recv(1):
                log.info("signal received", extra={"signal": signal.Signals(number).name})
                self.stop.set()

    def _on_thread_death(self, args: threading.ExceptHookArgs) -> None:
        name = args.thread.name if args.thread is not None else "?"
        if args.exc_value is None or args.exc_type is SystemExit:
            return
        details = (args.exc_type, args.exc_value, args.exc_traceback)
        log.critical("thread died", exc_info=details, extra={"thread_name": name})
        self.fail(f"thread {name}: {args.exc_type.__name__}")


def _die_of_the_next(number: int, frame: Any) -> None:
    signal.signal(number, signal.SIG_DFL)


Check = Callable[[], str | None]


class Health:
    """Named conditions; each says why it does not hold, or None where it does."""

    def __init__(self, **checks: Check) -> None:
        self._checks = checks

    def reasons(self) -> dict[str, str]:
        """The conditions that do not hold, with why. A check that raises does not hold."""
        found: dict[str, str] = {}
        for name, check in self._checks.items():
            try:
                reason = check()
            except Exception as error:
                log.exception("health check failed", extra={"check": name})
                reason = f"check failed: {type(error).__name__}"
            if reason is not None:
                found[name] = reason
        return found


def health_routes(metrics: Metrics, *, ready: Health, alive: Health | None = None) -> Routes:
    """`/healthz` (restart me?), `/readyz` (send me work?) and `/metrics`.

    Both probes answer 200, or 503 with the reasons. Liveness is for what a restart cures, and nothing
    else: an API server that is away is not.
    """
    living = alive or Health()

    def probe(health: Health) -> Reply:
        reasons = health.reasons()
        return json_reply({"ok": not reasons, "reasons": reasons}, 503 if reasons else 200)

    return {
        ("GET", "/healthz"): lambda request: probe(living),
        ("GET", "/readyz"): lambda request: probe(ready),
        ("GET", "/metrics"): lambda request: Reply(200, metrics.render(), Metrics.content_type),
    }
