"""
Sizes of requests and remainders of cards on one scale, although a share has two sides.

A card counts `CARD` (1000). A share is as large as its larger side, of memory or of cores; what is left of a card is
what is left on its scarcer side. Both are rounded down, so that a rest that just fits a share counts as fitting. So a
card has no room for a third share of 40% memory and 10% cores, nor for a second one of 10% memory and 60% cores: both
limits are seen. Where the sides disagree this judges a card to hold too little. The real remainder after a placement is
computed from bytes and percent, not from sizes, so errors do not accumulate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from contract.model import MOST_GPUS, WHOLE, FractionRequest, Gpu, NodeState, PodRequest, Usage
from contract.scheduling import fit
from contract.scheduling.filters import Limits

CARD = 1000
"""A whole card."""
SIDE = 101
"""Amounts of one side of a card that are told apart where both sides count: 0 to 100 percent."""
_PER_PERCENT = CARD // WHOLE


class Kind(NamedTuple):
    """
    Cards that are alike; all in bytes. `capacity` is what they may promise, so with oversubscription; `memory` is the
    whole card's, which only wishes ask about.
    """

    model: str
    usable: int
    capacity: int
    memory: int


def kind_of(gpu: Gpu, limits: Limits) -> Kind:
    """The kind of one GPU."""
    return Kind(gpu.model, gpu.usable, limits.capacity(gpu), gpu.memory)


@dataclass(frozen=True, slots=True)
class Demanded:
    """
    One container's request as the policies distinguish requests: what it takes of each of `count` cards, and `cpu`
    (thousandths) of the node in all. `count` 0 is a pod that takes CPU only.
    """

    cpu: int
    count: int = 1
    memory: int = 0
    percent: int = 0
    cores: int = 0
    exclusive: bool = False
    use_models: tuple[str, ...] = ()
    avoid_models: tuple[str, ...] = ()
    least_memory: int = 0

    def size_on(self, kind: Kind) -> int:
        """The part of one card of this kind that it takes; more than `CARD` if it cannot be there."""
        if self.exclusive:
            return CARD
        return max(*self._sides(kind), 1)

    def sides_on(self, kind: Kind) -> tuple[int, int]:
        """The memory and the cores that it takes of one card of this kind, in percent, rounded up."""
        if self.exclusive:
            return WHOLE, WHOLE
        by_memory, by_cores = self._sides(kind)
        return -(-by_memory // _PER_PERCENT), -(-by_cores // _PER_PERCENT)

    def _sides(self, kind: Kind) -> tuple[int, int]:
        wanted = self.memory or kind.usable * self.percent // WHOLE
        by_memory = wanted * CARD // kind.capacity if kind.capacity else CARD + 1
        return by_memory, self.cores * CARD // WHOLE

    def accepts(self, kind: Kind) -> bool:
        """Whether such a card is wished for: the rule of `filters.kind_accepted`."""
        if kind.memory < self.least_memory:
            return False
        lowered = kind.model.lower()
        if self.use_models and not any(word.lower() in lowered for word in self.use_models):
            return False
        return not any(word.lower() in lowered for word in self.avoid_models)


def demanded(request: PodRequest, cpu: int) -> Iterator[Demanded]:
    """
    The classes of request that a pod represents: one per container, or one for containers that may share their GPUs.

    `cpu` is the pod's, in thousandths.
    """
    if not request.containers:
        yield Demanded(cpu, 0)
        return
    together = request.same_gpus or fit.joined(request) is not None
    fractions = (fit.combined(request),) if together else request.containers
    lasting = [fraction for fraction in fractions if not fraction.init] or list(fractions)
    for fraction in lasting:
        yield of_fraction(fraction, cpu // len(lasting))


def of_fraction(fraction: FractionRequest, cpu: int) -> Demanded:
    """The class of one container's request."""
    return Demanded(
        cpu,
        fraction.count,
        fraction.memory,
        0 if fraction.memory else fraction.percent,
        fraction.cores,
        fraction.exclusive,
        fraction.wishes.use_models,
        fraction.wishes.avoid_models,
        fraction.wishes.least_memory,
    )


def remainder(gpu: Gpu, usage: Usage, limits: Limits) -> int:
    """The rest of a card for other pods: 0 if it takes no more pods."""
    if not gpu.healthy or usage.exclusive or usage.sharers >= limits.sharers(gpu):
        return 0
    return left(limits.capacity(gpu), usage.memory, usage.cores)


def left(capacity: int, memory: int, cores: int) -> int:
    """The remainder of a card of this many bytes with these bytes and percent of cores used."""
    return max(0, min(sides_left(capacity, memory, cores)))


def sides_left(capacity: int, memory: int, cores: int) -> tuple[int, int]:
    """The remainder of each side, memory and cores, of such a card."""
    by_memory = (capacity - memory) * CARD // capacity if capacity else 0
    return by_memory, (WHOLE - cores) * CARD // WHOLE


def place(by_memory: int, by_cores: int) -> int:
    """The place, in a table by both sides, of a card with this much left; 0 if nothing is left of a side."""
    if min(by_memory, by_cores) <= 0:
        return 0
    return by_memory // _PER_PERCENT * SIDE + by_cores // _PER_PERCENT


def card_place(gpu: Gpu, usage: Usage, limits: Limits) -> int:
    """`place` of one card: 0 if it takes no more pods."""
    if not remainder(gpu, usage, limits):
        return 0
    return place(*sides_left(limits.capacity(gpu), usage.memory, usage.cores))


@dataclass(frozen=True, slots=True)
class Stock:
    """
    How many cards there are of one kind, the CPU (thousandths) of the largest node that has them, how many thousandths
    of the cards are taken, and the cards of the node that has most.
    """

    cards: int
    cpu: int
    taken: int = 0
    together: int = MOST_GPUS

    @property
    def free(self) -> int:
        """Thousandths of cards that are not taken."""
        return self.cards * CARD - self.taken


@dataclass(frozen=True, slots=True)
class Supply:
    """
    What the cluster has in total. `cpu` in thousandths, of the nodes with GPUs, including what is taken; `largest` is
    the number of cards of the node that has most.
    """

    stocks: Mapping[Kind, Stock]
    cpu: int
    largest: int = 0

    @property
    def cards(self) -> int:
        """All cards."""
        return sum(stock.cards for stock in self.stocks.values())

    @property
    def free(self) -> int:
        """Thousandths of all cards that are not taken."""
        return sum(stock.free for stock in self.stocks.values())

    @property
    def capacity(self) -> int:
        """Bytes of all cards."""
        return sum(kind.capacity * stock.cards for kind, stock in self.stocks.items())


def supply_of(nodes: Mapping[str, NodeState], limits: Limits) -> Supply:
    """The amounts of these nodes."""
    found: dict[Kind, tuple[int, int, int, int]] = {}
    cpu = largest = 0
    for node in nodes.values():
        here, largest = node.allocatable.cpu, max(largest, len(node.gpus))
        if node.gpus:
            cpu += here
        for gpu, usage in zip(node.gpus, node.usage, strict=True):
            kind = kind_of(gpu, limits)
            cards, most, taken, together = found.get(kind, (0, 0, 0, 0))
            taken += CARD - remainder(gpu, usage, limits)
            found[kind] = cards + 1, max(most, here), taken, max(together, len(node.gpus))
    return Supply({kind: Stock(*amounts) for kind, amounts in found.items()}, cpu, largest)
