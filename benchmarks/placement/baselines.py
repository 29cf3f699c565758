"""
The rules of other schedulers, implemented on plain arrays, with which ours are compared.

`random`, `best-fit`, `dot-product`, `packing` and `clustering` as in the published comparison, with their whole-number
scores from 0 to 100 and ties to the first node of the run's random order; a shared card is the one with the least
sufficient remainder. `hami` is the rule of HAMi's scheduler with nodes and cards packed, for all pods: cards by what is
used of them, nodes by what was used before the pod came, ties at random. By default HAMi spreads over cards
(`benchmarks.placement.peers`). None of them is part of the product.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from allocator.cache.reserved import HeldNode
from allocator.scoring.classes import CARD, Kind, Supply
from allocator.scoring.tables import Tables
from benchmarks.placement.trace import Machine, Task
from contract.encoding.quantity import MIB
from contract.model import Compute, NodeState, Usage

Longs = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.floating[Any]]
Score = Callable[["Cluster", Task, Longs], npt.NDArray[Any]]
"""(cluster, task, rows that take it) -> a score for each row; the largest wins, the first of equals."""

_MOST_CPU, _MOST_PARTS = 128_000, 8_000
"""The largest node of the trace, by which the published scores are scaled."""


class Cluster:
    """The nodes of a run in its random order, and their free capacity."""

    def __init__(self, machines: Sequence[Machine], rng: np.random.Generator) -> None:
        width = max(machine.cards for machine in machines)
        self.cpu = np.array([machine.cpu for machine in machines], np.int64)
        self.memory = np.array([machine.memory for machine in machines], np.int64)
        self.cards = np.array([machine.cards for machine in machines], np.int64)
        self.models = np.array([machine.model for machine in machines])
        self.free: Longs = np.where(np.arange(width) < self.cards[:, None], CARD, 0)
        self.exists = self.free > 0
        self.sharers: Longs = np.zeros_like(self.free)
        self.classes: Longs = np.zeros((len(machines), 5), np.int64)
        """Pods per node by size: part of a card, 1, 2, 4, 8 cards."""
        self.rng = rng

    def fitting(self, task: Task) -> Longs:
        """Rows that take the task."""
        able: Flags = (self.cpu >= task.cpu) & (self.memory >= task.memory)
        if task.cards:
            able &= (self.free >= task.parts).sum(axis=1) >= task.cards
            if task.models:
                able &= np.isin(self.models, task.models)
        return np.flatnonzero(able)

    def take(self, task: Task, row: int, cards: Sequence[int]) -> None:
        """Book it."""
        self.cpu[row] -= task.cpu
        self.memory[row] -= task.memory
        for card in cards:
            self.free[row, card] -= task.parts
            self.sharers[row, card] += 1
        if task.cards:
            self.classes[row, _class(task)] += 1

    def state(self, row: int, machine: Machine) -> NodeState:
        """The node as the allocator would know it; `machine` is the node without pods."""
        empty, parts = machine.state(name_of(row)), self.free[row, : machine.cards].tolist()
        sharers = self.sharers[row, : machine.cards].tolist()
        usage = tuple(
            Usage((CARD - free) * MIB, (CARD - free) // 10, number, exclusive=number == 1 and not free)
            for free, number in zip(parts, sharers, strict=True)
        )
        cpu, memory = machine.cpu - int(self.cpu[row]), (machine.memory - int(self.memory[row])) * MIB
        return replace(empty, usage=usage, requested=Compute(cpu, memory, 0, sum(sharers)))

    def give_back(self, task: Task, row: int, cards: Sequence[int]) -> None:
        """Take the booking off again."""
        self.cpu[row] += task.cpu
        self.memory[row] += task.memory
        for card in cards:
            self.free[row, card] += task.parts
            self.sharers[row, card] -= 1
        if task.cards:
            self.classes[row, _class(task)] -= 1


def name_of(row: int) -> str:
    """The name of the node in this row of the run's random order."""
    return f"node-{row:05d}"


def _class(task: Task) -> int:
    return 0 if task.parts < CARD else min(4, 1 + (task.cards - 1).bit_length())


def _random(cluster: Cluster, task: Task, rows: Longs) -> npt.NDArray[Any]:
    return cluster.rng.random(len(rows))


def _best_fit(cluster: Cluster, task: Task, rows: Longs) -> npt.NDArray[Any]:
    cpu, free = cluster.cpu[rows] - task.cpu, cluster.free[rows].sum(axis=1) - task.volume
    score: Longs = (100 * (1 - (cpu / _MOST_CPU + free / _MOST_PARTS) / 2)).astype(np.int64)
    return score


def _dot_product(cluster: Cluster, task: Task, rows: Longs) -> npt.NDArray[Any]:
    by_cpu = cluster.cpu[rows] / _MOST_CPU * (task.cpu / _MOST_CPU)
    by_gpu = cluster.free[rows].sum(axis=1) / _MOST_PARTS * (task.volume / _MOST_PARTS)
    score: Longs = (100 * (1 - (by_cpu + by_gpu) / 2)).astype(np.int64)
    return score


def _packing(cluster: Cluster, task: Task, rows: Longs) -> npt.NDArray[Any]:
    free = cluster.free[rows]
    if not task.cards:
        return np.zeros(len(rows), np.int64)
    idle = (free == CARD).sum(axis=1)
    shared = ((free >= task.parts) & (free < CARD)).sum(axis=1) >= task.cards
    on_shared = np.maximum(50, 100 - (free * 100 // CARD).sum(axis=1) // 10)
    on_idle = np.maximum(33, 50 - idle)
    untouched = np.maximum(33 - cluster.cards[rows], cluster.cards[rows])
    return np.where(shared, on_shared, np.where(idle < cluster.cards[rows], on_idle, untouched))


def _clustering(cluster: Cluster, task: Task, rows: Longs) -> npt.NDArray[Any]:
    if not task.cards:
        return np.zeros(len(rows), np.int64)
    hosted = cluster.classes[rows] > 0
    same, kinds = hosted[:, _class(task)], hosted.sum(axis=1)
    base = np.where(same & (kinds == 1), 75, np.where(same, 50, np.where(kinds == 0, 25, 0)))
    score: Longs = base + 25 * (_MOST_PARTS - cluster.free[rows].sum(axis=1)) // _MOST_PARTS
    return score


def _hami(cluster: Cluster, task: Task, rows: Longs) -> npt.NDArray[Any]:
    """
    Ten times the used parts of slots, cores and memory over those that the node has, before this pod.

    Here a share takes one of a card's ten slots, HAMi's default; cores and memory are the same by the trace. The slots
    are scored only: if they also limited, small shares would find no room and the comparison would be unfair.
    """
    total = cluster.cards[rows] * CARD
    used = (total - cluster.free[rows].sum(axis=1)) / total
    slots = cluster.sharers[rows].sum(axis=1) / (10 * cluster.cards[rows])
    score: Floats = slots + 2 * used + cluster.rng.random(len(rows)) * 1e-9
    return score


SCORES: Mapping[str, Score] = {
    "random": _random,
    "best-fit": _best_fit,
    "dot-product": _dot_product,
    "packing": _packing,
    "clustering": _clustering,
    "hami": _hami,
}


class Baseline:
    """A chooser that follows one of these rules."""

    def __init__(
        self,
        policy: str,
        machines: Sequence[Machine],
        rng: np.random.Generator,
        *,
        measure: Tables,
        supply: Supply,
        clock: Callable[[], float] = time.process_time,
    ) -> None:
        order = rng.permutation(len(machines))
        self._policy = policy
        self._measure = measure
        self._clock = clock
        self._machines = [machines[int(at)] for at in order]
        self._cluster = Cluster(self._machines, rng)
        self._reserved: HeldNode | None = None
        self._states: dict[str, NodeState] = {}
        self._changed = set(range(len(machines)))
        self._row_of = {name_of(row): row for row in range(len(machines))}
        self._kind_of = {kind.model: measure.kinds.get(Kind(*kind), 0) for kind in supply.stocks}
        self.deciding = 0.0
        self._last: tuple[Task, int, list[int]] = (Task(0, 0, 0, 0), 0, [])

    def place(self, task: Task, uid: str = "") -> bool:
        """One decision, booked."""
        before = self._clock()
        cluster = self._cluster
        rows = cluster.fitting(task)
        if self._reserved is not None:
            here = self._row_of[self._reserved.node]
            own = uid == self._reserved.uid and here in rows
            rows = rows[rows == here] if own else rows[rows != here]
        if not len(rows):
            self.deciding += self._clock() - before
            return False
        row = int(rows[SCORES[self._policy](cluster, task, rows).argmax()])
        cards = self._cards(row, task)
        self.deciding += self._clock() - before
        cluster.take(task, row, cards)
        self._changed.add(row)
        self._last = task, row, cards
        return True

    def states(self) -> Mapping[str, NodeState]:
        """The nodes as they are."""
        for row in self._changed:
            state = self._cluster.state(row, self._machines[row])
            self._states[state.name] = state
        self._changed.clear()
        return self._states

    def reserve(self, reservation: HeldNode | None) -> None:
        """From now on this node is reserved, and no other."""
        self._reserved = reservation

    def spare(self, cards: Collection[int]) -> None:
        """These policies ignore the waiting pods."""

    def last(self) -> tuple[Task, int, list[int]]:
        """The input of `leave` for the pod that was placed last."""
        return self._last

    def leave(self, placed: object) -> None:
        """That pod has ended."""
        assert isinstance(placed, tuple)
        self._cluster.give_back(*placed)
        self._changed.add(placed[1])

    def _cards(self, row: int, task: Task) -> list[int]:
        free = self._cluster.free[row]
        able = [card for card in range(len(free)) if task.cards and free[card] >= task.parts]
        if self._policy == "random":
            return [int(card) for card in self._cluster.rng.permutation(able)[: task.cards]]
        if self._policy == "hami":  # the most used first, by slots, cores and memory
            able.sort(key=lambda card: 2 * int(free[card]) - CARD // 10 * int(self._cluster.sharers[row, card]))
        else:
            able.sort(key=lambda card: int(free[card]))
        return able[: task.cards]

    def fragments(self) -> float:
        """By the measure that was given."""
        cluster, measure = self._cluster, self._measure
        kinds = np.array([self._kind_of[str(model)] for model in cluster.models])
        step = np.searchsorted(measure.cpu_steps, cluster.cpu, side="right")
        usable = measure.single[kinds[:, None], step[:, None], cluster.free].sum(axis=1)
        usable += measure.several[kinds, step, (cluster.free == CARD).sum(axis=1)]
        lost = cluster.free.sum(axis=1) * measure.weight - usable
        return float(lost.sum() / measure.weight / CARD)
