"""
How much a pod takes of each GPU, from the GPUs of its containers.

This is the only place with the rule for init containers, so the filter and the ledger cannot disagree. Containers are
in the order of the request, in which they start: an init container runs alongside the sidecars before it, and after the
last one all sidecars and app containers run together.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from contract.encoding.quantity import GIB
from contract.model import (
    ANY_GPU,
    FREE,
    NO_OVERCOUNT,
    WHOLE,
    Allocation,
    ContainerAllocation,
    FractionRequest,
    Overcount,
    PodRequest,
    Usage,
    Wishes,
)


@dataclass(frozen=True, slots=True)
class Demand:
    """
    The demand of one pod on one GPU: bytes, percent of cores, and whether it needs the whole GPU. `burst`: the bytes
    above `memory` in the sum of its containers' limits; these are not booked.
    """

    memory: int
    cores: int
    exclusive: bool
    burst: int = 0

    def added_to(self, usage: Usage) -> Usage:
        """The GPU's usage with this pod on it."""
        return Usage(
            usage.memory + self.memory,
            usage.cores + self.cores,
            usage.sharers + 1,
            usage.exclusive or self.exclusive,
            usage.burst + self.burst,
            usage.starting,
        )

    def beside(self, other: Demand) -> Demand:
        """The demand of two users of one share: the larger amount of each."""
        memory, limit = max(self.memory, other.memory), max(self.memory + self.burst, other.memory + other.burst)
        return Demand(memory, max(self.cores, other.cores), self.exclusive or other.exclusive, limit - memory)


def demand_of(fraction: FractionRequest, usable: int) -> Demand:
    """The demand of one container on a GPU with `usable` bytes."""
    memory, burst = fraction.memory_on(usable), fraction.burst_on(usable)
    return Demand(memory, fraction.cores, fraction.exclusive, burst)


def whole_cards(request: PodRequest) -> int:
    """The number of whole cards of one node that the pod needs at once."""
    counts = {each.container: each.count if each.exclusive else 0 for each in request.containers}
    if request.same_gpus:
        return max(counts.values(), default=0)
    first = max((counts[each.container] for each in request.containers if each.init), default=0)
    return max(first, sum(counts[each.container] for each in request.containers if not each.init))


def usage_of(demands: Iterable[Demand]) -> Usage:
    """The usage of a GPU with these pods and no others."""
    usage = FREE
    for demand in demands:
        usage = demand.added_to(usage)
    return usage


@dataclass(slots=True)
class ConcurrentDemand:
    """The sum of one pod's containers on one GPU. `together`: those that keep running; `peak`: the most at any time."""

    together_memory: int = 0
    together_cores: int = 0
    peak_memory: int = 0
    peak_cores: int = 0
    exclusive: bool = False
    together_limit: int = 0
    peak_limit: int = 0

    def start(self, memory: int, cores: int, *, init: bool, exclusive: bool, burst: int = 0) -> None:
        """Add the next container in start order; an init container ends before the one after it."""
        self.peak_limit = max(self.peak_limit, self.together_limit + memory + burst)
        self.peak_memory = max(self.peak_memory, self.together_memory + memory)
        self.peak_cores = max(self.peak_cores, self.together_cores + cores)
        self.exclusive = self.exclusive or exclusive
        if not init:
            self.together_memory += memory
            self.together_cores += cores
            self.together_limit += memory + burst

    def copy(self) -> ConcurrentDemand:
        together, peak = (self.together_memory, self.together_cores), (self.peak_memory, self.peak_cores)
        return ConcurrentDemand(*together, *peak, self.exclusive, self.together_limit, self.peak_limit)

    def demand(self) -> Demand:
        """The demand of the containers so far."""
        return Demand(self.peak_memory, self.peak_cores, self.exclusive, self.peak_limit - self.peak_memory)


def demands(request: PodRequest, allocation: Allocation) -> Mapping[str, Demand]:
    """The pod's demand by GPU UUID. The allocation has the request's containers in their order."""
    if allocation.claim:
        return of_claim(allocation)
    return per_gpu(request, shares_of(allocation.containers))


def of_claim(allocation: Allocation) -> Mapping[str, Demand]:
    """
    The demand of a claim's share by GPU UUID.

    Every container may use all of it, so it counts once, regardless of their number. A claim with all of a GPU's cores
    has the whole card.
    """
    shares = [share for container in allocation.containers for share in container.shares]
    found = sorted(shares, key=lambda share: share.memory)
    return {s.uuid: Demand(s.memory, s.cores, s.cores >= WHOLE, s.burst) for s in found}


PlacedShare = tuple[str, str, int, int]
"""The container, the GPU's UUID, the booked bytes, and the bytes above them that the limit allows."""


def shares_of(containers: Iterable[ContainerAllocation]) -> Iterator[PlacedShare]:
    """The shares of an allocation for `per_gpu`."""
    return ((c.container, share.uuid, share.memory, share.burst) for c in containers for share in c.shares)


def per_gpu(request: PodRequest, placed: Iterable[PlacedShare]) -> Mapping[str, Demand]:
    """The pod's demand by GPU UUID. `placed`: its shares in the order of the request."""
    fractions = {fraction.container: fraction for fraction in request.containers}
    running: dict[str, ConcurrentDemand] = {}
    for container, uuid, memory, burst in placed:
        fraction = fractions[container]
        gpu = running.setdefault(uuid, ConcurrentDemand())
        gpu.start(memory, fraction.cores, init=fraction.init, exclusive=fraction.exclusive, burst=burst)
    return {uuid: gpu.demand() for uuid, gpu in running.items()}


# -- what is held, and what is counted for it -----------------------------------------------------------------------
#
# For a pod, Kubernetes counts the most that its containers have at one time. A GPU's share is held for the pod's whole
# life, so if an init container uses another card than the containers after it, more is held than is counted. So a pod
# is placed only where it holds no more than `held_at_most`, which is the amount that Kubernetes counts if the init
# containers can use the cards of the others. `uncounted` is the amount that the accounting resources need in addition.


_PERCENT = GIB
"""The bytes for which a percent counts when containers are compared: the count must not depend on any card."""


@dataclass(slots=True)
class _Card:
    """A card that one container has for itself, with the init containers that use it before or alongside it."""

    users: list[int]
    """The positions of its containers in the request."""
    load: int
    """Of the container that has it, bytes."""
    held: int
    """With the init containers, bytes."""
    wishes: Wishes
    apart: bool = False
    """Whether one of its containers is on no GPU of another such container."""

    def more(self, amount: int, position: int) -> int:
        """The amount that an init container at this position needs here in addition to the held amount."""
        beside = self.load if self.users[0] < position else 0
        return max(0, beside + amount - self.held)

    def takes(self, wishes: Wishes) -> bool:
        """Whether one GPU can satisfy both requests."""
        return ANY_GPU in (self.wishes, wishes) or self.wishes == wishes


@lru_cache(maxsize=64)
def _cards(request: PodRequest) -> tuple[tuple[int, ...], ...]:
    """
    The cards of the pod, each with the positions of its containers: each container has its own, and an init container
    uses those of the others on which it needs the least in addition.
    """
    amounts = [fraction.memory or fraction.percent * _PERCENT for fraction in request.containers]
    cards = [
        _Card([position], amounts[position], amounts[position], fraction.wishes, fraction.apart)
        for position, fraction in enumerate(request.containers)
        if not fraction.init
        for _ in range(fraction.count)
    ]
    for position, fraction in enumerate(request.containers):
        if fraction.init:
            _add_init(cards, fraction, amounts[position], position)
    return tuple(tuple(sorted(card.users)) for card in cards)


def _add_init(cards: list[_Card], fraction: FractionRequest, amount: int, position: int) -> None:
    fitting = [card for card in cards if card.takes(fraction.wishes) and not (card.apart and fraction.apart)]
    used = heapq.nsmallest(fraction.count, fitting, key=lambda card: card.more(amount, position))
    for card in used:
        card.held += card.more(amount, position)
        card.users.append(position)
        card.apart = card.apart or fraction.apart
        card.wishes = fraction.wishes if card.wishes == ANY_GPU else card.wishes
    own = range(fraction.count - len(used))
    cards.extend(_Card([position], 0, amount, fraction.wishes, fraction.apart) for _ in own)


def held_at_most(request: PodRequest, memory_of: Callable[[FractionRequest], int]) -> tuple[int, int]:
    """Bytes and percent of cores that the pod may hold on all its GPUs. `memory_of`: a container's bytes on one GPU."""
    memory = cores = 0
    for users in _cards(request):
        card = ConcurrentDemand()
        for fraction in map(request.containers.__getitem__, users):
            card.start(memory_of(fraction), fraction.cores, init=fraction.init, exclusive=False)
        memory += card.peak_memory
        cores += card.peak_cores
    return memory, cores


@dataclass(frozen=True, slots=True)
class Uncounted:
    """The held amount that Kubernetes does not count, and the container whose accounting resources include it."""

    container: str = ""
    memory: int = 0
    cores: int = 0

    def of(self, container: str) -> tuple[int, int]:
        """The amount of this container in addition to its own share."""
        return (self.memory, self.cores) if container == self.container else (0, 0)


ALL_COUNTED = Uncounted()


def uncounted(request: PodRequest, totals: Mapping[str, int]) -> Uncounted:
    """The amount to count beyond each container's own share. `totals`: bytes over all GPUs of each container."""
    containers = request.containers
    if request.same_gpus or request.claim or not any(fraction.init for fraction in containers):
        return ALL_COUNTED
    held = held_at_most(request, lambda fraction: totals.get(fraction.container, 0) // fraction.count)
    at = max((position for position, fraction in enumerate(containers) if not fraction.init), default=-1)
    at = at if at >= 0 else len(containers) - 1
    memory = _lacking(held[0], [(totals.get(each.container, 0), each.init) for each in containers], at)
    cores = _lacking(held[1], [(each.count * each.cores, each.init) for each in containers], at)
    return Uncounted(containers[at].container, memory, cores)


def counted(request: PodRequest, totals: Mapping[str, int]) -> tuple[int, int]:
    """Bytes and percent of cores that Kubernetes counts for the pod. `totals`: as in `uncounted`."""
    besides, pod = uncounted(request, totals), ConcurrentDemand()
    for fraction in request.containers:
        memory, cores = besides.of(fraction.container)
        memory += totals.get(fraction.container, 0)
        cores += fraction.count * fraction.cores
        pod.start(memory, cores, init=fraction.init, exclusive=False)
    return request.counted or pod.peak_memory, pod.peak_cores


def overcount(request: PodRequest, allocation: Allocation, held: Iterable[Demand]) -> Overcount:
    """
    The amount that Kubernetes counts for the pod on these GPUs beyond the held amount (`held`).

    Without init containers both are the sum of all containers, unless the pod was counted before it had its cards. A
    claim's share is not counted by Kubernetes.
    """
    several = request.counted or any(fraction.init for fraction in request.containers)
    if allocation.claim or request.claim or not several:
        return NO_OVERCOUNT
    totals = {each.container: sum(share.memory for share in each.shares) for each in allocation.containers}
    memory, cores = counted(request, totals)
    for demand in held:
        memory -= demand.memory
        cores -= demand.cores
    return Overcount(max(0, memory), max(0, cores)) if memory > 0 or cores > 0 else NO_OVERCOUNT


def _lacking(held: int, amounts: list[tuple[int, bool]], at: int) -> int:
    """The amount to add to the container at this position, so that Kubernetes counts this much for the pod."""
    running, peaks = 0, []
    for position, (amount, init) in enumerate(amounts):
        peaks.append((running + amount, position == at or (position > at and not amounts[at][1])))
        running += 0 if init else amount
    counted = max(peak for peak, _ in peaks)
    return max(0, held - max(peak for peak, grows in peaks if grows)) if counted < held else 0
