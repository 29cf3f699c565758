"""
Chooses the request that is answered next.

Sources take turns, so that the requests of one source do not wait behind all requests of another. The requests of all
tenants come from the same API server, so within a source a small request overtakes larger ones. Large requests are
answered one at a time alongside the others: a parsed body takes up to 30 times its bytes, and the bodies that are
parsed at the same time must fit into the process's memory limit. One turn in three goes to the request that has waited
longest, so that a flood of small ones does not block larger ones.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import Generic, TypeVar

T = TypeVar("T")
LARGE = 64 << 10
"""Bytes of a body; pods have 2 to 20 KiB."""
_SMALL = 8 << 10
"""Bytes up to which requests are of one size class; each further class has twice as many."""
_LONGEST_WAIT_EVERY = 3


class Turns(Generic[T]):
    """The queue of requests. `places`: how many are answered at the same time, besides one large request."""

    def __init__(self, places: int) -> None:
        self._small: _Lane[T] = _Lane(places)
        self._large: _Lane[T] = _Lane(1)

    def put(self, item: T, *, source: str, size: int) -> None:
        """Add a request from `source` with a body of `size` bytes."""
        self._lane(size).put(item, source, size)

    def take(self) -> T | None:
        """Remove and return the next request; None while the queue is empty or all places are taken."""
        found = self._small.take()
        return found if found is not None else self._large.take()

    def done(self, size: int) -> None:
        """Free the place of a request of that size, which has been answered."""
        self._lane(size).free += 1

    def drop(self, item: T, *, source: str, size: int) -> None:
        """Remove a request from the queue. Raises ValueError where it is not in the queue."""
        self._lane(size).drop(item, source, size)

    def _lane(self, size: int) -> _Lane[T]:
        return self._large if size > LARGE else self._small


class _Lane(Generic[T]):
    """A queue with places of its own."""

    def __init__(self, places: int) -> None:
        self.free = places
        self._sources: OrderedDict[str, _OfSource[T]] = OrderedDict()
        """Whose turn it is comes first."""

    def put(self, item: T, source: str, size: int) -> None:
        self._sources.setdefault(source, _OfSource()).put(item, size)

    def take(self) -> T | None:
        if not self._sources or not self.free:
            return None
        source, queue = next(iter(self._sources.items()))
        item = queue.take()
        if queue:
            self._sources.move_to_end(source)
        else:
            del self._sources[source]
        self.free -= 1
        return item

    def drop(self, item: T, source: str, size: int) -> None:
        queue = self._sources.get(source)
        if queue is None:
            raise ValueError("the request is not in the queue")
        queue.drop(item, size)
        if not queue:
            del self._sources[source]


class _OfSource(Generic[T]):
    """The waiting requests of one source, by size class and in the order in which they came."""

    def __init__(self) -> None:
        self._classes: dict[int, deque[tuple[int, T]]] = {}
        self._came = itertools.count()
        self._turns = itertools.count(1)

    def __bool__(self) -> bool:
        return bool(self._classes)

    def put(self, item: T, size: int) -> None:
        self._classes.setdefault(_class_of(size), deque()).append((next(self._came), item))

    def take(self) -> T:
        longest = next(self._turns) % _LONGEST_WAIT_EVERY == 0
        which = min(self._classes, key=lambda each: self._classes[each][0][0]) if longest else min(self._classes)
        _, item = self._classes[which].popleft()
        self._remove_empty(which)
        return item

    def drop(self, item: T, size: int) -> None:
        which = _class_of(size)
        waiting: Iterable[tuple[int, T]] = self._classes.get(which, ())
        found = next((each for each in waiting if each[1] is item), None)
        if found is None:
            raise ValueError("the request is not in the queue")
        self._classes[which].remove(found)
        self._remove_empty(which)

    def _remove_empty(self, which: int) -> None:
        if not self._classes[which]:
            del self._classes[which]


def _class_of(size: int) -> int:
    """0 for usual pods, and one more for each doubling."""
    return (max(size - 1, 0) // _SMALL).bit_length()
