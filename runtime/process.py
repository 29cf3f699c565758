"""
The life of a process: its stop signal, its threads, and its health.

A program makes one `Process`, starts its threads through it, and ends with `sys.exit(process.wait())`. Half a program
that still answers its probes is worse than a restart. So an exception in a thread stops the whole process with exit
code 1. A supervised thread is started again instead, and `/healthz` fails while it keeps failing
(`runtime.supervision`).

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
    """The shared state of a program's threads: the stop event, and the reaction to failures."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.workers = Workers()
        """The supervised threads; the program's `/healthz` must check `workers.broken`."""
        self._failed: str | None = None
        self._lock = threading.Lock()

    @property
    def failed(self) -> str | None:
        """Why this process ends with an error; None if it does not."""
        return self._failed

    def handle_signals(self, signals: Iterable[int] = (signal.SIGTERM, signal.SIGINT)) -> None:
        """Stop on these signals; a second one kills. Only from the main thread."""
        # A handler runs only when the main thread next runs Python, and that thread may wait for this very event.
        # Setting an Event in a handler can deadlock, since the main thread may hold its lock. So Python writes the
        # number of a signal to a socket at once, and a thread of ours sets the event.
        reading, writing = socket.socketpair()
        writing.setblocking(False)
        # It stays open for the life of the process, even if this object goes away.
        signal.set_wakeup_fd(writing.detach(), warn_on_full_buffer=False)
        for number in signals:
            signal.signal(number, _die_of_the_next)
        threading.Thread(target=self._relay, args=(reading,), name="signals", daemon=True).start()

    def spawn(self, name: str, target: Callable[[], None]) -> threading.Thread:
        """Run `target` on a daemon thread of that name; an exception ends the process."""

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

        When it raises or returns before that, it is called again after a pause. The program's `/healthz` must check
        `workers.broken`, or a permanent failure of a worker would go unnoticed.
        """
        return self.spawn(name, lambda: self.workers.keep(name, target, self.stop))

    def watch_threads(self) -> None:
        """Have an exception in any other thread of this process, such as an informer's, end the process too."""
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


class HealthChecks:
    """Named conditions; each gives the reason why it does not hold, or None."""

    def __init__(self, **checks: Check) -> None:
        self._checks = checks

    def reasons(self) -> dict[str, str]:
        """The conditions that do not hold, with the reason. A check that raises does not hold."""
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


def health_routes(metrics: Metrics, *, ready: HealthChecks, alive: HealthChecks | None = None) -> Routes:
    """`/healthz` (restart me?), `/readyz` (send me work?) and `/metrics`.

    Both probes answer 200, or 503 with the reasons. Liveness fails only for what a restart cures, so not while the API
    server is unavailable.
    """
    living = alive or HealthChecks()

    def probe(health: HealthChecks) -> Reply:
        reasons = health.reasons()
        return json_reply({"ok": not reasons, "reasons": reasons}, 503 if reasons else 200)

    return {
        ("GET", "/healthz"): lambda request: probe(living),
        ("GET", "/readyz"): lambda request: probe(ready),
        ("GET", "/metrics"): lambda request: Reply(200, metrics.render(), Metrics.content_type),
    }
