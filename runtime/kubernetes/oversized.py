"""
Logs that objects are larger than what is read of their kind: at most one line per kind and minute, because their
authors choose how many there are.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from contract.kinds import ObjectKind

log = logging.getLogger(__name__)
_EVERY = 60.0
"""Seconds between two lines about one kind."""


class Oversized:
    """Called with each such object."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._reported: dict[str, float] = {}
        self._unsaid: dict[str, int] = {}

    def __call__(self, kind: ObjectKind, name: str, length: int) -> None:
        now = self._clock()
        with self._lock:
            if now - self._reported.get(kind.plural, float("-inf")) < _EVERY:
                self._unsaid[kind.plural] = self._unsaid.get(kind.plural, 0) + 1
                return
            self._reported[kind.plural] = now
            before = self._unsaid.pop(kind.plural, 0)
        log.warning(
            "object too large to be read",
            extra={
                "kind": kind.plural,
                "object": name,
                "characters": length,
                "most": kind.most,
                "reason": kind.answer,
                "unreported": before,
            },
        )


oversized = Oversized()
"""The one of this process."""
