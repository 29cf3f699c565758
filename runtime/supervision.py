"""
Restarts failed workers, and decides when only a restart of the process can help.

A worker that raises must not end the others, nor be missing unnoticed: half a program that still answers its probes is
worse than a restart. So a failed worker is started again after a pause that doubles. If it keeps failing, `/healthz`
fails and the kubelet restarts the process.

             +------------- runs for `well_after` -------------+
             v                                                 |
        well --- raises ---> pausing --- pause over ---> on probation --- raises ---> pausing
                                     has failed for `patience`, `fewest` times or more: broken

`Restarts` is that decision, pure, with the time passed in. `Workers` does it with threads and a clock.

Must not: know what the workers do, or hold back anything that is not an `Exception`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from contract.backoff import backoff

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a worker may keep failing; all but `fewest` in seconds."""

    pause: float = 0.5  # before the first restart, doubled for each failure in a row
    pause_cap: float = 30.0
    well_after: float = 30.0  # a worker that has run this long since its last failure is well
    broken_after: float = 60.0  # a worker that has failed again and again for this long is broken
    fewest: int = 3  # failures in a row, at least, before a worker counts as broken


class Restarts:
    """The failures of one worker. Not thread-safe; one owner."""

    def __init__(self, patience: Patience | None = None) -> None:
        self._patience = patience or Patience()
        self._failures = 0
        self._first = self._again = 0.0
        self._why = ""

    def failed(self, why: str, now: float) -> float:
        """The worker raised; the seconds after which it is started again."""
        if self.is_well(now):
            self._failures = 0
            self._first = now
        self._failures += 1
        pause = backoff(self._failures, self._patience.pause, self._patience.pause_cap)
        self._again = now + pause
        self._why = why
        return pause

    def succeeded(self) -> None:
        """The worker did its work; for one that is called again and again."""
        self._failures = 0

    def may_run(self, now: float) -> bool:
        """Whether its pause is over."""
        return not self._failures or now >= self._again

    def is_well(self, now: float) -> bool:
        """Whether it has not failed, or has run long enough since."""
        return not self._failures or now >= self._again + self._patience.well_after

    def broken(self, now: float) -> str | None:
        """Why only a restart of the process may help; None if the worker is well or may recover."""
        if self.is_well(now) or self._failures < self._patience.fewest:
            return None
        since = now - self._first
        if since < self._patience.broken_after:
            return None
        return f"failed {self._failures} times in {since:.0f} s, at last with {self._why}"


class Workers:
    """
    The workers of one process. `restarted` gets the name of each that has failed, for a metric.

    Thread-safe. A worker is a thread (`keep`), or a step that its caller takes again and again (`attempt`).
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        patience: Patience | None = None,
        restarted: Callable[[str], None] = lambda name: None,
    ) -> None:
        self._clock = clock
        self._patience = patience
        self.restarted = restarted
        self._lock = threading.Lock()  # guards the restarts
        self._restarts: dict[str, Restarts] = {}

    def keep(self, name: str, target: Callable[[], None], stop: threading.Event) -> None:
        """
        Call `target`, which is to return when `stop` is set, and call it again when it raises or returns before.

        Returns once `stop` is set.
        """
        while not stop.is_set():
            try:
                target()
                why = "its own end"
                if not stop.is_set():
                    log.error("worker ended unexpectedly", extra={"worker": name})
            except Exception as error:
                why = type(error).__name__
                log.exception("worker failed", extra={"worker": name})
            if not stop.is_set():
                stop.wait(self.failed(name, why))

    def attempt(self, name: str, step: Callable[[], object]) -> bool:
        """Run the step, unless it pauses after a failure. True if it succeeded."""
        with self._lock:
            restarts = self._restarts.get(name)
            if restarts is not None and not restarts.may_run(self._clock()):
                return False
        try:
            step()
        except Exception as error:
            log.exception("worker failed", extra={"worker": name})
            self.failed(name, type(error).__name__)
            return False
        if restarts is not None:
            with self._lock:
                restarts.succeeded()
        return True

    def failed(self, name: str, why: str) -> float:
        """Count a failure; the seconds after which the worker may run again."""
        with self._lock:
            restarts = self._restarts.setdefault(name, Restarts(self._patience))
            pause = restarts.failed(why, self._clock())
        self.restarted(name)
        return pause

    def broken(self) -> str | None:
        """The broken workers, each with the reason; None if there are none. For a probe."""
        with self._lock:
            now = self._clock()
            found = ((name, restarts.broken(now)) for name, restarts in sorted(self._restarts.items()))
            reasons = [f"{name}: {why}" for name, why in found if why is not None]
        return "; ".join(reasons) or None


class Unsupervised(Workers):
    """For callers without supervision: an exception of a step reaches its caller."""

    def attempt(self, name: str, step: Callable[[], object]) -> bool:
        step()
        return True
