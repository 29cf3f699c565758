"""
Whose request is answered next.

Sources take turns, so that the requests of one do not wait behind all those of another. Large requests go one at a time
beside the others, the smallest first: read, a body takes up to 30 times its bytes, and what is parsed at the same time
must fit into the process's memory limit.
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
    """Requests that wait, and how many are being answered. `places`: how many at the same time, a large one apart."""

    def __init__(self, places: int) -> None:
        self._free = places
        self._large_free = 1
        self._waiting: OrderedDict[str, deque[T]] = OrderedDict()
        self._large: list[_Large[T]] = []
        self._numbers = itertools.count()

    def put(self, item: T, *, source: str, size: int) -> None:
        """A request is here, from that source and with that many bytes."""
        if size > LARGE:
            heapq.heappush(self._large, _Large(size, next(self._numbers), item))
        else:
            self._waiting.setdefault(source, deque()).append(item)

    def take(self) -> T | None:
        """The request that is answered from now on, or None while none waits or all places are taken."""
        if self._waiting and self._free:
            source, line = next(iter(self._waiting.items()))
            item = line.popleft()
            if line:
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
        """A request of that size has been answered."""
        if size > LARGE:
            self._large_free += 1
        else:
            self._free += 1

    def drop(self, item: T, *, source: str, size: int) -> None:
        """A request that still waits is not wanted any more. Raises ValueError where it does not wait."""
        if size > LARGE:
            left = [each for each in self._large if each.item is not item]
            if len(left) == len(self._large):
                raise ValueError("it does not wait")
            heapq.heapify(left)
            self._large = left
            return
        line = self._waiting.get(source, deque())
        line.remove(item)
        if not line:
            del self._waiting[source]
