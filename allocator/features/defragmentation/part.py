"""
The feature's part of the core: small pods of namespaces that agreed to it are evicted, so that a larger pod starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from allocator.cache.reserved import HeldNode
from allocator.features.defragmentation import moves
from allocator.features.defragmentation.moves import Home, Larger, Movable, Move, MoveBudget
from allocator.features.defragmentation.settings import DefragmentationSettings
from allocator.preemption import tracker
from allocator.preemption.planner import PreemptionRequest
from allocator.queue.queue import QueuedPodInfo
from allocator.queue.records import Eviction
from allocator.scheduler.parts import Core, FeaturePart, Search
from contract.model import NodeState
from contract.scheduling.needs import SchedulingRequest
from contract.scheduling.nodeinfo import AllocatedPod

_TRIES = 4
"""Pods for which a move is looked for at a time; each costs a look at many nodes."""


@dataclass(frozen=True, slots=True)
class MoveSearch:
    """The search for pods that may move, over frozen values: it may run without the lock."""

    waiting: tuple[tuple[QueuedPodInfo, Larger], ...]
    """Pods that wait, the one that has missed most work first."""
    nodes: tuple[NodeState, ...]
    open_to: Mapping[str, frozenset[str]]
    """Names of the nodes that are not reserved for another pod, by the uid of the pod that waits."""
    sharers: Mapping[str, tuple[AllocatedPod, ...]]
    movable: Mapping[str, Movable]
    homes: dict[Home, bool] = field(default_factory=dict)
    """Whether a node has room for such a pod, where that was asked."""

    def run(self, entry: QueuedPodInfo, larger: Larger) -> Move | None:
        """The move that lets one of them start."""
        nodes = [node for node in self.nodes if node.name in self.open_to[entry.uid]]
        return moves.choose(nodes, self.sharers, larger, self.movable, self.homes)


@dataclass(frozen=True, slots=True)
class DefragmentationAgreed:
    """All namespaces that agreed to have pods evicted so that larger ones start."""

    namespaces: frozenset[str]


@dataclass(frozen=True, slots=True)
class SearchForOne:
    """The search for one of the pods that wait."""

    defragmenter: Defragmenter
    search: MoveSearch
    pod: QueuedPodInfo
    larger: Larger

    def run(self) -> Callable[[], list[Eviction] | None]:
        """Search without the lock."""
        move = self.search.run(self.pod, self.larger)
        return lambda: self.defragmenter.conclude(self.pod, self.larger, move) or None if move is not None else None


class Defragmenter:
    """Moves small pods of namespaces that agreed to it, so that a larger pod starts."""

    def __init__(
        self,
        core: Core,
        settings: DefragmentationSettings,
    ) -> None:
        state = core.state
        self._cache = state.cache
        self._queue = state.queue
        self._records = state.records
        self._leadership = state.leadership
        self._order = state.order
        self._trigger = state.trigger
        self._preemptor = core.preemptor
        self._clock = core.clock
        self._wall = core.wall
        self._budget = MoveBudget(settings.evictions_per_hour, settings.rest)
        self._agreed = frozenset[str]()
        self._every = settings.interval
        self._next = float("-inf")

    def part(self) -> FeaturePart:
        """What it adds to the core."""
        return FeaturePart(handlers={DefragmentationAgreed: self.agreed}, searches=self.searches, evicted=self._evicted)

    def searches(self) -> Iterable[Search]:
        """One search for each pod of the search that is worth its time now."""
        search = self.search()
        return [SearchForOne(self, search, *each) for each in search.waiting] if search is not None else []

    def _evicted(self, order: Eviction, owner: str, now: float) -> None:
        if order.cause == moves.DEFRAGMENTATION.name:
            self._budget.count([owner], now)

    def agreed(self, event: DefragmentationAgreed, now: float) -> None:
        """Namespaces agreed, or no longer agree."""
        self._agreed = event.namespaces

    def search(self) -> MoveSearch | None:
        """The search that is worth its time now; None if no pod may move or none waits that it may help."""
        now = self._clock()
        if not self._agreed or now < self._next or not self._budget.left(now) or not self._leadership.holds():
            return None
        if not len(self._queue):
            return None
        self._next = now + self._every
        kept = self._preemptor.kept_for_patience()
        waiting = self._waiting(kept, now)
        if not waiting:
            return None
        sharers = self._cache.allocated.by_node()
        nodes = tuple(self._preemptor.as_planned(sharers))
        movable = {uid: pod for node in nodes for uid, pod in self._movable(node, sharers.get(node.name, ()), now)}
        open_to = {
            entry.uid: frozenset(node.name for node in nodes if not tracker.closed_to(kept, node.name, entry))
            - self._cache.refused_by_others(entry.ask, entry.requester).keys()
            for entry, _ in waiting
        }
        return MoveSearch(waiting, nodes, open_to, sharers, movable) if movable else None

    def conclude(self, entry: QueuedPodInfo, larger: Larger, move: Move) -> list[Eviction]:
        """The victims of a finished search, checked against the present; none if it no longer holds."""
        now = self._clock()
        waits = self._queue.pod(entry.uid) == entry and self._records.is_schedulable(entry.uid, now)
        if not waits or not self._leadership.holds():
            return []
        sharers = {name: self._cache.allocated.on(name) for name in {move.plan.node, *move.places.values()}}
        nodes = {node.name: node for node in self._preemptor.as_planned(sharers) if node.name in sharers}
        node = nodes.get(move.plan.node)
        there = sharers[move.plan.node]
        movable = dict(self._movable(node, there, now)) if node is not None else {}
        found = moves.again(move, nodes, there, larger, movable)
        return self._preemptor.begin(entry, found.plan, moves.DEFRAGMENTATION) if found is not None else []

    def _waiting(self, kept: Sequence[HeldNode], now: float) -> tuple[tuple[QueuedPodInfo, Larger], ...]:
        """The few pods that have missed most work by waiting."""
        usable = max((gpu.usable for node in self._cache.snapshot.values() for gpu in node.gpus), default=0)
        if not usable or self._trigger.requeued:
            return ()
        limits, most = self._cache.engine.limits, self._budget.left(now)
        neighbours, holders = self._cache.neighbours, self._cache.allocated.uids()
        found = []
        for entry in self._order.in_order():
            if tracker.wanted(entry, kept) and self._may_be_helped(entry, now):
                cards = moves.cards_of(entry.ask.request, usable)
                could = cards * (now - self._records.waits(entry.uid, now))
                needed = neighbours.attracted_by(entry.rules, holders)
                question = PreemptionRequest(entry.ask, entry.priority, limits, needed=needed)
                found.append((entry, Larger(question, cards, could, most)))
        found.sort(key=lambda each: -each[1].could)
        return tuple(each for each in found[:_TRIES] if self._preemptor.has_no_room(each[0]))

    def _may_be_helped(self, entry: QueuedPodInfo, now: float) -> bool:
        return self._records.is_schedulable(entry.uid, now) and self._preemptor.preemptions.may_plan(entry.uid, now)

    def _movable(self, node: NodeState, on: Sequence[AllocatedPod], now: float) -> Iterator[tuple[str, Movable]]:
        spared, wall = self._preemptor.preemptions.spared(now), self._wall()
        for pod in on:
            agreed = pod.key.split("/", 1)[0] in self._agreed
            if pod.successor is None or not agreed or pod.uid in spared or self._budget.rests(pod.owner, now):
                continue
            cards = moves.held(pod, node)
            work = cards * max(1.0, moves.age(pod.created, wall))
            yield pod.uid, Movable(pod.successor, cards, work, self._refused_elsewhere(pod, pod.successor))

    def _refused_elsewhere(self, pod: AllocatedPod, successor: SchedulingRequest) -> frozenset[str]:
        """The nodes that other pods refuse for the pod's successor; a pod with rules of its own has none."""
        neighbours, rules = self._cache.neighbours, self._cache.neighbours.rules_of(pod.uid)
        if not neighbours.concerns(rules):
            return frozenset()
        return frozenset(neighbours.refused(rules, successor.needs, self._cache.snapshot.values()))
