"""
The probes and the metrics of the webhook.

They have a port of their own, so that no client of the reviews' port can keep a probe waiting. Probes come there
without TLS, and scrapes with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from runtime.httpserver import Reply, Routes
from runtime.metrics import Metrics

_STUCK = 20.0
"""Seconds. One turn of the loop over all connections takes milliseconds."""


class Pulse:
    """Whether the loop over the clients' connections still runs. `clock` in seconds. From any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._at = clock()

    def beat(self) -> None:
        """The loop has made a turn."""
        self._at = self._clock()

    def reason(self) -> str | None:
        """Why the process must be restarted, or None."""
        silent = self._clock() - self._at
        return f"no connection has been served for {silent:.0f} s" if silent > _STUCK else None


@dataclass(frozen=True, slots=True)
class Health:
    """
    The answers to probes.

    `ready` and `alive` return the reason why not, or None. `trouble` returns what is wrong without preventing service,
    or empty text.
    """

    ready: Callable[[], str | None]
    trouble: Callable[[], str] = lambda: ""
    alive: Callable[[], str | None] = lambda: None

    def healthz(self) -> Reply:
        """200, or 503 where a restart helps."""
        reason = self.alive()
        return _plain(reason, 503) if reason else _plain("ok")

    def readyz(self) -> Reply:
        """200, or 503 where no review must be sent here."""
        reason, beside = self.ready(), self.trouble()
        return _plain(reason, 503) if reason else _plain(f"ok; {beside}" if beside else "ok")

    def routes(self, metrics: Metrics) -> Routes:
        """`/healthz`, `/readyz` and `/metrics`."""
        return {
            ("GET", "/healthz"): lambda request: self.healthz(),
            ("GET", "/readyz"): lambda request: self.readyz(),
            ("GET", "/metrics"): lambda request: Reply(200, metrics.render(), metrics.content_type),
        }


def _plain(text: str, status: int = 200) -> Reply:
    return Reply(status, f"{text}\n".encode())
