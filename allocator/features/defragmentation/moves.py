"""
Defragmentation: chooses running pods that move to other nodes so that a larger waiting pod starts.

`kubectl gpufraction advise` proposes the same for a single pod. Evictions are few and all on one node. Each evicted pod
is smaller than the waiting pod, has its priority or a lower one, and has a place on another node at once. An evicted
pod starts over and loses its work. In card seconds, the work of all evicted pods is at most the work that the waiting
pod could have done while it waited. The replay with departures measures the gain (docs/benchmarks.md).

Pure: time is passed in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from allocator.preemption import planner
from allocator.preemption.planner import PreemptionPlan, PreemptionRequest
from allocator.preemption.tracker import EvictionCause
from contract import names
from contract.model import WHOLE, NodeState, PodRequest
from contract.reasons.pods import PodEventReason
from contract.scheduling import nodeinfo
from contract.scheduling.needs import SchedulingRequest
from contract.scheduling.nodeinfo import AllocatedPod

DEFRAGMENTATION = EvictionCause(
    "defragmentation",
    why="a larger pod waits for GPUs of node {node}, and this pod fits on another node",
    one="smaller pod that fits elsewhere",
    more="smaller pods that fit elsewhere",
    event=PodEventReason.MOVED,
)
HOUR = 3600.0
_TRIES = 4
"""Searches for the fewest evictions, each without one more victim that has no place elsewhere."""
ALLOWED = "allowed"
"""The value of the namespace's label that agrees."""


def agreed(value: str) -> int | None:
    """1 where the value of the label agrees; None for any other."""
    return 1 if value == ALLOWED else None


def misread(namespace: str, value: str) -> str:
    """The sentence about a label with another value."""
    return f"namespace {namespace}: the label {names.DEFRAGMENT}={value} is no consent; it must be {ALLOWED}"


@dataclass(frozen=True, slots=True)
class Movable:
    """A pod that may be evicted. `cards`: the cards that it holds; `work`: card seconds that it would lose."""

    ask: SchedulingRequest
    """The request of its successor."""
    cards: float
    work: float
    refused: frozenset[str] = frozenset()
    """Nodes that other pods refuse for its successor."""


@dataclass(frozen=True, slots=True)
class Larger:
    """The waiting pod. `cards`: its request in cards; `could`: card seconds of work that it has missed by waiting."""

    question: PreemptionRequest
    """`priority` and `spared` are left to `choose`."""
    cards: float
    could: float
    most: int
    """Evictions at most."""


Home = tuple[SchedulingRequest, frozenset[str]]
"""The data that decide whether a pod has a place elsewhere: its successor's request, and `refused`."""


@dataclass(frozen=True, slots=True)
class Move:
    """The evictions, and the node that takes each evicted pod, by its uid."""

    plan: PreemptionPlan
    places: Mapping[str, str] = field(default_factory=dict)


def cards_of(request: PodRequest, usable: int) -> float:
    """The size of a request, in cards with this many usable bytes: of each card the larger part of memory and cores."""
    return sum(
        fraction.count
        * (1.0 if fraction.exclusive else max(fraction.memory_on(usable) / usable, fraction.cores / WHOLE))
        for fraction in request.containers
        if not fraction.init
    )


def held(pod: AllocatedPod, node: NodeState) -> float:
    """The part of its node's cards that a pod holds."""
    of = {gpu.uuid: max(gpu.usable, 1) for gpu in node.gpus}
    return sum(
        1.0 if demand.exclusive else max(demand.memory / of[uuid], demand.cores / WHOLE)
        for uuid, demand in pod.demands.items()
        if uuid in of
    )


def age(created: float, wall: float) -> float:
    """Seconds since `AllocatedPod.created`; infinite if that is unknown, so that such a pod stays."""
    return wall - created if created else float("inf")


def choose(
    nodes: Sequence[NodeState],
    sharers: Mapping[str, Sequence[AllocatedPod]],
    larger: Larger,
    movable: Mapping[str, Movable],
    homes: dict[Home, bool] | None = None,
) -> Move | None:
    """
    The evictions that let the pod start; None if none were found. `nodes` are all on which pods may start.

    A victim whose place another one takes is left out, and the search is repeated some times. `homes`: whether a node
    has room for such a pod now; it is filled here, and serves further calls over the same nodes.
    """
    homes = homes if homes is not None else {}
    here, states = [node for node in nodes if node.name in sharers], {node.name: node for node in nodes}
    candidates = set()
    for uid, pod in movable.items():
        if pod.cards < larger.cards and pod.work <= larger.could:
            home = pod.ask, pod.refused
            if home not in homes:
                homes[home] = _room(nodes, pod, larger) is not None
            if homes[home]:
                candidates.add(uid)
    for _ in range(_TRIES):
        plan = _fewest(here, sharers, larger, candidates, movable) if candidates else None
        if plan is None or not _is_worth_it(plan, larger, movable):
            return None
        found = _with_places(plan, states, sharers[plan.node], larger, movable)
        if isinstance(found, Move):
            return found
        candidates.discard(found)
    return None


def again(
    move: Move,
    nodes: Mapping[str, NodeState],
    there: Sequence[AllocatedPod],
    larger: Larger,
    movable: Mapping[str, Movable],
) -> Move | None:
    """The move in the current state; None if it needs other evictions. `nodes`: its own node and those of `places`."""
    node = nodes.get(move.plan.node)
    uids = {victim.uid for victim in move.plan.victims}
    if node is None or not uids <= movable.keys():
        return None
    sharers = {node.name: there}
    plan = _fewest([node], sharers, larger, uids, movable)
    if plan is None or not _is_worth_it(plan, larger, movable):
        return None
    found = _with_places(plan, nodes, there, larger, movable)
    return found if isinstance(found, Move) else None


def _fewest(
    nodes: Sequence[NodeState],
    sharers: Mapping[str, Sequence[AllocatedPod]],
    larger: Larger,
    candidates: Container[str],
    movable: Mapping[str, Movable],
) -> PreemptionPlan | None:
    """The smallest set of candidates; of equally small ones the lowest priority, and then the least work."""
    known = {pod.uid: pod for node in nodes for pod in sharers[node.name]}
    # The planner takes the youngest, so the age is replaced by the work.
    ranked = {
        node.name: [
            replace(pod, created=-movable[pod.uid].work) if pod.uid in candidates else pod for pod in sharers[node.name]
        ]
        for node in nodes
    }
    stay = {uid for uid in known if uid not in candidates}
    question = replace(larger.question, priority=larger.question.priority + 1, spared=stay)
    plan = planner.choose(nodes, ranked, question)
    if plan is None:
        return None
    return replace(plan, victims=tuple(known[victim.uid] for victim in plan.victims))


def _is_worth_it(plan: PreemptionPlan, larger: Larger, movable: Mapping[str, Movable]) -> bool:
    lost = sum(movable[pod.uid].work for pod in plan.victims)
    return 0 < len(plan.victims) <= larger.most and lost <= larger.could


def _with_places(
    plan: PreemptionPlan,
    nodes: Mapping[str, NodeState],
    there: Sequence[AllocatedPod],
    larger: Larger,
    movable: Mapping[str, Movable],
) -> Move | str:
    """
    The plan with a place for each victim, the largest first, after the pod took the room that was made; the uid of the
    first victim that has none.
    """
    leaving = {victim.uid for victim in plan.victims}
    left = nodeinfo.unbooked(nodes[plan.node], there, [pod for pod in there if pod.uid in leaving])
    states = {**nodes, plan.node: nodeinfo.booked(left, larger.question.ask, plan.containers)}
    places = {}
    for uid in sorted(leaving, key=lambda uid: (-movable[uid].cards, uid)):
        moved = movable[uid]
        found = _room([state for name, state in states.items() if name != plan.node], moved, larger)
        if found is None:
            return uid
        places[uid] = found.node
        states[found.node] = nodeinfo.booked(states[found.node], moved.ask, found.containers)
    return Move(plan, places)


def _room(nodes: Iterable[NodeState], pod: Movable, larger: Larger) -> PreemptionPlan | None:
    open_to_it = (node for node in nodes if node.name not in pod.refused)
    return planner.without_any(open_to_it, PreemptionRequest(pod.ask, 0, larger.question.limits))


class MoveBudget:
    """
    The evictions that are still allowed: `an_hour` each hour, and none of an owner that lost one within `rest` seconds.

    It is only in memory: a new leader starts with a full budget. Not thread-safe: one owner calls it.
    """

    def __init__(self, an_hour: int, rest: float) -> None:
        self._an_hour = an_hour
        self._rest = rest
        self._evicted: deque[float] = deque()
        self._owners: dict[str, float] = {}

    def left(self, now: float) -> int:
        """Evictions that are left."""
        while self._evicted and self._evicted[0] <= now - HOUR:
            self._evicted.popleft()
        return max(0, self._an_hour - len(self._evicted))

    def rests(self, owner: str, now: float) -> bool:
        """Whether a pod of this owner was evicted recently; pods are created again under other names."""
        return now - self._owners.get(owner, float("-inf")) < self._rest

    def count(self, owners: Iterable[str], now: float) -> None:
        """Count an evicted pod for each of these owners."""
        self._owners = {owner: at for owner, at in self._owners.items() if now - at < self._rest}
        for owner in owners:
            self._evicted.append(now)
            self._owners[owner] = now
