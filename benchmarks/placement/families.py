"""
Made-up clusters and demands that look like none of the trace: what a policy must also hold on.

Each family says which nodes there are and what one pod asks for, drawn at random: cards of four memory sizes with
shares in bytes, whole cards only, tiny shares only, shares whose memory and cores disagree, and nodes short of CPU.
Arrivals are drawn until 130% of the cards were asked for, as in the trace's protocol. Sizes are what `kinds.Demanded`
says, on average over the cluster's cards; a card counts by its memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from allocator.scoring.classes import CARD, Supply, demanded, supply_of
from benchmarks.placement.replaying import LIMITS
from benchmarks.placement.trace import INFLATED_TO
from contract.encoding.quantity import GIB
from contract.model import Compute, FractionRequest, Gpu, NodeState, PodRequest, Usage, Wishes
from contract.scheduling.needs import PodNeeds, SchedulingRequest

_PLENTY = Compute(cpu=10**9, memory=1 << 60, pods=10**6)


@dataclass(frozen=True, slots=True)
class Drawn:
    """A pod of a family, for `replaying.run`: `volume` in parts of cards by what they count, on average."""

    request: PodRequest
    cpu: int
    volume: int

    def ask(self) -> SchedulingRequest:
        """The request as the allocator gets it."""
        return SchedulingRequest(self.request, PodNeeds(Compute(cpu=self.cpu, pods=1)))


@dataclass(frozen=True, slots=True)
class Family:
    """`nodes` gives (model, GiB of a card, cards, CPU in thousandths or 0 for plenty, how many of these nodes)."""

    nodes: Sequence[tuple[str, int, int, int, int]]
    draw: Callable[[np.random.Generator], tuple[FractionRequest, int]]
    """One pod: its request and its CPU in thousandths."""


def _pick(rng: np.random.Generator, *amounts: int) -> int:
    return int(amounts[int(rng.integers(len(amounts)))])


def _whole(count: int = 1) -> FractionRequest:
    return FractionRequest("main", count, percent=100, cores=100, exclusive=True)


def _bytes(rng: np.random.Generator) -> tuple[FractionRequest, int]:
    if rng.random() < 0.2:
        return _whole(), 8000
    size = _pick(rng, 2, 4, 5, 6, 8, 10, 12, 14, 18, 20, 24, 30, 36)
    wishes = Wishes(use_models=("A100",)) if rng.random() < 0.1 else Wishes()
    return FractionRequest("main", memory=size * GIB, cores=_pick(rng, 0, 0, 10, 20), wishes=wishes), 2000


def _cards(rng: np.random.Generator) -> tuple[FractionRequest, int]:
    return _whole(_pick(rng, 1, 1, 1, 1, 1, 1, 2, 2, 4, 8)), 4000


def _tiny(rng: np.random.Generator) -> tuple[FractionRequest, int]:
    return FractionRequest("main", percent=_pick(rng, 3, 7, 9, 12, 13, 15), cores=0), 1000


def _two_sided(rng: np.random.Generator) -> tuple[FractionRequest, int]:
    memory, cores = ((60, 10), (10, 60), (45, 30), (30, 45), (55, 55), (25, 10))[int(rng.integers(6))]
    return FractionRequest("main", percent=memory, cores=cores), 1000


def _short_of_cpu(rng: np.random.Generator) -> tuple[FractionRequest, int]:
    if rng.random() < 0.4:
        return _whole(), _pick(rng, 4000, 10_000, 24_000)
    share = _pick(rng, 20, 30, 45, 60)
    return FractionRequest("main", percent=share, cores=share), _pick(rng, 1000, 4000, 8000)


FAMILIES: Mapping[str, Family] = {
    "mixed-memory": Family(
        (("T4", 15, 4, 0, 40), ("A10", 22, 4, 0, 40), ("A100-40", 39, 8, 0, 20), ("A100-80", 79, 8, 0, 20)), _bytes
    ),
    "whole-only": Family((("A100", 79, 8, 0, 80), ("T4", 15, 4, 0, 20)), _cards),
    "tiny-only": Family((("T4", 15, 4, 0, 40),), _tiny),
    "two-sided": Family((("A100", 79, 8, 0, 60),), _two_sided),
    "short-of-cpu": Family((("A100", 79, 8, 96_000, 60), ("T4", 15, 4, 64_000, 30)), _short_of_cpu),
}


def nodes(family: Family, rng: np.random.Generator) -> list[NodeState]:
    """The empty nodes, under names in random order."""
    made = [(model, size, cards, cpu) for model, size, cards, cpu, times in family.nodes for _ in range(times)]
    names = [f"node-{int(number):05d}" for number in rng.permutation(len(made))]
    return [
        NodeState(
            name,
            tuple(Gpu(f"GPU-{name}-{at}", at, model, size * GIB, size * GIB) for at in range(cards)),
            (Usage(),) * cards,
            allocatable=Compute(cpu, _PLENTY.memory, 0, _PLENTY.pods) if cpu else _PLENTY,
        )
        for name, (model, size, cards, cpu) in zip(names, made, strict=True)
    ]


def supply(states: Sequence[NodeState]) -> Supply:
    """What these nodes have."""
    return supply_of({state.name: state for state in states}, LIMITS)


def arrivals(family: Family, of: Supply, rng: np.random.Generator) -> list[Drawn]:
    """The pods of one run in their order."""
    drawn: list[Drawn] = []
    total, bound = 0, INFLATED_TO * capacity(of)
    while total <= bound:
        fraction, cpu = family.draw(rng)
        request = PodRequest("family", (fraction,))
        (each,) = demanded(request, cpu)
        sizes = [
            (each.size_on(kind) * counts(kind.capacity), stock.cards)
            for kind, stock in of.stocks.items()
            if each.accepts(kind) and each.size_on(kind) <= CARD
        ]
        part = sum(size * cards for size, cards in sizes) // sum(cards for _, cards in sizes)
        drawn.append(Drawn(request, cpu, part * fraction.count))
        total += drawn[-1].volume
    return drawn


def counts(memory: int) -> int:
    """What a part of a card counts: cards count by their memory, in GiB."""
    return memory // GIB


def capacity(of: Supply) -> int:
    """Parts of all cards, by what they count."""
    return sum(stock.cards * CARD * counts(kind.capacity) for kind, stock in of.stocks.items())
