"""What other schedulers do by default: which node and which card each rule chooses."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from allocator.scoring import tables
from allocator.scoring.classes import supply_of
from benchmarks.placement.peers import PEERS, Peer, feasible_nodes
from benchmarks.placement.replaying import LIMITS
from contract.encoding.quantity import GIB
from contract.model import Compute, FractionRequest, Gpu, NodeState, PodRequest, Usage, Wishes
from contract.scheduling.needs import PodNeeds, SchedulingRequest


@dataclass(frozen=True, slots=True)
class Asked:
    """A pod with this percentage of a card, 0 for a pod without a GPU, and thousandths of a CPU."""

    percent: int
    cpu: int = 1000
    model: str = ""

    @property
    def volume(self) -> int:
        return 10 * self.percent

    def ask(self) -> SchedulingRequest:
        wishes = Wishes(use_models=(self.model,) if self.model else ())
        whole = self.percent == 100
        share = FractionRequest("main", percent=self.percent, cores=self.percent, exclusive=whole, wishes=wishes)
        request = PodRequest("any", (share,) if self.percent else ())
        return SchedulingRequest(request, PodNeeds(Compute(self.cpu, self.cpu * GIB // 1000, 0, 1)))


def _nodes(*cards: int, model: str = "T4") -> list[NodeState]:
    return [
        NodeState(
            f"n{number}",
            tuple(Gpu(f"GPU-{number}-{at}", at, model, 16 * GIB, 16 * GIB) for at in range(count)),
            (Usage(),) * count,
            allocatable=Compute(32_000, 32 * GIB, 0, 100),
        )
        for number, count in enumerate(cards)
    ]


def _peer(name: str, nodes: list[NodeState]) -> Peer:
    supply = supply_of({node.name: node for node in nodes}, LIMITS)
    measure = tables.fragmentation({}, supply)
    return Peer(PEERS[name], nodes, np.random.default_rng(1), measure=measure)


def _free(peer: Peer) -> list[list[int]]:
    """The free percentage of each existing card, by node."""
    cards = peer.cards
    return [
        [int(free) for free, there in zip(*row, strict=True) if there]
        for row in zip(cards.free_cores, cards.exists, strict=True)
    ]


RULES = {
    "DRA takes the node with most CPU, and the first card": ("dra", (50, 50, 30), [[50, 100], [20, 100]]),
    "packed it takes the node with least": ("dra-packed", (50, 50, 30), [[0, 70], [100, 100]]),
    "HAMi takes the fullest node, and the emptiest card": ("hami-default", (50, 30, 10), [[50, 60], [100, 100]]),
    "KAI goes where a card is shared, and fills that card": ("kai-default", (50, 30, 10), [[10, 100], [100, 100]]),
    "KAI puts whole cards where fewest are free": ("kai-default", (50, 100, 100), [[50, 0], [0, 100]]),
}  # fmt: skip


@pytest.mark.parametrize(("name", "percents", "want"), RULES.values(), ids=RULES.keys())
def test_where_pods_go(name: str, percents: tuple[int, ...], want: list[list[int]]) -> None:
    """The choice among equal nodes is random, so the nodes are compared without their order."""
    peer = _peer(name, _nodes(2, 2))
    assert all(peer.place(Asked(percent)) for percent in percents)
    assert sorted(_free(peer)) == sorted(want)


@pytest.mark.parametrize("name", PEERS)
def test_what_fits_nowhere_is_refused(name: str) -> None:
    peer = _peer(name, _nodes(1, 1))
    assert not peer.place(Asked(10, model="A100"))
    assert not peer.place(Asked(10, cpu=33_000))
    assert peer.place(Asked(100))
    assert peer.place(Asked(60))
    assert not peer.place(Asked(50))
    assert peer.place(Asked(0)), "a pod without a GPU takes CPU only"


def test_kube_scheduler_looks_at_a_part_of_many_nodes() -> None:
    assert [feasible_nodes(number) for number in (20, 100, 1213, 10_000)] == [20, 100, 497, 500]
