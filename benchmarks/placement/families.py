"""
Synthetic clusters and demands that differ from the trace, on which a policy must also work well.

Each family defines the nodes and the request of one pod, drawn at random: cards of four memory sizes with
shares in bytes, the same with whole cards and CPU, whole cards only, tiny shares only, shares whose memory and cores
disagree, nodes short of CPU, demands of which few or many pods name models, nodes of all sizes whose pods of several
cards come last, and the cluster shapes and demands that people report: nodes at the edge, slices, training jobs, a
fleet of inference services.
Arrivals are drawn until 130% of the cards were requested, as in the trace's protocol. Sizes are what
`classes.Demanded` says, on average over the cluster's cards; a card counts by its memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from allocator.scoring.classes import CARD, Demanded, Kind, Supply, demanded, supply_of
from benchmarks.placement.replaying import LIMITS
from benchmarks.placement.trace import INFLATED_TO
from contract.encoding.quantity import GIB
from contract.model import WHOLE, Compute, FractionRequest, Gpu, NodeState, PodRequest, Usage, Wishes
from contract.scheduling.needs import PodNeeds, SchedulingRequest

_PLENTY = 128_000
"""Thousandths of CPU for each card where there is plenty."""
_PER_CPU = 4 * GIB // 1000
"""Bytes of the node's memory for each thousandth of CPU, of nodes and pods alike: neither is short alone."""
_PODS = 10**6


@dataclass(frozen=True, slots=True)
class Drawn:
    """A pod of a family, for `replaying.run`: `volume` in parts of cards by what they count, on average."""

    request: PodRequest
    cpu: int
    volume: int

    @property
    def cards(self) -> int:
        """How many cards it asks for."""
        return self.request.containers[0].count

    def ask(self) -> SchedulingRequest:
        """The request as the allocator gets it."""
        return SchedulingRequest(self.request, PodNeeds(Compute(self.cpu, self.cpu * _PER_CPU, 0, 1)))


@dataclass(frozen=True, slots=True)
class Family:
    """`nodes` gives (model, GiB of a card, cards, CPU in thousandths or 0 for plenty, how many of these nodes)."""

    nodes: Sequence[tuple[str, int, int, int, int]]
    draw: Callable[[np.random.Generator], tuple[FractionRequest, int]]
    """One pod: its request and its CPU in thousandths."""
    late: int = 0
    """Pods of more cards than this come after all others; 0 where pods come as they are drawn."""
    by_sides: bool = False
    """Whether a share counts by the mean of its memory and its cores, and not by the larger of them."""


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


def _nodes_of_all_sizes(rng: np.random.Generator) -> tuple[FractionRequest, int]:
    if rng.random() < 0.75:
        share = _pick(rng, 15, 20, 30, 45, 50, 70)
        return FractionRequest("main", percent=share, cores=share), _pick(rng, 1000, 2000, 4000)
    return _whole(_pick(rng, 1, 1, 1, 1, 2, 4, 8)), 6000


def _few_name_models(rng: np.random.Generator) -> tuple[FractionRequest, int]:
    wishes = Wishes(use_models=(("V100",), ("T4",), ("V100", "T4"))[int(rng.integers(3))])
    wishes = wishes if rng.random() < 0.08 else Wishes()
    if rng.random() < 0.65:
        share = _pick(rng, 20, 25, 30, 40, 50, 60, 80)
        return FractionRequest("main", percent=share, cores=share, wishes=wishes), _pick(rng, 2000, 4000, 8000)
    count = _pick(rng, 1, 1, 1, 1, 1, 1, 1, 1, 2, 8)
    return replace(_whole(count), wishes=wishes if count == 1 else Wishes()), 8000 * count


def _memory_by_sizes(rng: np.random.Generator) -> tuple[FractionRequest, int]:
    if rng.random() < 0.3:
        return _whole(_pick(rng, 1, 1, 1, 1, 1, 1, 2, 4)), 6000
    size = _pick(rng, 3, 4, 6, 7, 9, 11, 13, 15, 16, 20, 22, 30, 38)
    return FractionRequest("main", memory=size * GIB, cores=_pick(rng, 0, 10, 20, 30)), _pick(rng, 2000, 4000)


def _pairs_before_whole_nodes(rng: np.random.Generator) -> tuple[FractionRequest, int]:
    if rng.random() < 0.6:
        share = _pick(rng, 25, 50, 75)
        return FractionRequest("main", percent=share, cores=share), 4000
    count = _pick(rng, 1, 1, 1, 2, 4, 8)
    return _whole(count), 4000 * count


def _busy_shares_before_whole_nodes(rng: np.random.Generator) -> tuple[FractionRequest, int]:
    if rng.random() < 0.6:
        share = _pick(rng, 25, 50, 75)
        return FractionRequest("main", percent=share, cores=share), _pick(rng, 4000, 16_000)
    count = _pick(rng, 1, 1, 1, 1, 4, 8)
    return _whole(count), 3000 * count


def _at_the_edge(rng: np.random.Generator) -> tuple[FractionRequest, int]:
    if rng.random() < 0.8:
        share = _pick(rng, 10, 15, 20, 25, 30, 40, 50, 60)
        return FractionRequest("main", percent=share, cores=share), _pick(rng, 500, 1000, 2000)
    count = _pick(rng, 1, 1, 1, 2)
    return _whole(count), 3000 * count


def _slices(rng: np.random.Generator) -> tuple[FractionRequest, int]:
    profiles = ((12, 14), (25, 28), (50, 42), (50, 42), (50, 57), (50, 57), (100, 100))
    memory, cores = profiles[int(rng.integers(len(profiles)))]
    if memory == 100:
        return _whole(_pick(rng, 1, 1, 1, 1, 2, 4)), 8000
    return FractionRequest("main", percent=memory, cores=cores), _pick(rng, 2000, 4000)


def _two_sides_apart(rng: np.random.Generator) -> tuple[FractionRequest, int]:
    sides = ((70, 10), (70, 10), (10, 70), (10, 70), (30, 10), (10, 30), (30, 30))
    memory, cores = sides[int(rng.integers(len(sides)))]
    return FractionRequest("main", percent=memory, cores=cores), 1000


def _many_name_models(rng: np.random.Generator) -> tuple[FractionRequest, int]:
    named = (("T4",), ("V100",), ("A100",), ("T4", "V100"), ("V100", "A100"))[int(rng.integers(5))]
    wishes = Wishes(use_models=named) if rng.random() < 0.3 else Wishes()
    if rng.random() < 0.6:
        share = _pick(rng, 20, 25, 30, 40, 50, 60, 80)
        return FractionRequest("main", percent=share, cores=share, wishes=wishes), _pick(rng, 2000, 4000)
    count = _pick(rng, 1, 1, 1, 1, 1, 1, 1, 2, 2, 8)
    return replace(_whole(count), wishes=wishes if count == 1 else Wishes()), 4000 * count


def _training_jobs(rng: np.random.Generator) -> tuple[FractionRequest, int]:
    count = int(rng.choice((1, 2, 4, 8), p=(0.84, 0.06, 0.05, 0.05)))
    return _whole(count), _pick(rng, 2000, 4000, 6000) * count


def _inference_services(rng: np.random.Generator) -> tuple[FractionRequest, int]:
    drawn = rng.random()
    if drawn < 0.75:
        size = _pick(rng, 3, 5, 8, 10, 16, 18, 20, 24, 32, 40)
        return FractionRequest("main", memory=size * GIB, cores=_pick(rng, 0, 0, 10, 20)), _pick(rng, 1000, 2000)
    count = _pick(rng, 1, 1, 1, 2, 2, 4, 8)
    return _whole(count), 4000 * count


def _tasks_short_of_cpu(rng: np.random.Generator) -> tuple[FractionRequest, int]:
    share = int(rng.choice((10, 25, 50, 100), p=(0.15, 0.35, 0.2, 0.3)))
    cpu = _pick(rng, 4000, 6000, 6000, 8000, 12_000)
    if share == 100:
        count = _pick(rng, 1, 1, 1, 1, 1, 1, 1, 2)
        return _whole(count), cpu * count
    return FractionRequest("main", percent=share, cores=share), cpu


_OF_ALL_SIZES = (
    ("T4", 15, 1, 16_000, 60),
    ("T4", 15, 2, 32_000, 60),
    ("A10", 22, 4, 64_000, 40),
    ("A100", 39, 8, 128_000, 40),
)

FAMILIES: Mapping[str, Family] = {
    "mixed-memory": Family(
        (("T4", 15, 4, 0, 40), ("A10", 22, 4, 0, 40), ("A100-40", 39, 8, 0, 20), ("A100-80", 79, 8, 0, 20)), _bytes
    ),
    "whole-only": Family((("A100", 79, 8, 0, 80), ("T4", 15, 4, 0, 20)), _cards),
    "tiny-only": Family((("T4", 15, 4, 0, 40),), _tiny),
    "two-sided": Family((("A100", 79, 8, 0, 60),), _two_sided),
    "late-mixed-sizes": Family(
        tuple(("A10", 22, cards, 0, nodes) for cards, nodes in ((1, 40), (2, 60), (4, 30), (8, 30))),
        _nodes_of_all_sizes,
        late=1,
    ),
    "late-mixed-kinds": Family(
        (("T4", 15, 1, 0, 40), ("T4", 15, 2, 0, 60), ("V100", 32, 4, 0, 30), ("A100", 39, 8, 0, 30)),
        _nodes_of_all_sizes,
        late=1,
    ),
    "few-name-models": Family(
        (("T4", 15, 2, 64_000, 60), ("V100", 15, 4, 64_000, 30), ("A100", 15, 8, 96_000, 40)), _few_name_models
    ),
    "mixed-memory-whole": Family(
        (
            ("A10", 23, 2, 64_000, 40),
            ("V100", 31, 4, 64_000, 30),
            ("A100", 39, 8, 128_000, 20),
            ("H", 79, 8, 128_000, 20),
        ),
        _memory_by_sizes,
    ),
    "short-of-cpu": Family((("A100", 79, 8, 96_000, 60), ("T4", 15, 4, 64_000, 30)), _short_of_cpu),
    "late-alike": Family((("A100", 79, 8, 128_000, 200),), _busy_shares_before_whole_nodes, late=1),
    "late-alike-pairs": Family((("A100", 79, 8, 128_000, 200),), _pairs_before_whole_nodes, late=2),
    "late-mixed": Family(_OF_ALL_SIZES, _busy_shares_before_whole_nodes, late=1),
    "late-mixed-pairs": Family(_OF_ALL_SIZES, _pairs_before_whole_nodes, late=2),
    "edge": Family((("L4", 22, 1, 32_000, 200), ("L4", 22, 2, 48_000, 150)), _at_the_edge),
    "slices": Family((("A100", 79, 8, 128_000, 60),), _slices),
    "two-sided-apart": Family((("A100", 79, 8, 0, 40),), _two_sides_apart, by_sides=True),
    "name-models": Family(
        (("T4", 15, 2, 64_000, 60), ("V100", 15, 4, 64_000, 30), ("A100", 15, 8, 96_000, 40)), _many_name_models
    ),
    "training": Family((("P100", 11, 2, 24_000, 160), ("P40", 22, 8, 96_000, 115)), _training_jobs),
    "inference": Family(
        (("L40S", 44, 4, 64_000, 60), ("A100", 79, 8, 128_000, 40), ("H100", 79, 8, 192_000, 20)), _inference_services
    ),
    "tasks-short-of-cpu": Family(
        (("T4", 15, 2, 96_000, 60), ("P100", 15, 2, 64_000, 80), ("V100", 31, 8, 96_000, 40)), _tasks_short_of_cpu
    ),
}
"""
`late-alike` and `late-mixed`: large pods that nothing announced, after shares with much CPU and single cards, on nodes
that are alike and on mixed nodes; with `-pairs` after shares, single cards and pairs. `edge`: nodes of one or two
cards. `slices`: shares in the sizes of MIG's profiles. `two-sided-apart`: shares that take much of one side of a card
and little of the other. `name-models`: a third of the pods names models. `training`: whole cards in the sizes of jobs
that the Philly trace reports, mostly one card. `inference`: services in bytes, and a few of several cards.
`tasks-short-of-cpu`: shares in the sizes of the PAI trace, with more CPU than the nodes have alongside their cards.
"""


def nodes(family: Family, rng: np.random.Generator) -> list[NodeState]:
    """The empty nodes, under names in random order."""
    made = [
        (model, size, cards, cpu or _PLENTY * cards)
        for model, size, cards, cpu, times in family.nodes
        for _ in range(times)
    ]
    names = [f"node-{int(number):05d}" for number in rng.permutation(len(made))]
    return [
        NodeState(
            name,
            tuple(Gpu(f"GPU-{name}-{at}", at, model, size * GIB, size * GIB) for at in range(cards)),
            (Usage(),) * cards,
            allocatable=Compute(cpu, cpu * _PER_CPU, 0, _PODS),
        )
        for name, (model, size, cards, cpu) in zip(names, made, strict=True)
    ]


def supply(states: Sequence[NodeState]) -> Supply:
    """The capacity of these nodes."""
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
            (_part(family, each, kind) * counts(kind.capacity), stock.cards)
            for kind, stock in of.stocks.items()
            if each.accepts(kind) and each.size_on(kind) <= CARD
        ]
        part = sum(size * cards for size, cards in sizes) // sum(cards for _, cards in sizes)
        drawn.append(Drawn(request, cpu, part * fraction.count))
        total += drawn[-1].volume
    return sorted(drawn, key=lambda pod: pod.cards > family.late) if family.late else drawn


def _part(family: Family, each: Demanded, kind: Kind) -> int:
    if each.exclusive or not family.by_sides:
        return each.size_on(kind)
    return (each.percent + each.cores) * CARD // WHOLE // 2


def counts(memory: int) -> int:
    """The weight of a part of a card: cards count by their memory, in GiB."""
    return memory // GIB


def capacity(of: Supply) -> int:
    """Parts of all cards, by what they count."""
    return sum(stock.cards * CARD * counts(kind.capacity) for kind, stock in of.stocks.items())
