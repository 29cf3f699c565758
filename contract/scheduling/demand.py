"""
How much a pod takes of each GPU, from the GPUs of its containers.

This is the only place with the rule for init containers, so the filter and the ledger cannot disagree. Containers are
in the order of the request, in which they start: an init container runs beside the sidecars before it, and after the
last one all sidecars and app containers run together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from contract.model import FREE, WHOLE, Allocation, ContainerAllocation, FractionRequest, PodRequest, Usage


@dataclass(frozen=True, slots=True)
class Demand:
    """
    What one pod takes of one GPU: bytes, percent of cores, and whether it needs the whole GPU. `burst`: bytes above
    `memory` that its containers' limits add up to; nothing of them is booked.
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
        )

    def beside(self, other: Demand) -> Demand:
        """The demand of two users of one share: the larger amount of each."""
        memory, limit = max(self.memory, other.memory), max(self.memory + self.burst, other.memory + other.burst)
        return Demand(memory, max(self.cores, other.cores), self.exclusive or other.exclusive, limit - memory)


def demand_of(fraction: FractionRequest, usable: int) -> Demand:
    """What one container takes of a GPU with `usable` bytes."""
    memory, burst = fraction.memory_on(usable), fraction.burst_on(usable)
    return Demand(memory, fraction.cores, fraction.exclusive, burst)


def whole_cards(request: PodRequest) -> int:
    """How many whole cards of one node the pod needs at once."""
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
    """What the pod takes, by GPU UUID. The allocation has the request's containers in their order."""
    if allocation.claim:
        return of_claim(allocation)
    return per_gpu(request, shares_of(allocation.containers))


def of_claim(allocation: Allocation) -> Mapping[str, Demand]:
    """
    What a claim's share takes, by GPU UUID.

    Every container may use all of it, so it counts once, whatever their number. A claim with all of a GPU's cores has
    the whole card.
    """
    shares = [share for container in allocation.containers for share in container.shares]
    found = sorted(shares, key=lambda share: share.memory)
    return {s.uuid: Demand(s.memory, s.cores, s.cores >= WHOLE, s.burst) for s in found}


PlacedShare = tuple[str, str, int, int]
"""The container, the GPU's UUID, the bytes that are booked, and those above them that the limit allows."""


def shares_of(containers: Iterable[ContainerAllocation]) -> Iterator[PlacedShare]:
    """The shares of an allocation for `per_gpu`."""
    return ((c.container, share.uuid, share.memory, share.burst) for c in containers for share in c.shares)


def per_gpu(request: PodRequest, placed: Iterable[PlacedShare]) -> Mapping[str, Demand]:
    """What the pod takes, by GPU UUID. `placed`: its shares in the order of the request."""
    fractions = {fraction.container: fraction for fraction in request.containers}
    running: dict[str, ConcurrentDemand] = {}
    for container, uuid, memory, burst in placed:
        fraction = fractions[container]
        gpu = running.setdefault(uuid, ConcurrentDemand())
        gpu.start(memory, fraction.cores, init=fraction.init, exclusive=fraction.exclusive, burst=burst)
    return {uuid: gpu.demand() for uuid, gpu in running.items()}
