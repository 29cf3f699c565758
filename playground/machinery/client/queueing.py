"""
A work queue of keys: each key is in the queue at most once, and is handled at its time.

The rules of client-go's work queue: a key that is added while it waits is not added twice; one that is added while it
is worked on comes again afterwards, and never to two workers at once. Nothing here polls: a worker sleeps until the
next deadline or the next key.
"""

import heapq
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

log = logging.getLogger(__name__)


class Timers(Generic[K]):
    """Keys by deadline. The caller passes the time. A key has one deadline, the earliest that was requested."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, K]] = []
        self._deadlines: dict[K, float] = {}
        self._count = 0

    def set(self, key: K, at: float) -> None:
        if at < self._deadlines.get(key, float("inf")):
            self._deadlines[key] = at
            self._count += 1
            heapq.heappush(self._heap, (at, self._count, key))

    def cancel(self, key: K) -> None:
        self._deadlines.pop(key, None)

    def next(self) -> float | None:
        """The earliest deadline."""
        while self._heap and self._deadlines.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def due(self, now: float) -> list[K]:
        """Remove and return the keys whose deadlines have passed, in the order of the deadlines."""
        ready = []
        while (deadline := self.next()) is not None and deadline <= now:
            key = heapq.heappop(self._heap)[2]
            del self._deadlines[key]
            ready.append(key)
        return ready


class Backoff(Generic[K]):
    """The delay after a failed key: `base` seconds, doubled for each failure in a row, at most `cap`."""

    def __init__(self, base: float, cap: float) -> None:
        self._base = base
        self._cap = cap
        self._failures: dict[K, int] = {}

    def failed(self, key: K) -> float:
        """Count one more failure; the seconds to wait."""
        count = self._failures[key] = self._failures.get(key, 0) + 1
        return min(self._base * 2.0 ** min(count - 1, 32), self._cap)

    def reset(self, key: K) -> None:
        self._failures.pop(key, None)


class WorkQueue(Generic[K]):
    """Thread safe."""

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._changed = threading.Condition()
        self._line: deque[K] = deque()
        self._waiting: set[K] = set()
        self._working: set[K] = set()
        self._timers: Timers[K] = Timers()
        self._closed = False

    def add(self, key: K) -> None:
        with self._changed:
            self._add(key)

    def add_after(self, key: K, seconds: float) -> None:
        with self._changed:
            self._timers.set(key, self._monotonic() + seconds)
            self._changed.notify()

    def get(self) -> K | None:
        """The next key, which is the caller's until `done`; None once the queue is closed. Waits for one."""
        with self._changed:
            while not self._closed:
                now = self._monotonic()
                for key in self._timers.due(now):
                    self._add(key)
                if self._line:
                    key = self._line.popleft()
                    self._waiting.discard(key)
                    self._working.add(key)
                    return key
                deadline = self._timers.next()
                self._changed.wait(None if deadline is None else deadline - now)
            return None

    def done(self, key: K) -> None:
        with self._changed:
            self._working.discard(key)
            if key in self._waiting:
                self._line.append(key)
                self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _add(self, key: K) -> None:
        if key in self._waiting:
            return
        self._waiting.add(key)
        if key not in self._working:
            self._line.append(key)
            self._changed.notify()


def work(queue: WorkQueue[K], handle: Callable[[K], None], retry_seconds: float) -> None:
    """
    Handle keys until the queue is closed.

    A handler raises only because of a bug in itself or in the server. The error is logged with its key, and the key is
    retried later, as controllers do, because one bad object must not stop the others.
    """
    while (key := queue.get()) is not None:
        try:
            handle(key)
        except Exception:
            log.exception("work failed", extra={"key": str(key)})
            queue.add_after(key, retry_seconds)
        finally:
            queue.done(key)
