"""
What the driver shows at one look, and the thread that looks repeatedly.

A call into the driver may block for minutes while a GPU falls off its bus, and nothing can interrupt it. So it has a
thread of its own, apart from the one that talks to the API server. `Observer.latest` never blocks: it returns the
latest observation or, once a look takes too long, the problem that the driver does not answer.

Must not: interpret what it sees; `nodeagent.gpus.health` judges the cards.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from contract.reasons.gpunodes import GPUNodeReason
from nodeagent.gpus.health import Record
from nodeagent.gpus.library import Card, GpuLibrary, GpuLibraryError

log = logging.getLogger(__name__)
_PATIENCE = 60.0
"""Seconds. A driver may need tens of seconds while one of several GPUs fails."""


@dataclass(frozen=True, slots=True)
class Observation:
    """One look at the machine. If it failed, `problem` is a sentence and `reason` its CamelCase word."""

    cards: tuple[Card, ...] = ()
    driver: str = ""
    cuda: str = ""
    problem: str = ""
    reason: GPUNodeReason | None = None


def look(library: GpuLibrary) -> Observation:
    """Look at the machine once. Blocks as long as the driver does; a failure is a `problem`, never an exception."""
    try:
        cards = library.gpus()
        driver, cuda = library.driver_version(), library.cuda_version()
    except GpuLibraryError as error:
        return Observation(problem=str(error), reason=error.reason)
    if not cards:
        return Observation(
            driver=driver, cuda=cuda, problem="the driver works but reports no GPU", reason=GPUNodeReason.NO_GPU
        )
    return Observation(cards, driver, cuda)


class Observer:
    """
    Looks at `library` every `interval` seconds and calls `on_look` with each observation, on its own thread.

    `patience`: seconds that a look may take before the last observation is outdated. `record` remembers the cards'
    events.
    """

    def __init__(
        self,
        library: GpuLibrary,
        *,
        interval: float = 10.0,
        patience: float = _PATIENCE,
        on_look: Callable[[Observation], None] = lambda observation: None,
        record: Record | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._library = library
        self._interval = interval
        self._patience = patience
        self._on_look = on_look
        self._clock = clock
        self._record = record or Record()
        self._lock = threading.Lock()
        self._latest: Observation | None = None
        self._began_at: float | None = None

    def latest(self) -> Observation | None:
        """The latest observation. None before the first look has ended, unless that takes too long."""
        with self._lock:
            began = self._began_at
            if began is None or self._clock() - began <= self._patience:
                return self._latest
        # This text is published, so it must not change every second.
        problem = f"the driver does not answer: a call into it has taken more than {self._patience:g} s"
        return Observation(problem=problem, reason=GPUNodeReason.DRIVER_HANGS)

    def look_once(self) -> None:
        """One look, on the calling thread."""
        with self._lock:
            self._began_at = self._clock()
        try:
            seen = look(self._library)
            seen = replace(seen, cards=self._record.judged(seen.cards, self._clock()))
        except Exception as error:  # publish an internal error too, or the old inventory would stay
            log.exception("reading the GPUs failed")
            seen = Observation(
                problem=f"the agent failed while looking: {type(error).__name__}", reason=GPUNodeReason.AGENT_FAILED
            )
        with self._lock:
            changed = seen.problem != (self._latest.problem if self._latest else "")
            self._latest = seen
            self._began_at = None
        if changed and seen.problem:
            log.warning("GPUs cannot be read", extra={"reason": seen.reason, "detail": seen.problem})
        elif changed:
            log.info("GPUs can be read again")
        self._on_look(seen)

    def run(self, stopping: threading.Event) -> None:
        """Look until `stopping` is set. It needs a daemon thread, since a look that hangs cannot be ended."""
        while not stopping.is_set():
            self.look_once()
            stopping.wait(self._interval)
