"""
The trace with its own times: pods arrive, run, and end. Pods that find no room wait in the queue.

As recorded the cluster is almost empty, so it is made hot: every `THINNED`th node only, and all running times longer by
one factor, so that over the time in which pods come `OFFERED` times the cluster's cards are requested. A pod whose time
would be longer than that whole time runs that long. Waiting pods are tried oldest first whenever somebody came or left,
and every one that fits starts, as the allocator does it. The allocator's own rule reserves a node for a starving pod
(`allocator.queue.reservation`), with its defaults; each pod counts as a namespace of its own. Counted until the last
pod came: card hours served, and how long pods waited, where a pod that still waits has waited until then.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from allocator.cache.reserved import HeldNode, Requester
from allocator.queue.reservation import HoldingBudget, first_held, shortage
from allocator.scoring.classes import CARD
from allocator.settings import Settings
from benchmarks.placement.defragmenting import Defragmenter, Rules, Running, Waiting
from benchmarks.placement.trace import Machine, Task
from contract.model import NodeState, Usage
from contract.scheduling.filters import Limits
from contract.scheduling.needs import SchedulingRequest

THINNED = 10
OFFERED = 1.1


class Yard(Protocol):
    """A policy with a cluster from which pods can leave again."""

    def place(self, task: Task, uid: str = "") -> bool:
        """Put one pod somewhere; False if it fits nowhere that is open to it."""

    def last(self) -> object:
        """The input of `leave` for the pod that was placed last."""

    def leave(self, placed: object) -> None:
        """That pod has ended."""

    def states(self) -> Mapping[str, NodeState]:
        """The nodes as they are."""

    def reserve(self, reservation: HeldNode | None) -> None:
        """From now on this node is reserved, and no other."""

    def spare(self, cards: Collection[int]) -> None:
        """From now on pods wait for so many whole cards of one node each."""


@dataclass(frozen=True, slots=True)
class Stay:
    """A pod with the time when it comes and how long it runs, in seconds."""

    task: Task
    comes: int
    runs: float
    uid: str = ""
    moved: bool = False
    """It was evicted and comes again."""


@dataclass(frozen=True, slots=True)
class _Starving:
    ask: SchedulingRequest
    requester: Requester


class Guard:
    """Reserves nodes for starving pods by the allocator's rule: each pod is a namespace of its own."""

    def __init__(self, yard: Yard, limits: Limits, settings: Settings | None = None) -> None:
        settings = settings or Settings()
        self._yard = yard
        self._limits = limits
        self._after = settings.starvation_timeout
        self._budget = HoldingBudget(settings.starvation_reservation_limit)
        self._kept: HeldNode | None = None
        self._lacks: dict[SchedulingRequest, dict[str, tuple[NodeState, int | None]]] = {}
        self._asks: dict[Task, SchedulingRequest] = {}

    @property
    def reserved_for(self) -> str:
        """The uid of the pod for which a node is reserved; empty where there is none."""
        return self._kept.uid if self._kept is not None else ""

    @property
    def reserved_on(self) -> str:
        """The node that is reserved; empty where there is none."""
        return self._kept.node if self._kept is not None else ""

    def placed(self, uid: str) -> None:
        """The pod was placed."""
        if self._kept is not None and self._kept.uid == uid:
            self._budget.served(self._kept.namespace)
            self._kept = None
            self._yard.reserve(None)

    def idle(self, line: Sequence[Stay], now: float) -> bool:
        """
        Time has passed and nothing happened: choose again where the budget is used up, or a first pod starves now.

        True if that changed which node is reserved.
        """
        if self._kept is None:
            starves = any(now - stay.comes >= self._after for stay in line[:1])
            return starves and self.choose(line, now)
        self._budget.passes(self._kept.namespace, now)
        return not self._budget.allows(self._kept.namespace, now) and self.choose(line, now)

    def choose(self, line: Sequence[Stay], now: float) -> bool:
        """Choose the pod and the node of the reservation. True if they changed."""
        starving = (
            _Starving(self._ask(stay.task), Requester(stay.uid, 0, stay.uid))
            for stay in line
            if self._after and now - stay.comes >= self._after and self._budget.allows(stay.uid, now)
        )
        found = first_held(
            starving, self._yard.states(), self._limits, self._kept, held_by=_nothing, failed=_fail, lack=self._lack
        )
        changed, self._kept = found != self._kept, found
        self._budget.passes(found.namespace if found is not None else "", now)
        if changed:
            self._yard.reserve(found)
        return changed

    def _ask(self, task: Task) -> SchedulingRequest:
        if task not in self._asks:
            self._asks[task] = task.ask()
        return self._asks[task]

    def _lack(self, node: NodeState, ask: SchedulingRequest, limits: Limits) -> int | None:
        """`shortage`, remembered while the node does not change."""
        of_node = self._lacks.setdefault(ask, {})
        known = of_node.get(node.name)
        if known is None or known[0] is not node:
            known = of_node[node.name] = node, shortage(node, ask, limits)
        return known[1]


def _nothing(namespace: str) -> Mapping[str, Mapping[str, Usage]]:
    return {}


def _fail(pod: _Starving) -> None:
    raise


@dataclass(frozen=True, slots=True)
class Served:
    """The result of one policy: card hours until the last pod arrived, and pods' waits in hours."""

    hours: float
    offered: float
    mean_wait: float
    p95_wait: float
    lost: float = 0.0
    """Card hours that evicted pods computed in vain; not among those served."""
    evictions: int = 0


def heated(tasks: Sequence[Task], times: Sequence[tuple[int, int]], cards: int) -> list[Stay]:
    """
    The pods in the order in which they come, with times (creation, deletion) that make so many cards hot.

    The first twentieth of the pods came in a time ten times as long as all others and is left out.
    """
    order = sorted(range(len(tasks)), key=lambda at: (times[at][0], at))[len(tasks) // 20 :]
    first, last = times[order[0]][0], times[order[-1]][0]
    window = float(last - first)
    lengths = np.array([times[at][1] - times[at][0] for at in order], np.float64)
    volumes = np.array([tasks[at].volume / CARD for at in order])
    low, high = 1.0, 1e9
    for _ in range(60):  # the capped volume grows with the factor, so halving finds it
        factor = (low * high) ** 0.5
        asked = float((np.minimum(lengths * factor, window) * volumes).sum()) / window / cards
        low, high = (factor, high) if asked < OFFERED else (low, factor)
    runs = np.minimum(lengths * low, window)
    return [Stay(tasks[at], times[at][0] - first, float(run), f"pod-{at}") for at, run in zip(order, runs, strict=True)]


def thinned(machines: Sequence[Machine], rng: np.random.Generator) -> list[Machine]:
    """Every `THINNED`th node of a random order."""
    return [machines[int(at)] for at in rng.permutation(len(machines))[::THINNED]]


def live(
    yard: Yard, stays: Sequence[Stay], guard: Guard | None = None, defragmenter: Defragmenter | None = None
) -> Served:
    """Play it; without a guard nothing is reserved, without a defragmenter nobody is evicted."""
    play = _Play(yard, float(stays[-1].comes), guard, defragmenter)
    for stay in stays:
        play.until(stay.comes)
        play.come(stay)
    play.until(play.end)
    waits = [*play.waits, *(play.end - stay.comes for stay in play.line)]
    offered = sum(min(stay.runs, play.end - stay.comes) * stay.task.volume for stay in stays) / CARD / 3600
    moved = defragmenter.evictions if defragmenter is not None else 0
    in_hours = np.array(waits) / 3600
    return Served(play.hours, offered, float(in_hours.mean()), float(np.percentile(in_hours, 95)), play.lost, moved)


@dataclass(frozen=True, slots=True)
class _Runs:
    """A pod that runs."""

    stay: Stay
    since: float
    placed: object


class _Play:
    """One replay: the running and the waiting pods."""

    def __init__(self, yard: Yard, end: float, guard: Guard | None, defragmenter: Defragmenter | None) -> None:
        self.end = end
        self.hours = 0.0
        self.lost = 0.0
        self.line: list[Stay] = []
        self.waits: list[float] = []
        self._yard = yard
        self._guard = guard
        self._defragmenter = defragmenter
        self._running: dict[int, _Runs] = {}
        self._leaving: list[tuple[float, int]] = []
        self._started = 0
        self._look = defragmenter.rules.every if defragmenter is not None else float("inf")

    def until(self, time: float) -> None:
        """Everything that happens until then: pods leave, waiting ones start, and pods are moved."""
        while self._look <= time:
            assert self._defragmenter is not None
            self._departures(self._look)
            self._move(self._defragmenter, self._look)
            self._look += self._defragmenter.rules.every
        self._departures(time)

    def come(self, stay: Stay) -> None:
        """A pod comes, and starts if it fits."""
        if not self._start(stay, stay.comes):
            self.line.append(stay)
            self._tell()

    def _departures(self, time: float) -> None:
        while self._leaving and self._leaving[0][0] <= time:
            now, number = self._leaving[0]
            if number not in self._running:
                heapq.heappop(self._leaving)  # it was evicted
                continue
            self._time_passed(now)
            while self._leaving and self._leaving[0][0] == now:
                ended = self._running.pop(heapq.heappop(self._leaving)[1], None)
                if ended is not None:
                    self._yard.leave(ended.placed)
            self._pass(now)
        self._time_passed(time)

    def _time_passed(self, now: float) -> None:
        if self._guard is not None and self._guard.idle(self.line, now):
            self._pass(now)

    def _start(self, stay: Stay, now: float) -> bool:
        if not self._yard.place(stay.task, stay.uid):
            return False
        if not stay.moved:
            self.waits.append(now - stay.comes)
        self._started += 1
        self._running[self._started] = _Runs(stay, now, self._yard.last())
        heapq.heappush(self._leaving, (now + stay.runs, self._started))
        self.hours += min(stay.runs, self.end - now) * stay.task.volume / CARD / 3600
        if self._guard is not None:
            self._guard.placed(stay.uid)
        return True

    def _move(self, defragmenter: Defragmenter, now: float) -> None:
        """Evict pods so that others start, as long as the defragmenter finds some."""
        while True:
            kept = self._guard.reserved_on if self._guard is not None else ""
            nodes = {name: node for name, node in self._yard.states().items() if name != kept}
            running = {each.stay.uid: (number, each) for number, each in self._running.items()}
            there = [
                Running(uid, each.stay.task, placed, each.since)
                for uid, (_, each) in running.items()
                if isinstance(placed := each.placed, tuple) and placed[1].node in nodes
            ]
            waiting = [Waiting(stay.uid, stay.task, stay.comes) for stay in self.line]
            move = defragmenter.look(nodes, there, waiting, now) if self.line else None
            if move is None:
                return
            evicted = [self._evict(running[uid][0], now, defragmenter.rules) for uid in move.victims]
            self.line = [stay for stay in self.line if stay.uid != move.uid or not self._start(stay, now)]
            for stay in sorted(evicted, key=lambda stay: -stay.task.volume):
                if not self._start(stay, now):
                    self.line.insert(0, stay)

    def _evict(self, number: int, now: float, rules: Rules) -> Stay:
        """The pod as it comes again."""
        ended = self._running.pop(number)
        self._yard.leave(ended.placed)
        stay, done = ended.stay, now - ended.since
        card_hours = stay.task.volume / CARD / 3600
        self.hours -= (min(stay.runs, self.end - ended.since) - done) * card_hours
        if rules.starts_over:
            self.hours -= done * card_hours
            self.lost += done * card_hours
        return replace(stay, runs=stay.runs if rules.starts_over else stay.runs - done, moved=True)

    def _pass(self, now: float) -> None:
        """Down the queue, again if that changed for which pod a node is reserved."""
        while True:
            self._once(now)
            if self._guard is None or not self._guard.choose(self.line, now):
                return

    def _once(self, now: float) -> None:
        """Down the queue once; room only shrinks meanwhile, so what did not fit once is not tried again."""
        failed: set[Task] = set()
        waiting = []
        for stay in self.line:
            own = self._guard is not None and stay.uid == self._guard.reserved_for
            if (stay.task in failed and not own) or not self._start(stay, now):
                failed.add(stay.task)
                waiting.append(stay)
        self.line = waiting
        self._tell()

    def _tell(self) -> None:
        """Give the policy the waiting pods; the allocator's policy gets them from the queue."""
        self._yard.spare({stay.task.cards for stay in self.line if stay.task.parts == CARD})
