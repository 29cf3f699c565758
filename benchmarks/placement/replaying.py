"""
One run: passes the arrivals to a chooser one after another, and records the allocated part of the GPUs at each load.

`Engines` is the chooser that drives the production engine. A request that was refused once is not tried again in the
same run: no pod ends, so no room becomes free, and equal requests have equal results.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from allocator.cache import reserved
from allocator.cache.reserved import HeldNode, Requester
from allocator.engine.engine import Engine
from allocator.engine.reference import Placement, Policy
from allocator.scoring import estimator, reference
from allocator.scoring.classes import CARD, Demanded, supply_of
from allocator.scoring.tables import Tables
from contract.model import Compute, NodeState, PodRequest, Usage
from contract.scheduling import nodeinfo
from contract.scheduling.filters import Limits
from contract.scheduling.needs import SchedulingRequest

LIMITS = Limits(max_sharers=CARD)
LOADS = (80, 90, 95, 100, 130)
_LOOK_EVERY = 64
"""Requests between two looks at how full the cluster is."""


class Pod(Hashable, Protocol):
    """An arrival. Equal ones have the same request."""

    @property
    def volume(self) -> int:
        """Parts of cards in all."""

    def ask(self) -> SchedulingRequest:
        """The request as the allocator gets it."""


Arriving = TypeVar("Arriving", bound=Pod, contravariant=True)


class Chooser(Protocol[Arriving]):
    """A policy with the cluster that it fills."""

    deciding: float
    """Seconds of processor time spent in decisions."""

    def place(self, pod: Arriving) -> bool:
        """Put one pod somewhere; False if it fits nowhere."""

    def fragments(self) -> float:
        """The cluster's fragmentation now, in cards (see `policies.tables`)."""


@dataclass(frozen=True, slots=True)
class Run:
    """The result of one run. `curve[load]` is the allocated part in percent at each percent of load that arrived."""

    curve: Mapping[int, float]
    unallocated: float
    """Cards not given away when load 100 had arrived."""
    fragmented: float
    """Fragmentation then, in percent of the cluster's cards."""
    decisions: int
    seconds: float
    """Of processor time, spent in decisions; other work of the machine does not count."""


def run(chooser: Chooser[Arriving], arriving: Sequence[Arriving], capacity: int) -> Run:
    """Replay; `capacity` in parts of cards."""
    arrived = used = decisions = 0
    sums: dict[int, list[float]] = {}
    refused: set[Arriving] = set()
    unallocated, fragmented = None, 0.0
    for pod in arriving:
        arrived += pod.volume
        if pod not in refused:
            decisions += 1
            if chooser.place(pod):
                used += pod.volume
            else:
                refused.add(pod)
        load = round(100 * arrived / capacity)
        at_load = sums.setdefault(load, [0.0, 0.0])
        at_load[0] += 1
        at_load[1] += round(100 * used / capacity, 2)
        if load >= 100 and unallocated is None:
            unallocated, fragmented = (capacity - used) / CARD, 100 * CARD * chooser.fragments() / capacity
    curve = {load: total / count for load, (count, total) in sums.items()}
    return Run(curve, unallocated or 0.0, fragmented, decisions, chooser.deciding)


class Watched(Protocol):
    """The input of a policy: the demand, learnt or given."""

    def see(self, request: PodRequest, cpu: int) -> bool:
        """The request of a new pod. True if new tables are due."""

    def target(self) -> Mapping[Demanded, float]:
        """How often each class is requested."""


class Given:
    """A demand that is known beforehand. Tables are made again only as the cluster fills, as with a demand learnt."""

    def __init__(self, target: Mapping[Demanded, float]) -> None:
        self._target = target

    def see(self, request: PodRequest, cpu: int) -> bool:
        """Teaches nothing."""
        return False

    def target(self) -> Mapping[Demanded, float]:
        """The demand that was given."""
        return self._target


class Engines:
    """The production engine, its nodes and its demand. `tables` for a policy that knows the demand beforehand."""

    def __init__(
        self,
        nodes: Sequence[NodeState],
        policy: Policy,
        *,
        measure: Tables,
        tables: Tables | None = None,
        learner: Watched | None = None,
        clock: Callable[[], float] = time.process_time,
    ) -> None:
        self.engine = Engine(limits=LIMITS, policy=policy)
        self.deciding = 0.0
        self._clock = clock
        self._measure = measure
        self._learner = learner
        self._nodes = {node.name: node for node in nodes}
        self._asks: dict[Pod, SchedulingRequest] = {}
        self._seen: set[str] = set()
        self._reservations: tuple[HeldNode, ...] = ()
        self._last: tuple[SchedulingRequest, Placement]
        self._taught = supply_of(self._nodes, LIMITS)
        self._asked = 0
        for node in nodes:
            self.engine.put(node)
        self.engine.adopt(tables)

    def place(self, pod: Pod, uid: str = "") -> bool:
        """One decision, booked. `uid`: of a pod that may have a node reserved, which is learnt of once."""
        ask = self._asks.get(pod)
        if ask is None:
            ask = self._asks[pod] = pod.ask()
        if self._learner is not None and not (uid and uid in self._seen):
            self._seen.add(uid)
            self._learn(self._learner, ask)
        before = self._clock()
        if self._reservations:
            found = reserved.decide(self.engine, self._nodes, self._reservations, ask, Requester(uid))
        else:
            found = self.engine.decide(ask)
        self.deciding += self._clock() - before
        if not isinstance(found, Placement):
            return False
        self._put(nodeinfo.booked(self._nodes[found.node], ask, found.containers))
        self._last = ask, found
        return True

    def states(self) -> Mapping[str, NodeState]:
        """The nodes as they are."""
        return self._nodes

    def reserve(self, reservation: HeldNode | None) -> None:
        """From now on this node is reserved, and no other; the engine knows it as closed."""
        before, self._reservations = self._reservations, () if reservation is None else (reservation,)
        for each in {one.node for one in (*before, *self._reservations)}:
            self._put(self._nodes[each])

    def spare(self, cards: Collection[int]) -> None:
        """From now on pods wait for so many whole cards of one node each."""
        self.engine.spare(cards)

    def _put(self, node: NodeState) -> None:
        self._nodes[node.name] = node
        closed = any(one.node == node.name for one in self._reservations)
        self.engine.put(reserved.closed(node) if closed else node)

    def _learn(self, learner: Watched, ask: SchedulingRequest) -> None:
        """The work of `allocator.workers.learner` alongside the decisions; that one goes by the clock."""
        due = learner.see(ask.request, ask.needs.compute.cpu)
        self._asked += 1
        tables = self.engine.tables
        look = tables is not None and tables.limited and self._asked % _LOOK_EVERY == 0
        if due or look:
            supply = supply_of(self._nodes, LIMITS)
            if due or estimator.filled(self._taught, supply):
                self._taught = supply
                self.engine.adopt(estimator.make(self.engine.policy.node, learner.target(), supply))

    def last(self) -> tuple[SchedulingRequest, Placement]:
        """The input of `leave` for the pod that was placed last."""
        return self._last

    def leave(self, placed: object) -> None:
        """That pod has ended."""
        assert isinstance(placed, tuple)
        ask, chosen = placed
        self._put(unbooked(self._nodes[chosen.node], ask, chosen))

    def fragments(self) -> float:
        """By the measure that was given."""
        rooms = (reference.room(node, LIMITS, self._measure) for node in self._nodes.values())
        return sum(reference.fragments(room, self._measure) for room in rooms) / self._measure.weight / CARD


def unbooked(node: NodeState, ask: SchedulingRequest, chosen: Placement) -> NodeState:
    """The node without a pod of one container that `booking.booked` put there."""
    shares = {share.uuid: share for container in chosen.containers for share in container.shares}
    usage = tuple(
        Usage(taken.memory - shares[gpu.uuid].memory, taken.cores - shares[gpu.uuid].cores, taken.sharers - 1)
        if gpu.uuid in shares
        else taken
        for gpu, taken in zip(node.gpus, node.usage, strict=True)
    )
    had, took = node.requested, ask.needs.compute
    left = Compute(had.cpu - took.cpu, had.memory - took.memory, had.storage - took.storage, had.pods - took.pods)
    return replace(node, usage=usage, requested=left)


def at(run: Run, load: int) -> float:
    """Allocated percent at this load; of the nearest load that was met."""
    nearest = min(run.curve, key=lambda each: abs(each - load))
    return run.curve[nearest]
