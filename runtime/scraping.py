"""
Figures that everybody may ask for, at a price that nobody can raise: an answer that took long to make serves all who
ask for nine times as long, so that at most a tenth of the time goes into answers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from runtime.httpserver import Handler, Reply, Request, Routes

_TIMES, _AT_MOST = 9.0, 5.0
METRICS = ("GET", "/metrics")


def spared(routes: Routes, *, clock: Callable[[], float] = time.monotonic) -> Routes:
    """The routes, with `/metrics` answered sparingly. `clock` in seconds."""
    return {**routes, METRICS: sparing(routes[METRICS], clock=clock)}


def sparing(handler: Handler, *, clock: Callable[[], float] = time.monotonic) -> Handler:
    """The handler of requests that are all alike, one at a time; whoever asks soon after gets the same bytes."""
    one_at_a_time = threading.Lock()
    kept: Reply | None = None
    until = 0.0

    def answer(request: Request) -> Reply:
        nonlocal kept, until
        with one_at_a_time:
            started = clock()
            if kept is None or started >= until:
                kept = handler(request)
                now = clock()
                until = now + min(_TIMES * (now - started), _AT_MOST)
            return kept

    return answer
