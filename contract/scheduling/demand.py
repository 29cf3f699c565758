"""
How much a pod takes of each GPU, from the GPUs of its containers.

This is the only place with the rule for init containers, so the filter and the ledger cannot disagree. Containers are
in the order of the request, in which they start: an init container runs beside the sidecars before it, and after the
last one all sidecars and app containers run together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from contract.model import FREE, WHOLE, Allocation, PodRequest, Usage


@dataclass(frozen=True, slots=True)
class Demand:
    """What one pod takes of one GPU: bytes, percent of cores, and whether it needs the whole GPU."""

    memory: int
    cores: int
    exclusive: bool

    def added_to(self, usage: Usage) -> Usage:
        """The GPU's usage with this pod on it."""
        return Usage(
            usage.memory + self.memory,
            usage.cores + self.cores,
            usage.sharers + 1,
            usage.exclusive or self.exclusive,
        )

    def beside(self, other: Demand) -> Demand:
        """The demand of two users of one share: the larger amount of each."""
        return Demand(max(self.memory, other.memory), max(self.cores, other.cores), self.exclusive or other.exclusive)


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

    def start(self, memory: int, cores: int, *, init: bool, exclusive: bool) -> None:
        """Add the next container in start order; an init container ends before the one after it."""
        self.peak_memory = max(self.peak_memory, self.together_memory + memory)
        self.peak_cores = max(self.peak_cores, self.together_cores + cores)
        self.exclusive = self.exclusive or exclusive
        if not init:
            self.together_memory += memory
            self.together_cores += cores

    def copy(self) -> ConcurrentDemand:
        together = self.together_memory, self.together_cores
        return ConcurrentDemand(*together, self.peak_memory, self.peak_cores, self.exclusive)

    def demand(self) -> Demand:
        """The demand of the containers so far."""
        return Demand(self.peak_memory, self.peak_cores, self.exclusive)


def demands(request: PodRequest, allocation: Allocation) -> Mapping[str, Demand]:
    """What the pod takes, by GPU UUID. The allocation has the request's containers in their order."""
    if allocation.claim:
        return of_claim(allocation)
    placed = ((c.container, share.uuid, share.memory) for c in allocation.containers for share in c.shares)
    return per_gpu(request, placed)


def of_claim(allocation: Allocation) -> Mapping[str, Demand]:
    """
    What a claim's share takes, by GPU UUID.

    Every container may use all of it, so it counts once, whatever their number. A claim with all of a GPU's cores has
    the whole card.
    """
    shares = [share for container in allocation.containers for share in container.shares]
    return {s.uuid: Demand(s.memory, s.cores, s.cores >= WHOLE) for s in sorted(shares, key=lambda s: s.memory)}


def per_gpu(request: PodRequest, placed: Iterable[tuple[str, str, int]]) -> Mapping[str, Demand]:
    """What the pod takes, by GPU UUID. `placed`: (container, uuid, bytes) in the order of the request."""
    fractions = {fraction.container: fraction for fraction in request.containers}
    running: dict[str, ConcurrentDemand] = {}
    for container, uuid, memory in placed:
        fraction = fractions[container]
        gpu = running.setdefault(uuid, ConcurrentDemand())
        gpu.start(memory, fraction.cores, init=fraction.init, exclusive=fraction.exclusive)
    return {uuid: gpu.demand() for uuid, gpu in running.items()}
