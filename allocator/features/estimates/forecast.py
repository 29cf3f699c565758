"""
Estimates when waiting pods will start: simulates the queue with the probable ends of the pods that hold shares.

It makes several runs with different ends, drawn from the durations of similar pods, because the first of many pods
probably ends sooner than a single one does. In each run, each pod of the queue in turn gets the node on which it fits
first as pods there end, and counts as running there from then on. If no estimate is possible, the result gives the
reason.

The draws depend only on the pod's uid, so the same input gives the same estimate. Pure.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from allocator.queue import reservation
from contract.model import ContainerAllocation, NodeState
from contract.reasons.nodes import Reason
from contract.scheduling import counting, fit, nodeinfo
from contract.scheduling.demand import per_gpu, shares_of
from contract.scheduling.filters import Limits, node_reason
from contract.scheduling.needs import SchedulingRequest
from contract.scheduling.nodeinfo import AllocatedPod

MOST_WAITING = 32
"""The number of pods of the queue that are simulated. Estimates for later pods would be too uncertain."""
_NODES = 32
"""The number of nodes that are compared for one pod: those that lack the least."""


DRAWS = 8
"""How often the queue is simulated."""
SURE = 0.75
"""The fraction of the draws in which the pod has started by the estimated time."""


class NoEstimate(StrEnum):
    """Why there is no estimate."""

    HISTORY = "history"
    """Too little is known of how long the pods on its cards run."""
    NO_ROOM = "no-room"
    """No pod's end makes room."""
    TOO_FAR = "too-far"
    """Too many pods are before it."""
    RULES = "rules"
    """Other pods, volumes, a claim or another system's gate matter."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A pod of the queue. `lasts`: equally likely running times in seconds; empty if unknown."""

    uid: str
    key: str
    ask: SchedulingRequest
    lasts: Sequence[float]
    ruled: bool = False
    """Something other than room decides when it starts."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """The pod will probably have its share by then (seconds since 1970), because the pod `key` ends."""

    by: float
    key: str


Forecast = Estimate | NoEstimate


@dataclass(slots=True)
class _Node:
    state: NodeState
    holders: list[AllocatedPod]
    ends: dict[str, float]
    """When each holder probably ends, if known."""
    free: float
    """The time of the state."""
    lacks: dict[SchedulingRequest, int | None]
    """What the state lacks for each request computed so far."""


@dataclass(frozen=True, slots=True)
class _Start:
    at: float
    node: str
    gone: tuple[AllocatedPod, ...] = field(compare=False)
    containers: tuple[ContainerAllocation, ...] = field(compare=False)
    cause: str = field(compare=False)


def forecast(
    nodes: Sequence[NodeState],
    holders: Mapping[str, Sequence[AllocatedPod]],
    left: Callable[[AllocatedPod], Sequence[float]],
    queue: Sequence[Waiting],
    limits: Limits,
    now: float,
) -> dict[str, Forecast]:
    """
    The estimate for each pod by uid; the queue is in its order.

    holders: all holders of shares, by node. left: equally likely remaining times of a holder in seconds; empty if
    unknown.
    """
    lacks: dict[str, dict[SchedulingRequest, int | None]] = {node.name: {} for node in nodes}
    lasts = {pod.uid: left(pod) for on in holders.values() for pod in on}
    drawn: dict[str, list[Forecast]] = {pod.uid: [] for pod in queue[:MOST_WAITING]}
    for draw in range(DRAWS):
        there = {
            node.name: _Node(
                node,
                list(on := holders.get(node.name, ())),
                {pod.uid: now + chosen for pod in on if (chosen := _chosen(pod.uid, lasts[pod.uid], draw)) is not None},
                now,
                lacks[node.name],
            )
            for node in nodes
        }
        for pod in queue[:MOST_WAITING]:
            found = NoEstimate.RULES if pod.ruled else _one(pod, there, limits, draw)
            drawn[pod.uid].append(found)
    said = {uid: _agreed(found) for uid, found in drawn.items()}
    return {**said, **{pod.uid: NoEstimate.TOO_FAR for pod in queue[MOST_WAITING:]}}


def _chosen(uid: str, lasts: Sequence[float], draw: int) -> float | None:
    """One of the values, chosen by the pod and the draw."""
    return lasts[zlib.crc32(f"{draw} {uid}".encode()) % len(lasts)] if lasts else None


def _agreed(found: Sequence[Forecast]) -> Forecast:
    """The estimate after all draws: the time by which the pod started in most of them."""
    told = sorted((each for each in found if isinstance(each, Estimate)), key=lambda each: each.by)
    place = int(SURE * len(found))
    if len(told) > place:
        return told[place]
    return next(each for each in found if isinstance(each, NoEstimate))


def _one(pod: Waiting, there: dict[str, _Node], limits: Limits, draw: int) -> Forecast:
    lacks = [(lack, name) for name, node in there.items() if (lack := _lacks(node, pod.ask, limits)) is not None]
    best: _Start | None = None
    unknown = False
    for lack, name in sorted(lacks)[:_NODES]:
        start = _on(pod.ask, there[name], limits, best.at if best is not None else None, fits=lack <= 0)
        if isinstance(start, _Start):
            best = min(best or start, start, key=lambda each: (each.at, each.node))
        unknown |= start is True
    if best is None:
        return NoEstimate.HISTORY if unknown else NoEstimate.NO_ROOM
    _book(pod, there[best.node], best, draw)
    return Estimate(best.at, best.cause)


def _lacks(node: _Node, ask: SchedulingRequest, limits: Limits) -> int | None:
    if ask not in node.lacks:
        node.lacks[ask] = reservation.shortage(node.state, ask, limits)
    return node.lacks[ask]


def _on(ask: SchedulingRequest, node: _Node, limits: Limits, before: float | None, *, fits: bool) -> _Start | bool:
    """
    The first moment at which the pod fits on the node. True if it fits only after pods whose end is unknown; False if
    it never fits, or not before that time. fits: the node lacks nothing now.
    """
    known = sorted(
        (pod for pod in node.holders if pod.uid in node.ends), key=lambda each: (node.ends[each.uid], each.uid)
    )
    if before is not None:
        known = [pod for pod in known if node.ends[pod.uid] < before]
        if node.free >= before or not (known or fits):
            return False
    room = _room(node, known, ask, limits)
    if not room:
        return before is None and len(known) < len(node.holders) and bool(_room(node, node.holders, ask, limits))
    low, high = 0, len(known)  # it fits after this many ends, the earliest first; each end only adds room
    while low < high:
        middle = (low + high) // 2
        less = _room(node, known[:middle], ask, limits)
        low, high, room = (low, middle, less) if less else (middle + 1, high, room)
    gone = tuple(known[:low])
    last = gone[-1] if gone else None
    at = max(node.free, node.ends[last.uid]) if last is not None else node.free
    return _Start(at, node.state.name, gone, room, last.key if last is not None else "")


def _room(
    node: _Node, gone: Sequence[AllocatedPod], ask: SchedulingRequest, limits: Limits
) -> tuple[ContainerAllocation, ...]:
    """What the pod would get there without these pods; empty if it does not fit."""
    after = nodeinfo.unbooked(node.state, node.holders, gone)
    if node_reason(after, ask.needs) is not None or counting.shortage(after, ask) is not None:
        return ()
    found = fit.fit(after, ask.request, limits, fit.least_free)
    return () if isinstance(found, Reason) else fit.allocate(after, ask.request, found.chosen)


def _book(pod: Waiting, node: _Node, start: _Start, draw: int) -> None:
    """Place the pod there from then on, and end the pods that had to end."""
    after = nodeinfo.unbooked(node.state, node.holders, start.gone)
    gone = {each.uid for each in start.gone}
    demands = per_gpu(pod.ask.request, shares_of(start.containers))
    comes = AllocatedPod(pod.uid, pod.key, node.state.name, 0, start.at, demands, pod.ask.needs.compute)
    node.state = nodeinfo.booked(after, pod.ask, start.containers)
    if node.state.overcount != after.overcount:
        comes = replace(comes, overcount=node.state.overcount - after.overcount)
    node.holders = [each for each in node.holders if each.uid not in gone] + [comes]
    node.free, node.lacks = start.at, {}
    lasts = _chosen(pod.uid, pod.lasts, draw)
    if lasts is not None:
        node.ends[pod.uid] = start.at + lasts
