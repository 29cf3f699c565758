"""
What kubelet and scrapers ask the webhook, on a port of its own without TLS: no client of the reviews' port can keep a
probe waiting.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from runtime.httpserver import Reply, Routes
from runtime.metrics import Metrics

Reason = Callable[[], str | None]


_STUCK = 20.0
"""Seconds. Looking after connections takes no longer than one of them takes, which is milliseconds."""


class Pulse:
    """Whether somebody still looks after the reviews' connections. `clock` in seconds. From any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._at = clock, clock()

    def beat(self) -> None:
        """It does."""
        self._at = self._clock()

    def reason(self) -> str | None:
        """Why a restart would help, or None."""
        silent = self._clock() - self._at
        return f"no connection has been looked after for {silent:.0f} s" if silent > _STUCK else None


def routes(*, metrics: Metrics, ready: Reason, trouble: Callable[[], str], alive: Reason = lambda: None) -> Routes:
    """
    `/healthz` (restart me?), `/readyz` (send me reviews?) and `/metrics`.

    `ready` and `alive` give the reason why not, or None. `trouble` is what is wrong without keeping anybody from being
    served.
    """

    def healthz() -> Reply:
        reason = alive()
        return _plain(reason, 503) if reason else _plain("ok")

    def readyz() -> Reply:
        reason, beside = ready(), trouble()
        return _plain(reason, 503) if reason else _plain(f"ok; {beside}" if beside else "ok")

    return {
        ("GET", "/healthz"): lambda request: healthz(),
        ("GET", "/readyz"): lambda request: readyz(),
        ("GET", "/metrics"): lambda request: Reply(200, metrics.render(), metrics.content_type),
    }


def _plain(text: str, status: int = 200) -> Reply:
    return Reply(status, f"{text}\n".encode())
