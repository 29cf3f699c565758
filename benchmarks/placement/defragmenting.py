"""
Defragmentation in the replay with departures: running pods are evicted so that a larger one that waits may start.

The allocator's own plan (`allocator.features.defragmentation.moves`) over the replay's states. It is kinder than
a cluster: an evicted pod ends, is created again and starts elsewhere within the same second.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from allocator.engine.reference import Placement
from allocator.features.defragmentation import moves as defragmentation
from allocator.features.defragmentation.moves import HOUR, Larger, Movable, MoveBudget
from allocator.preemption.planner import PreemptionRequest
from allocator.scoring.classes import CARD
from benchmarks.placement.trace import Task
from contract.model import NodeState
from contract.scheduling.demand import per_gpu, shares_of
from contract.scheduling.filters import Limits
from contract.scheduling.needs import SchedulingRequest
from contract.scheduling.nodeinfo import AllocatedPod

ENDLESS = float("inf")


@dataclass(frozen=True, slots=True)
class Rules:
    """
    When pods may be evicted. `every`: seconds between two looks. `an_hour`: evictions at most. `youngest`: a pod that
    has run for longer stays. `rest`: seconds for which an evicted pod is not evicted again. `worth`: the evicted pods'
    work since they started is at most this many times the work that the waiting pod has missed. `starts_over`: an
    evicted pod loses its work; else it goes on where it was.
    """

    an_hour: int
    every: float = HOUR
    youngest: float = ENDLESS
    rest: float = 24 * HOUR
    worth: float = 1.0
    starts_over: bool = True


NOBODY_MOVES = "off"
_WORDS = {"kept": {"starts_over": False}, "any": {"worth": ENDLESS}}


def rules_of(text: str) -> Rules | None:
    """
    The rules that a text means: evictions an hour, then any of `kept` (evicted pods go on where they were), `any`
    (however much work is lost), `<hours>h` (only pods that have run for so long at most) and `x<worth>`, with colons;
    None for `off`. Raises `ValueError`.
    """
    if text == NOBODY_MOVES:
        return None
    an_hour, *words = text.split(":")
    rules = Rules(int(an_hour))
    for word in words:
        if word in _WORDS:
            rules = replace(rules, **_WORDS[word])  # type: ignore[arg-type]
        elif word.startswith("x"):
            rules = replace(rules, worth=float(word[1:]))
        else:
            rules = replace(rules, youngest=float(word.removesuffix("h")) * HOUR)
    return rules


@dataclass(frozen=True, slots=True)
class Running:
    """A running pod, with its place and its start."""

    uid: str
    task: Task
    placed: tuple[SchedulingRequest, Placement]
    since: float

    def holds(self) -> AllocatedPod:
        """The pod as the planner knows those that hold shares."""
        ask, found = self.placed
        demands = per_gpu(ask.request, shares_of(found.containers))
        return AllocatedPod(self.uid, self.uid, found.node, 0, int(self.since), demands, ask.needs.compute)


@dataclass(frozen=True, slots=True)
class Waiting:
    """A pod that waits, since when."""

    uid: str
    task: Task
    since: float


@dataclass(frozen=True, slots=True)
class Moved:
    """The pod that starts, and the pods to evict for it."""

    uid: str
    victims: tuple[str, ...]


class Defragmenter:
    """Looks for moves, by the rules. One replay has one."""

    def __init__(self, rules: Rules, limits: Limits) -> None:
        self.rules = rules
        self._limits = limits
        self._budget = MoveBudget(rules.an_hour, rules.rest)
        self._asks: dict[Task, SchedulingRequest] = {}
        self.moves = self.evictions = 0

    def look(
        self, nodes: Mapping[str, NodeState], running: Collection[Running], line: Sequence[Waiting], now: float
    ) -> Moved | None:
        """The first move that the rules allow now, counted as done; None where there is none."""
        found = self._first(nodes, running, line, now) if self._budget.left(now) else None
        if found is not None:
            self._budget.count(found.victims, now)
            self.moves = self.moves + 1
            self.evictions = self.evictions + len(found.victims)
        return found

    def _first(
        self, nodes: Mapping[str, NodeState], running: Collection[Running], line: Sequence[Waiting], now: float
    ) -> Moved | None:
        sharers: dict[str, list[AllocatedPod]] = {}
        for pod in running:
            sharers.setdefault(pod.placed[1].node, []).append(pod.holds())
        movable = {
            pod.uid: Movable(pod.placed[0], pod.task.volume / CARD, (now - pod.since) * pod.task.volume / CARD)
            for pod in running
            if pod.task.cards and now - pod.since <= self.rules.youngest and not self._budget.rests(pod.uid, now)
        }
        failed, homes = set[Task](), dict[defragmentation.Home, bool]()
        for waiting in line:
            if waiting.task in failed or not waiting.task.cards:
                continue
            cards = waiting.task.volume / CARD
            larger = Larger(
                PreemptionRequest(self._ask(waiting.task), 0, self._limits),
                cards,
                # 0 times an endless worth would be no number.
                self.rules.worth * max(cards * (now - waiting.since), 1e-9),
                self._budget.left(now),
            )
            found = defragmentation.choose(list(nodes.values()), sharers, larger, movable, homes)
            if found is not None:
                return Moved(waiting.uid, tuple(victim.uid for victim in found.plan.victims))
            failed.add(waiting.task)
        return None

    def _ask(self, task: Task) -> SchedulingRequest:
        if task not in self._asks:
            self._asks[task] = task.ask()
        return self._asks[task]
