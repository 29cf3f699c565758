"""
The queue: which pods wait for a share, and in what order they are tried.

Filled from what the watch brings. It knows neither nodes nor GPUs, and not what a pod was told or when it
may be tried again (see `allocator.queue.reporting`). Must not: read a clock; who came first is told by creation times
and by a count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from allocator.cache.podinfo import PodInfo
from allocator.cache.reserved import Requester
from contract.scheduling.needs import PodNeeds
from contract.scheduling.request import SchedulingRequest, queue_order

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class QueuedPodInfo:
    """A pod that is gated by us. `foreign` names other gates, whose owners must have let it go before we place it."""

    uid: str
    key: str
    ask: SchedulingRequest
    priority: int
    created: str
    """Its creationTimestamp."""
    pod: Mapping[str, Any]
    """`pods.outline` of it: no more than its commit and its condition need."""
    foreign: tuple[str, ...] = ()
    came: int = 0
    """How many were seen to come before it: creation times tell seconds only, and a Deployment makes many in one."""

    @property
    def asking(self) -> Requester:
        """Who it is, to a node that is kept for somebody."""
        return Requester(self.uid, self.priority, self.key.split("/", 1)[0])

    @property
    def order(self) -> tuple[int, int, str, int, str]:
        """
        `queue_order`, then the pod that was seen first.

        The latter is on no object, so the plugin shows the places that pods of one second have together.
        """
        return (*queue_order(self.priority, self.ask.request, self.created), self.came, self.uid)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A gated pod that cannot be placed as it is: `namespace/name`, and why."""

    key: str
    why: str


class Shared(Generic[T]):
    """One value for all that are equal, for as long as somebody uses it: pods of one Deployment need the same."""

    def __init__(self) -> None:
        self._used: dict[T, tuple[T, int]] = {}

    def __len__(self) -> int:
        return len(self._used)

    def take(self, value: T) -> T:
        """The value to use in place of this one."""
        first, users = self._used.get(value, (value, 0))
        self._used[first] = (first, users + 1)
        return first

    def give_back(self, value: T) -> None:
        """One that `take` gave is not used any more."""
        first, users = self._used[value]
        if users > 1:
            self._used[first] = (first, users - 1)
        else:
            del self._used[first]


class SchedulingQueue:
    """The pods behind our gate. Not thread-safe: one owner calls it."""

    def __init__(self) -> None:
        self.unreadable: dict[str, Unreadable] = {}
        """Gated pods (by uid) that cannot be placed as they are."""
        self._waiting: dict[str, QueuedPodInfo] = {}
        self._came = 0
        self._needs = Shared[PodNeeds]()

    def __len__(self) -> int:
        """How many are in the queue."""
        return len(self._waiting)

    def in_order(self) -> list[QueuedPodInfo]:
        """The pods in the queue, the first first."""
        return sorted(self._waiting.values(), key=lambda w: w.order)

    def in_any_order(self) -> Iterable[QueuedPodInfo]:
        """The pods in the queue, unsorted; not to be kept."""
        return self._waiting.values()

    def pod(self, uid: str) -> QueuedPodInfo | None:
        """A pod in the queue by its uid."""
        return self._waiting.get(uid)

    def knows(self, uid: str) -> bool:
        """Whether this pod is in the queue, or would be if it could be read."""
        return uid in self._waiting or uid in self.unreadable

    def uids(self) -> Iterable[str]:
        """Every pod that is in the queue, or would be if it could be read."""
        return (*self._waiting, *self.unreadable)

    def put(self, pod: PodInfo) -> bool:
        """A pod is new or changed. True if it joined the queue or left it, or asks for something else now."""
        uid, waiting = pod.uid, pod.waiting
        if waiting is None:
            return self.drop(uid)
        request = waiting.request
        if request is None:
            self.drop(uid)
            self.unreadable[uid] = Unreadable(pod.key, waiting.unreadable)
            return False
        self.unreadable.pop(uid, None)
        known = self._waiting.get(uid)
        needs = self._needs.take(waiting.needs)
        if known is not None:
            self._needs.give_back(known.ask.needs)
        entry = QueuedPodInfo(
            uid=uid,
            key=pod.key,
            ask=SchedulingRequest(request, needs),
            priority=pod.priority,
            created=pod.created,
            pod=waiting.outline,
            foreign=waiting.foreign,
            came=known.came if known is not None else self._came,
        )
        self._came += known is None
        self._waiting[uid] = entry
        return known is None or (known.ask, known.foreign) != (entry.ask, entry.foreign)

    def drop(self, uid: str) -> bool:
        """A pod waits no longer. True if it was in the queue."""
        self.unreadable.pop(uid, None)
        known = self._waiting.pop(uid, None)
        if known is not None:
            self._needs.give_back(known.ask.needs)
        return known is not None
