"""
The worker of metering: about once a second it passes changes to the meter.

It runs outside the scheduling loop and the controller's lock, so neither decisions nor pod events wait for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from allocator.faults import Faulted, surfaced
from allocator.features.metering.meter import Counted, Meter, Span
from allocator.scheduler.core import Controller
from runtime.kubernetes.lease import Covered

_EVERY = 1.0
"""Seconds."""


class MeteringWorker:
    """Feeds a meter. `counted` may be called from any thread."""

    def __init__(
        self,
        *,
        controller: Controller,
        meter: Meter,
        clock: Callable[[], float],
        covered: Callable[[], Covered | None] | None,
        faulted: Faulted = surfaced,
    ) -> None:
        """
        `clock` is the controller's. `covered` returns the time for which this replica is responsible; without it, that
        is all time since its start. `faulted` is called in the handler of an error that must not break a scrape.
        """
        self._faulted = faulted
        self._controller = controller
        self._meter = meter
        self._clock = clock
        self._covered = covered
        self._started = clock()
        self._lock = threading.Lock()  # guards the meter

    def run(self, stop: threading.Event) -> None:
        """Run until stopped."""
        while not stop.wait(_EVERY):
            self.tick()

    def tick(self) -> None:
        """Pass the changes to the meter, and count the time for which this replica is responsible."""
        with self._lock:
            self._advance()

    def counted(self) -> Counted:
        """The counts until now."""
        with self._lock:
            try:
                self._advance()
            except Exception:
                self._faulted("metering", "")
            return self._meter.counted()

    def _advance(self) -> None:
        # Read this before the changes, so that they include all changes of the counted time.
        span = self._span()
        changes, settled = self._controller.take_changes()
        self._meter.advance(changes, span if settled else None)

    def _span(self) -> Span | None:
        now = self._clock()
        if self._covered is None:
            return Span(self._started, now)
        covered = self._covered()
        if covered is None:
            return None
        return Span(None if covered.since is None else now - covered.since, now - covered.until)
