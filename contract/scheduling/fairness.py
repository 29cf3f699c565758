"""
The order of the queue between namespaces, and within one.

Across namespaces only the Kubernetes priority counts. Within one, the dialect's own priority orders pods of equal
priority (`own_order`). In the fair order, among pods of equal priority, the namespace that holds least for its weight
is next.

What a namespace holds is its dominant share: the larger of its part of the cluster's GPU memory and its part of the
cluster's cores, now. No history counts, so the objects are all that is needed to compute it. The allocator orders its
queue by these functions, and the plugin shows places by them. Pure.
"""

from __future__ import annotations

import heapq
import math
import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import TypeVar

from contract import names
from contract.model import WHOLE, PodRequest
from contract.scheduling.demand import ConcurrentDemand, Demand

T = TypeVar("T")
MOST_WEIGHT = 1000
_WEIGHT = re.compile(r"[1-9][0-9]{0,3}", re.ASCII)
BEHIND = "behind a namespace with a smaller share"
"""The text for a tenant. It must not reveal other namespaces."""


@dataclass(frozen=True, slots=True)
class Held:
    """GPU memory in bytes and cores in percent of a GPU, added up over GPUs."""

    memory: int = 0
    cores: int = 0

    def plus(self, other: Held) -> Held:
        """Both together."""
        return Held(self.memory + other.memory, self.cores + other.cores)


NOTHING = Held()


def held_of(demands: Iterable[Demand]) -> Held:
    """The sum of these shares. An exclusive share takes all cores of its GPU."""
    memory = cores = 0
    for demand in demands:
        memory += demand.memory
        cores += WHOLE if demand.exclusive else demand.cores
    return Held(memory, cores)


def requested(request: PodRequest, card: int) -> Held:
    """The amount that the pod will hold on GPUs with `card` usable bytes each. A pod that uses a claim adds nothing."""
    adding = ConcurrentDemand()
    for fraction in request.containers:
        cores = WHOLE if fraction.exclusive else fraction.cores
        memory = fraction.memory_on(card)
        adding.start(fraction.count * memory, fraction.count * cores, init=fraction.init, exclusive=False)
    return held_of((adding.demand(),))


def weight_of(value: str | None) -> int | None:
    """The weight in a namespace's label, 1 without a label; None if it cannot be read, and then 1 counts."""
    if value is None:
        return 1
    found = int(value) if _WEIGHT.fullmatch(value) else 0
    return found if 0 < found <= MOST_WEIGHT else None


def misread(namespace: str, value: str) -> str:
    """The sentence about a weight that cannot be read."""
    return (
        f"namespace {namespace}: the label {names.QUEUE_WEIGHT}={value} counts as 1; it must be a whole number from 1 "
        f"to {MOST_WEIGHT}"
    )


class Shares:
    """The shares of namespaces in a cluster with these totals and weights (1 if there is none)."""

    def __init__(self, total: Held, weights: Mapping[str, int]) -> None:
        self._total = total
        self._weights = weights
        self._scale = math.lcm(*weights.values())

    def of(self, namespace: str, held: Held) -> int:
        """
        The dominant share divided by the weight, as a whole number that can only be compared with others of these
        shares: in exact figures equal shares are equal.
        """
        dominant = max(held.memory * self._total.cores, held.cores * self._total.memory)
        return dominant * (self._scale // self._weights.get(namespace, 1))

    def weight(self, namespace: str) -> int:
        """The namespace's weight."""
        return self._weights.get(namespace, 1)

    def percent(self, held: Held) -> float:
        """The dominant share in percent of the cluster, for people."""
        total = self._total
        return 100.0 * max(held.memory / max(total.memory, 1), held.cores / max(total.cores, 1))


@dataclass(frozen=True, slots=True)
class QueuePlace:
    """
    The parts of a pod that decide its place in the queue: the Kubernetes priority (pods with equal ones compete), the
    namespace, the creation time, and whether the pod's dialect puts it before others of its namespace.
    """

    priority: int
    namespace: str
    created: float
    preferred: bool = False

    @property
    def line(self) -> tuple[int, str]:
        """Equal for pods of one namespace and one priority, which their dialect's own priority orders."""
        return self.priority, self.namespace


def own_order(waiting: Iterable[T], of: Callable[[T], QueuePlace]) -> Iterator[T]:
    """
    The pods in the order in which each namespace wants its own. `waiting`: the same by Kubernetes priority and age.

    A preferred pod keeps its place. Older pods of its namespace and priority wait until after the last preferred one.
    So no pod overtakes an older pod of another namespace: a namespace that prefers a young pod delays its own older
    pods, and gains no place.
    """
    placed = [(pod, of(pod)) for pod in waiting]
    left = Counter(place.line for _, place in placed if place.preferred)
    delayed: dict[tuple[int, str], list[T]] = {}
    for pod, place in placed:
        if not place.preferred and left[place.line]:
            delayed.setdefault(place.line, []).append(pod)
            continue
        yield pod
        if place.preferred:
            left[place.line] -= 1
            if not left[place.line]:
                yield from delayed.pop(place.line, ())


def counts_as_created(places: Iterable[QueuePlace]) -> Callable[[QueuePlace], float]:
    """The creation time that gives a pod its place in `own_order` of all these pods."""
    last: dict[tuple[int, str], float] = {}
    for place in places:
        if place.preferred:
            last[place.line] = max(last.get(place.line, 0.0), place.created)
    return lambda place: place.created if place.preferred else max(place.created, last.get(place.line, 0.0))


def in_turn(waiting: Iterable[T], of: Callable[[T], QueuePlace], share: Callable[[str], int]) -> Iterator[T]:
    """
    The pods in fair order. `waiting`: the same in `own_order`, which holds within a namespace. `share`: what a
    namespace holds for its weight at this moment; it is called again after each pod, so that a pod that the caller has
    placed counts for the next one.

    Namespaces with equal shares come in the order of their oldest pods, then by name: the order in which the pods of
    one second were seen makes no difference between namespaces.
    """
    for _, competing in groupby(waiting, key=lambda pod: of(pod).priority):
        lines: dict[str, deque[T]] = {}
        for pod in competing:
            lines.setdefault(of(pod).namespace, deque()).append(pod)
        heap = [(share(namespace), of(line[0]).created, namespace) for namespace, line in lines.items()]
        heapq.heapify(heap)
        while heap:
            known, created, namespace = heap[0]
            now, line = share(namespace), lines[namespace]
            if now > known:  # it has got more since then
                heapq.heapreplace(heap, (now, created, namespace))
                continue
            yield line.popleft()
            if line:
                heapq.heapreplace(heap, (share(namespace), of(line[0]).created, namespace))
            else:
                heapq.heappop(heap)


def if_placed(
    waiting: Iterable[T],
    of: Callable[[T], QueuePlace],
    asks: Callable[[T], Held],
    shares: Shares,
    held: Mapping[str, Held],
) -> Iterator[T]:
    """`in_turn`, where each pod counts as placed in its turn. `held`: what each namespace holds now."""
    counted = dict(held)
    for pod in in_turn(waiting, of, lambda namespace: shares.of(namespace, counted.get(namespace, NOTHING))):
        namespace = of(pod).namespace
        counted[namespace] = counted.get(namespace, NOTHING).plus(asks(pod))
        yield pod
