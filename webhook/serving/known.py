"""
The kinds of cards that the allocator alongside this webhook sent last.

They count a share by percent while the allocator restarts: quotas count such a pod, and it waits behind the gate as
others do. A process that has received nothing yet is not ready, so it gets no pods.

Why the other replica is not asked: docs/decisions/0161-the-webhook-keeps-the-kinds-of-cards.md.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from contract.model import GpuKind, PodRequest
from contract.scheduling.cards import floor, smallest_of

KEPT = 600.0
"""Seconds for which an answer counts. A node with other cards may have come since."""
_EVERY, _AGAIN = 5.0, 0.2
"""Seconds until the allocator is asked again: after an answer, and before the first one."""


class KnownCards:
    """The last answer, and its age. `clock` in seconds. From any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: tuple[float, frozenset[GpuKind]] | None = None

    def learn(self, cards: frozenset[GpuKind]) -> None:
        """The allocator answered."""
        self._last = self._clock(), cards

    def floor(self, request: PodRequest) -> Mapping[str, int] | None:
        """The least memory in bytes by container that a waiting pod will have; None without a young enough answer."""
        last = self._last
        if last is None or self._clock() - last[0] > KEPT:
            return None
        return floor(request, smallest_of(last[1]))

    def unready(self) -> str | None:
        """Why no pod must be sent here yet, or None."""
        return "the allocator has not answered yet" if self._last is None else None

    def poll(self, read: Callable[[], frozenset[GpuKind] | None], stopping: threading.Event) -> None:
        """
        Ask repeatedly until `stopping` is set, on a thread. `read` never raises, and returns None without an answer.
        """

        def polling() -> None:
            while not stopping.is_set():
                cards = read()
                if cards is not None:
                    self.learn(cards)
                stopping.wait(_AGAIN if self._last is None else _EVERY)

        threading.Thread(target=polling, name="known-cards", daemon=True).start()
