"""
The worker that counts how long shares held how much: about once a second it takes what changed to the meter.

Apart from the scheduling loop and from the controller's lock, so neither a decision nor a pod event waits for it.
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
        `clock` is the controller's. `covered` says which time this replica answers for; without it, it answers for all
        time since its start. `faulted` is called in the handler of an error that must not break a scrape.
        """
        self._faulted = faulted
        self._controller = controller
        self._meter = meter
        self._clock = clock
        self._covered = covered
        self._started = clock()
        self._lock = threading.Lock()  # guards the meter

    def run(self, stop: threading.Event) -> None:
        """Until stopped."""
        while not stop.wait(_EVERY):
            self.tick()

    def tick(self) -> None:
        """Take what changed to the meter, and count what this replica answers for."""
        with self._lock:
            self._advance()

    def counted(self) -> Counted:
        """What was counted until now."""
        with self._lock:
            try:
                self._advance()
            except Exception:
                self._faulted("metering", "")
            return self._meter.counted()

    def _advance(self) -> None:
        # Asked before the changes are taken: of what is counted until then, all is known by then.
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
