"""
Which request is answered next.

Sources take turns, so that the requests of one source do not wait behind all requests of another. Large requests are
answered one at a time beside the others, the smallest first: a parsed body takes up to 30 times its bytes, and the
bodies that are parsed at the same time must fit into the process's memory limit.
"""

from __future__ import annotations

import heapq
import itertools
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")
LARGE = 64 << 10
"""Bytes of a body; pods have 2 to 20 KiB."""


@dataclass(order=True, slots=True)
class _Large(Generic[T]):
    size: int
    number: int
    item: T = field(compare=False)


class Turns(Generic[T]):
    """The queue of requests. `places`: how many are answered at the same time, besides one large request."""

    def __init__(self, places: int) -> None:
        self._free = places
        self._large_free = 1
        self._waiting: OrderedDict[str, deque[T]] = OrderedDict()
        self._large: list[_Large[T]] = []
        self._numbers = itertools.count()

    def put(self, item: T, *, source: str, size: int) -> None:
        """Add a request from `source` with a body of `size` bytes."""
        if size > LARGE:
            heapq.heappush(self._large, _Large(size, next(self._numbers), item))
        else:
            self._waiting.setdefault(source, deque()).append(item)

    def take(self) -> T | None:
        """Remove and return the next request; None while the queue is empty or all places are taken."""
        if self._waiting and self._free:
            source, queue = next(iter(self._waiting.items()))
            item = queue.popleft()
            if queue:
                self._waiting.move_to_end(source)
            else:
                del self._waiting[source]
            self._free -= 1
            return item
        if self._large and self._large_free:
            self._large_free -= 1
            return heapq.heappop(self._large).item
        return None

    def done(self, size: int) -> None:
        """Free the place of a request of that size, which has been answered."""
        if size > LARGE:
            self._large_free += 1
        else:
            self._free += 1

    def drop(self, item: T, *, source: str, size: int) -> None:
        """Remove a request from the queue. Raises ValueError where it is not in the queue."""
        if size > LARGE:
            left = [each for each in self._large if each.item is not item]
            if len(left) == len(self._large):
                raise ValueError("the request is not in the queue")
            heapq.heapify(left)
            self._large = left
            return
        queue = self._waiting.get(source, deque())
        queue.remove(item)
        if not queue:
            del self._waiting[source]
