"""
The default placement of GPU shares by other schedulers, implemented on plain arrays. None is part of the product.

`dra` and `dra-packed`: kube-scheduler with consumable capacity of devices. Kubernetes' default profile scores
`NodeResourcesFit` by `LeastAllocated` and `NodeResourcesBalancedAllocation`, each with weight 1, over CPU and memory
(pkg/scheduler/apis/config/v1/default_plugins.go; the scores in pkg/scheduler/framework/plugins/noderesources/:
`leastRequestedScore` in least_allocated.go, `mostRequestedScore` in most_allocated.go, `balancedResourceScorer` in
balanced_allocation.go). `dra-packed` is the same with `MostAllocated`. GPUs have no say in either. A search ends at
`numFeasibleNodesToFind` nodes that fit (pkg/scheduler/schedule_one.go), and goes on from there next time. The device is
the first that has the capacity, in the order of the slice (`allocateOne`, allocator_*.go of
staging/src/k8s.io/dynamic-resource-allocation/structured/internal).

`hami-default`: HAMi at 4707fb0. Nodes by what was used of slots, cores and memory before the pod, most first
(`ComputeDefaultScore`, pkg/scheduler/policy/node_policy.go:106); cards by the same, least first, which is the chart's
default (`gpuSchedulerPolicy: spread`, charts/hami/values.yaml:78; `Less`, pkg/scheduler/policy/gpu_policy.go:77; `Fit`
walks from the tail, pkg/device/nvidia/device.go:727). Pods without GPUs are kube-scheduler's. Slots, ten for each card,
are scored only: if they also limited, small shares would find no room.

`kai-default`: KAI-Scheduler at 72de64f. A share goes to a node where a card that is shared already has room
(pkg/scheduler/plugins/gpusharingorder/gpusharingorder.go, 1000 points), then every pod to the node with the fewest free
cards (pkg/scheduler/plugins/nodeplacement/pack.go, 9 points), a pod without GPUs to the one with the least free CPU.
The card is the one of which most is used (pkg/scheduler/plugins/gpupack/gpupack.go).

Ties are at random everywhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from allocator.scoring.classes import CARD, kind_of, of_fraction
from allocator.scoring.tables import Tables
from benchmarks.placement.replaying import LIMITS, Pod
from contract.encoding.quantity import MIB
from contract.model import WHOLE, Gpu, NodeState

Longs = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

_SLOTS = 10
"""Pods that share a card at most by HAMi's defaults."""
_LEAST_CPU, _LEAST_MEMORY = 100, 200 * MIB
"""The request that kube-scheduler's scores assume where a pod has none (pkg/scheduler/util/pod_resources.go)."""
_NODES_AT_LEAST, _PERCENT_AT_LEAST = 100, 5


@dataclass(frozen=True, slots=True)
class Wanted:
    """One pod's request. By node: bytes of each card, and whether its cards are accepted. `count` 0: no GPU."""

    cpu: int
    memory: int
    count: int
    bytes: Longs
    cores: int
    whole: bool
    accepted: Flags


class Cards:
    """The nodes, and the free capacity of them and of each of their cards."""

    def __init__(self, nodes: Sequence[NodeState]) -> None:
        width = max(len(node.gpus) for node in nodes)
        self.gpus: list[Gpu | None] = [node.gpus[0] if node.gpus else None for node in nodes]
        self.number: Longs = np.array([len(node.gpus) for node in nodes], np.int64)
        self.usable: Longs = np.array([gpu.usable if gpu else 1 for gpu in self.gpus], np.int64)
        self.exists: Flags = np.arange(width) < self.number[:, None]
        self.free: Longs = np.where(self.exists, self.usable[:, None], 0)
        self.free_cores: Longs = np.where(self.exists, WHOLE, 0)
        self.sharers: Longs = np.zeros_like(self.free)
        self.cpus: Longs = np.array([node.allocatable.cpu for node in nodes], np.int64)
        self.memories: Longs = np.array([node.allocatable.memory for node in nodes], np.int64)
        self.cpu, self.memory = self.cpus.copy(), self.memories.copy()

    def wanted(self, pod: Pod) -> Wanted:
        """A pod's request here."""
        ask = pod.ask()
        compute, nothing = ask.needs.compute, np.zeros(len(self.number), np.int64)
        if not ask.request.containers:
            return Wanted(compute.cpu, compute.memory, 0, nothing, 0, False, nothing == 0)
        (fraction,) = ask.request.containers
        kinds = [None if gpu is None else kind_of(gpu, LIMITS) for gpu in self.gpus]
        by_kind = {kind: of_fraction(fraction, compute.cpu).accepts(kind) for kind in set(kinds) if kind is not None}
        return Wanted(
            compute.cpu,
            compute.memory,
            fraction.count,
            np.array([fraction.memory_on(int(usable)) for usable in self.usable], np.int64),
            fraction.cores,
            fraction.exclusive,
            np.array([kind is not None and by_kind[kind] for kind in kinds]),
        )

    def bearing(self, wanted: Wanted) -> Flags:
        """Which cards take the share."""
        bears: Flags = self.exists & (self.free >= wanted.bytes[:, None]) & (self.free_cores >= wanted.cores)
        return bears & (self.sharers == 0) if wanted.whole else bears

    def take(self, wanted: Wanted, row: int, cards: Sequence[int]) -> None:
        """Book it."""
        self.cpu[row] -= wanted.cpu
        self.memory[row] -= wanted.memory
        for card in cards:
            self.free[row, card] = 0 if wanted.whole else self.free[row, card] - wanted.bytes[row]
            self.free_cores[row, card] = 0 if wanted.whole else self.free_cores[row, card] - wanted.cores
            self.sharers[row, card] += 1


Rows = Callable[[Cards, Wanted, Longs], Floats]
"""The score of each of these rows; the largest wins."""
Order = Callable[[Cards, Wanted, int], Longs]
"""The cards of a row in the order in which they are tried."""


def _kube(cards: Cards, wanted: Wanted, rows: Longs, *, packed: bool = False) -> Floats:
    cpu, memory = max(wanted.cpu, _LEAST_CPU), max(wanted.memory, _LEAST_MEMORY)
    used = np.stack([cards.cpus[rows] - cards.cpu[rows] + cpu, cards.memories[rows] - cards.memory[rows] + memory])
    total = np.maximum(np.stack([cards.cpus[rows], cards.memories[rows]]), 1)
    part = np.minimum(used / total, 1.0)
    by_fit = np.floor(100 * (part if packed else 1 - part)).sum(axis=0) // 2
    score: Floats = by_fit + np.floor(100 * (1 - np.abs(part[0] - part[1]) / 2))
    return score


def _packed(cards: Cards, wanted: Wanted, rows: Longs) -> Floats:
    return _kube(cards, wanted, rows, packed=True)


def _hami(cards: Cards, wanted: Wanted, rows: Longs) -> Floats:
    if not wanted.count:
        return _kube(cards, wanted, rows)
    number = cards.number[rows]
    memory = 1 - cards.free[rows].sum(axis=1) / (number * cards.usable[rows])
    cores = 1 - cards.free_cores[rows].sum(axis=1) / (number * WHOLE)
    score: Floats = cards.sharers[rows].sum(axis=1) / (number * _SLOTS) + cores + memory
    return score


def _kai(cards: Cards, wanted: Wanted, rows: Longs) -> Floats:
    if not wanted.count:
        return -cards.cpu[rows].astype(np.float64)
    idle = (cards.exists & (cards.sharers == 0))[rows].sum(axis=1)
    shared = (cards.bearing(wanted) & (cards.sharers > 0))[rows].any(axis=1) & (not wanted.whole)
    span = max(1, int(idle.max() - idle.min()))
    score: Floats = 1000.0 * shared + 9 * (1 - (idle - idle.min()) / span)
    return score


def _first(cards: Cards, wanted: Wanted, row: int) -> Longs:
    return np.arange(cards.free.shape[1])


def _used(cards: Cards, row: int) -> Floats:
    used: Floats = 1 - cards.free[row] / cards.usable[row]
    return used


def _least_used(cards: Cards, wanted: Wanted, row: int) -> Longs:
    score = cards.sharers[row] / _SLOTS + _used(cards, row) - cards.free_cores[row] / WHOLE
    return np.argsort(score, kind="stable")


def _most_used(cards: Cards, wanted: Wanted, row: int) -> Longs:
    return np.argsort(-_used(cards, row), kind="stable")


@dataclass(frozen=True, slots=True)
class Rule:
    """How a peer chooses. `stops`: whether kube-scheduler's search, which ends early, finds the nodes."""

    rows: Rows
    cards: Order
    stops: Callable[[Wanted], bool]


PEERS = {
    "dra": Rule(_kube, _first, lambda wanted: True),
    "dra-packed": Rule(_packed, _first, lambda wanted: True),
    "hami-default": Rule(_hami, _least_used, lambda wanted: not wanted.count),
    "kai-default": Rule(_kai, _most_used, lambda wanted: False),
}
"""By name; the module says what each follows."""


class Peer:
    """A chooser that follows one of these rules."""

    def __init__(
        self,
        rule: Rule,
        nodes: Sequence[NodeState],
        rng: np.random.Generator,
        *,
        measure: Tables,
        clock: Callable[[], float] = time.process_time,
    ) -> None:
        self._rule = rule
        self.cards = Cards(nodes)
        self._rng = rng
        self._measure = measure
        self._clock = clock
        self._wanted: dict[Pod, Wanted] = {}
        self._start = 0
        self.deciding = 0.0

    def place(self, pod: Pod) -> bool:
        """One decision, booked."""
        wanted = self._wanted.get(pod)
        if wanted is None:
            wanted = self._wanted[pod] = self.cards.wanted(pod)
        before = self._clock()
        bears = self.cards.bearing(wanted)
        rows = self._found(wanted, bears)
        if not len(rows):
            self.deciding += self._clock() - before
            return False
        score = self._rule.rows(self.cards, wanted, rows)
        row = int(self._rng.choice(rows[score >= score.max() - 1e-9]))
        order = self._rule.cards(self.cards, wanted, row)
        self.deciding += self._clock() - before
        self.cards.take(wanted, row, [int(card) for card in order if bears[row, card]][: wanted.count])
        return True

    def _found(self, wanted: Wanted, bears: Flags) -> Longs:
        cards = self.cards
        able = (cards.cpu >= wanted.cpu) & (cards.memory >= wanted.memory)
        if wanted.count:
            able &= wanted.accepted & (bears.sum(axis=1) >= wanted.count)
        if not self._rule.stops(wanted):
            return np.flatnonzero(able)
        number = len(able)
        order = (self._start + np.arange(number)) % number
        found = np.flatnonzero(able[order])[: feasible_nodes(number)]
        seen = int(found[-1]) + 1 if len(found) == feasible_nodes(number) else number
        self._start = (self._start + seen) % number
        rows: Longs = order[found]
        return rows

    def fragments(self) -> float:
        """By the measure that was given."""
        cards, measure = self.cards, self._measure
        kinds = np.array([0 if gpu is None else measure.kinds.get(kind_of(gpu, LIMITS), 0) for gpu in cards.gpus])
        step = np.searchsorted(measure.cpu_steps, cards.cpu, side="right")
        by_memory = cards.free * CARD // cards.usable[:, None]
        left = np.maximum(np.minimum(by_memory, cards.free_cores * CARD // WHOLE), 0)
        usable = measure.single[kinds[:, None], step[:, None], left].sum(axis=1)
        usable += measure.several[kinds, step, (left == CARD).sum(axis=1)]
        lost = left.sum(axis=1) * measure.weight - usable
        return float(lost.sum() / measure.weight / CARD)


def feasible_nodes(number: int) -> int:
    """The number of nodes that fit after which kube-scheduler stops its search, of so many nodes."""
    if number < _NODES_AT_LEAST:
        return number
    percent = max(50 - number // 125, _PERCENT_AT_LEAST)
    return max(number * percent // 100, _NODES_AT_LEAST)
