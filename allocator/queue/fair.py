"""
In which order pods of the queue are tried: by age, or fair between namespaces (`contract.scheduling.fairness`).

The fair order is worked out from what namespaces hold at this moment, so a new leader has it at once. Within a
namespace, and between priorities, it is the order of age. Pure over the cache and the queue.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from allocator.cache.cache import Cache
from allocator.queue.queue import QueuedPodInfo, SchedulingQueue, namespace_of
from contract.model import WHOLE
from contract.scheduling import fairness
from contract.scheduling.fairness import Held, QueuePlace, Shares

Tier = tuple[int, int]


class QueueOrder:
    """The order, and who is behind whom. Not thread-safe: one owner calls it."""

    def __init__(self, cache: Cache, queue: SchedulingQueue, *, fair: bool) -> None:
        self._cache, self._queue = cache, queue
        self.fair = fair
        self._weights: Mapping[str, int] = {}
        self._shares: tuple[Held, Shares] | None = None
        self._waiting: dict[Tier, Counter[str]] = {}
        """How many pods compete, by priority and namespace."""
        self._behind: dict[tuple[Tier, str], bool] = {}
        """What `is_behind` found since the last placement."""

    def weigh(self, weights: Mapping[str, int]) -> bool:
        """The weights of all namespaces that have one. True if they changed."""
        if weights == self._weights:
            return False
        self._weights, self._shares = weights, None
        return True

    def in_order(self) -> Iterable[QueuedPodInfo]:
        """The queue in the order in which pods are tried, where each one counts as placed in its turn."""
        waiting = self._queue.in_order()
        if not self.fair:
            return waiting
        total, held = self._cache.totals(), self._cache.ledger.held_by_namespaces()
        card = total.memory * WHOLE // max(total.cores, 1)
        return fairness.if_placed(waiting, _place, lambda pod: _asks(pod, card), self._now(), held)

    def turns(self, chosen: Iterable[str], competes: Callable[[QueuedPodInfo], bool]) -> Iterable[str]:
        """
        The uids of these pods, which are in the order of age, in the order in which they are tried in one cycle. What
        is placed meanwhile counts. `competes`: whether a pod could be placed now.
        """
        if not self.fair:
            return chosen
        self._behind.clear()
        self._waiting = {}
        for pod in self._queue.in_any_order():
            if not pod.ask.request.claim and competes(pod):
                self._waiting.setdefault(_place(pod).tier, Counter())[namespace_of(pod)] += 1
        return self._in_turn(entry for uid in chosen if (entry := self._queue.pod(uid)) is not None)

    def _in_turn(self, entries: Iterable[QueuedPodInfo]) -> Iterator[str]:
        for pod in fairness.in_turn(entries, _place, self._share):
            yield pod.uid

    def placed(self, pod: QueuedPodInfo) -> None:
        """The pod waits no longer, and its namespace holds more."""
        self._behind.clear()
        if self.fair and not pod.ask.request.claim:
            self._waiting.get(_place(pod).tier, Counter())[namespace_of(pod)] -= 1

    def is_behind(self, pod: QueuedPodInfo) -> bool:
        """Whether a pod of equal priority waits whose namespace holds less for its weight, as of the last cycle."""
        if not self.fair or pod.ask.request.claim:
            return False
        tier, namespace = _place(pod).tier, namespace_of(pod)
        known = self._behind.get((tier, namespace))
        if known is None:
            mine, others = self._share(namespace), self._waiting.get(tier, Counter())
            known = any(left > 0 and self._share(other) < mine for other, left in others.items())
            self._behind[tier, namespace] = known
        return known

    def _share(self, namespace: str) -> int:
        return self._now().of(namespace, self._cache.ledger.held(namespace))

    def _now(self) -> Shares:
        total = self._cache.totals()
        if self._shares is None or self._shares[0] is not total:
            self._shares = total, Shares(total, self._weights)
        return self._shares[1]


def _place(pod: QueuedPodInfo) -> QueuePlace:
    return QueuePlace((-pod.priority, -pod.ask.request.priority), namespace_of(pod), pod.created)


def _asks(pod: QueuedPodInfo, card: int) -> Held:
    return fairness.asked(pod.ask.request, card)
