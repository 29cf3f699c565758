"""
Requested nodes: which to request now, which have come, and which requests are given up.

A **node request** is for some nodes of a pool. `reconcile` compares the existing requests, the existing nodes and the
waiting pods, and returns the requests to create and to delete. It keeps only the pause after a failure, so another
leader continues from the objects on the API server.

A request is filled by the nodes of its pool that are created after it, the oldest request first; a placeholder pod by
the node to which it is bound, once it is. It has ended when all its nodes are ready: they have published their GPUs. It
is given up when its nodes have not come within the bound, when they came without GPUs, or when the autoscaler reports
that it cannot add them; the pool is then requested again after a pause that doubles. It is withdrawn when no pod needs
its nodes any more.

Pure: time is passed in, in seconds since 1970, as the API server's creation times are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Literal

from allocator.features.provisioning.packing import Packer, Packing, PoolRoom
from contract.backoff import backoff
from contract.model import NodeState
from contract.scheduling.needs import Requirement, SchedulingRequest

_PAUSE, _PAUSE_CAP = 60.0, 1800.0
"""Seconds until nodes of a pool are requested again after a failure: the first pause, and the longest."""
_SETTLING = 10.0
"""Seconds within which pods are placed on a newly ready node."""
_POOL = "/pool"
"""The label of an empty node with its pool, while pods are packed; no real label's key begins with a slash."""
MOST_NODES = 1_000
"""The most nodes of one request."""

Outcome = Literal["brought", "without-gpus", "too-late", "refused", "withdrawn"]
"""Why a request ended. `without-gpus`: its nodes came, but published no GPUs within the bound."""
_FAILURES = ("without-gpus", "too-late", "refused")


@dataclass(frozen=True, slots=True)
class PoolNode:
    """
    A node of a pool.

    `ready`: its agent has published its GPUs, and it takes pods. `occupied`: a placeholder pod is still there. `idle`:
    it is ready, and has as much room as an empty node of its pool. `lacks`: why it is not ready, in words.
    """

    name: str
    created: float
    ready: bool
    occupied: bool = False
    idle: bool = False
    lacks: str = ""


@dataclass(frozen=True, slots=True)
class PoolView:
    """The current state of a pool from which nodes may be requested."""

    name: str
    empty: NodeState
    """An empty node of it."""
    most: int
    """The most nodes of the pool, including existing ones."""
    nodes: tuple[PoolNode, ...] = ()
    karpenter: bool = False
    """Whether Karpenter has added a node of the cluster, so that it may add those of the pool."""


@dataclass(frozen=True, slots=True)
class NodeRequest:
    """A request as it is on the API server."""

    name: str
    pool: str
    count: int
    created: float
    refused: str = ""
    """The autoscaler's message that it cannot add the nodes."""
    bound: tuple[str, ...] | None = None
    """The nodes to which its placeholder pods are bound. None: it has no such pods, and new nodes fill it."""


@dataclass(frozen=True, slots=True)
class Unserved:
    """A pod that waits and fits on no existing node."""

    uid: str
    ask: SchedulingRequest
    closed: frozenset[str] = frozenset()
    """Pools whose empty node other pods or volumes refuse for it."""
    apart: int | None = None
    """Equal for pods that may not share a node; None for a pod that may share its node with equal pods."""

    def as_packed(self) -> SchedulingRequest:
        """
        The request with requirements in place of the rules about other pods and volumes, as if its author had written
        them: it excludes the pools that are closed to it, and has a host port that only equal pods have.
        """
        needs = self.ask.needs
        if self.closed:
            against = Requirement(_POOL, "NotIn", tuple(sorted(self.closed)))
            terms = ((),) if needs.affinity is None else tuple(filter(None, needs.affinity))
            needs = replace(needs, affinity=tuple((*term, against) for term in terms))
        if self.apart is not None:
            needs = replace(needs, host_ports=needs.host_ports | {("", "apart", self.apart)})
        return self.ask if needs is self.ask.needs else replace(self.ask, needs=needs)


@dataclass(frozen=True, slots=True)
class Ended:
    """A request that is to be deleted, and why. `nodes`: those of its nodes that came without GPUs."""

    request: NodeRequest
    outcome: Outcome
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Pause:
    """The number of failed requests of a pool in a row, the end of the pause, and how the last request failed."""

    failures: int
    until: float
    outcome: Outcome = "too-late"
    why: str = ""
    """The autoscaler's message, if it refused."""


@dataclass(frozen=True, slots=True)
class Memory:
    """The state that one call of `reconcile` keeps for the next."""

    pauses: Mapping[str, Pause] = field(default_factory=dict)
    """By pool."""
    ready_since: Mapping[str, float] = field(default_factory=dict)
    """When each young node was first seen ready, by its name."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """
    What a waiting pod may expect of a pool on whose empty node it would fit.

    `requested`: the time since which a node is requested; None if none is. Then `until` is the time of the next request
    after the failure `failed`; 0 if the pool has its maximum of nodes. `node`: the node that has come, and is not ready
    yet.
    """

    pool: str
    requested: float | None
    node: str = ""
    until: float = 0.0
    most: int = 0
    """The most nodes of the pool."""
    failed: Outcome | None = None


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """A request alongside the nodes that have come for it."""

    request: NodeRequest
    came: tuple[PoolNode, ...]

    @property
    def outstanding(self) -> int:
        """The number of its nodes that have not come."""
        return self.request.count - len(self.came)


@dataclass(frozen=True, slots=True)
class Plan:
    """The result of `reconcile`."""

    make: tuple[tuple[str, int], ...] = ()
    """(pool, number of nodes) of each request to create."""
    end: tuple[Ended, ...] = ()
    expectations: Mapping[str, Expectation] = field(default_factory=dict)
    """What each pod that would fit on a node of a pool may expect, by its uid."""
    memory: Memory = Memory()
    packing: Packing | None = None
    live: tuple[OpenRequest, ...] = ()
    """The requests that continue."""
    needed: frozenset[str] = frozenset()
    """Pools on whose empty node a pod would fit for which no node is requested."""


def reconcile(
    now: float,
    pools: Sequence[PoolView],
    requests: Iterable[NodeRequest],
    unserved: Sequence[Unserved],
    memory: Memory,
    patience: float,
    packer: Packer,
) -> Plan:
    """
    Decide what to request and delete now.

    `pools` are in the administrator's order, `unserved` in the queue's. A request of a pool that is no longer declared
    is withdrawn. `patience`: seconds that a request may take until its nodes have published their GPUs. `packer` keeps
    its result of the last call.
    """
    pools = [replace(pool, empty=_labelled(pool)) for pool in pools]
    asks = [pod.as_packed() for pod in unserved]
    by_pool = {pool.name: pool for pool in pools}
    open_requests = _open_requests(by_pool, requests)
    ends = (_ends(each, by_pool.get(each.request.pool), now, patience) for each in open_requests)
    ended = [end for end in ends if end is not None]
    over = {end.request.name for end in ended}
    pauses, ready_since = _paused(memory.pauses, ended, now), _ready_since(memory, pools, now, patience)
    live = [each for each in open_requests if each.request.name not in over]

    coming = [node for pool in pools for node in _coming(pool, live, ready_since, now, patience)]
    rooms = [_room(pool, live, pauses, now) for pool in pools]
    packing = packer.pack(asks, [node.state for node in coming], rooms)
    used = set(packing.places)
    needless = [each for each in live if not _is_needed(each, coming, used)]
    ended += [Ended(each.request, "withdrawn") for each in needless]
    later = _Later(pools, live, pauses, now, packer)
    return Plan(
        make=tuple((pool, min(number, MOST_NODES)) for pool, number in packing.opened),
        end=tuple(ended),
        expectations=_expectations(zip(unserved, asks, strict=True), packing, coming, later, now),
        memory=Memory(pauses, ready_since),
        packing=packing,
        live=tuple(each for each in live if each not in needless),
        needed=frozenset(later.needed),
    )


def _labelled(pool: PoolView) -> NodeState:
    return replace(pool.empty, labels={**pool.empty.labels, _POOL: pool.name})


def _open_requests(pools: Mapping[str, PoolView], requests: Iterable[NodeRequest]) -> list[OpenRequest]:
    """
    Each request, the oldest first, with the nodes that came for it: each node came for one request.

    A placeholder pod's node is the one to which it is bound. A pod is bound a while after its node has come. Until
    then, a new node of the pool counts for it as for any other request. Otherwise the waiting pods would get the node,
    the placeholder would look unnecessary, and without it the autoscaler would remove the node.
    """
    left = {name: sorted(pool.nodes, key=lambda node: (node.created, node.name)) for name, pool in pools.items()}
    ordered = sorted(requests, key=lambda each: (each.created, each.name))
    came: dict[str, list[PoolNode]] = {}

    def take(request: NodeRequest, chosen: list[PoolNode]) -> None:
        came.setdefault(request.name, []).extend(chosen)
        left[request.pool] = [node for node in left.get(request.pool, ()) if node not in chosen]

    for request in ordered:
        take(request, [node for node in left.get(request.pool, ()) if node.name in (request.bound or ())])
    for request in ordered:
        open_ = request.count - len(came[request.name])
        take(request, [node for node in left.get(request.pool, ()) if node.created >= request.created][: max(0, open_)])
    return [OpenRequest(request, tuple(came[request.name])) for request in ordered]


def _ends(pending: OpenRequest, pool: PoolView | None, now: float, patience: float) -> Ended | None:
    request = pending.request
    if pool is None:
        return Ended(request, "withdrawn")
    without = tuple(node.name for node in pending.came if not node.ready)
    if not pending.outstanding and not without:
        return Ended(request, "brought")
    if pending.outstanding and request.refused:
        return Ended(request, "refused", without)
    if now - request.created < patience:
        return None
    return Ended(request, "too-late" if pending.outstanding else "without-gpus", without)


def _paused(pauses: Mapping[str, Pause], ended: Iterable[Ended], now: float) -> dict[str, Pause]:
    """The pauses from now on. One that is over stays stored until nodes come, so that the next one is longer."""
    after = dict(pauses)
    for end in ended:
        pool = end.request.pool
        if end.outcome == "brought":
            after.pop(pool, None)
        elif end.outcome in _FAILURES:
            failures = after[pool].failures + 1 if pool in after else 1
            until = now + backoff(failures, _PAUSE, _PAUSE_CAP)
            after[pool] = Pause(failures, until, end.outcome, end.request.refused)
    return after


@dataclass(frozen=True, slots=True)
class _Coming:
    """An expected node. `node`: its name, if it exists; `request`: the request for which it came or will come."""

    state: NodeState
    pool: str
    request: NodeRequest | None
    node: str
    since: float


def _ready_since(memory: Memory, pools: Iterable[PoolView], now: float, patience: float) -> dict[str, float]:
    return {
        node.name: memory.ready_since.get(node.name, now)
        for pool in pools
        for node in pool.nodes
        if node.ready and not node.occupied and now - node.created < patience
    }


def _coming(
    pool: PoolView, live: Iterable[OpenRequest], ready_since: Mapping[str, float], now: float, patience: float
) -> list[_Coming]:
    """
    The pool's new nodes on which nothing can be placed yet, and the outstanding nodes of live requests.

    A node that has just become ready counts for a few more seconds: the queue is about to be tried on it.
    """
    mine = [each for each in live if each.request.pool == pool.name]
    for_request = {node.name: each.request for each in mine for node in each.came}
    found = []
    for node in pool.nodes:
        settling = node.name not in ready_since or now - ready_since[node.name] < _SETTLING
        if settling and now - node.created < patience:
            request = for_request.get(node.name)
            since = request.created if request is not None else node.created
            found.append(_Coming(replace(pool.empty, name=node.name), pool.name, request, node.name, since))
    names = (f"{pool.name}/asked-{number}" for number in count(1))
    for each in mine:
        for _ in range(each.outstanding):
            state = replace(pool.empty, name=next(names))
            found.append(_Coming(state, pool.name, each.request, "", each.request.created))
    return found


def _room(pool: PoolView, live: Iterable[OpenRequest], pauses: Mapping[str, Pause], now: float) -> PoolRoom:
    return PoolRoom(pool.name, pool.empty, 0 if _rests(pool, pauses, now) else _may_open(pool, live))


def _rests(pool: PoolView, pauses: Mapping[str, Pause], now: float) -> bool:
    """
    Whether no nodes of the pool are requested now: its last request failed, or one of its nodes is idle.

    Every waiting pod was tried on the idle node and did not fit, so it would not fit on an equal node.
    """
    pause = pauses.get(pool.name)
    return (pause is not None and pause.until > now) or any(node.idle for node in pool.nodes)


def _may_open(pool: PoolView, live: Iterable[OpenRequest]) -> int:
    requested = sum(each.outstanding for each in live if each.request.pool == pool.name)
    return max(0, min(pool.most - len(pool.nodes) - requested, MOST_NODES))


def _is_needed(pending: OpenRequest, coming: Iterable[_Coming], used: set[str]) -> bool:
    """
    Whether one of its nodes is for a waiting pod.

    A request whose nodes have all come is kept until they are ready.
    """
    if not pending.outstanding:
        return True
    return any(each.request == pending.request and each.state.name in used for each in coming)


def _expectations(
    unserved: Iterable[tuple[Unserved, SchedulingRequest]],
    packing: Packing,
    coming: Iterable[_Coming],
    later: _Later,
    now: float,
) -> dict[str, Expectation]:
    by_name = {each.state.name: each for each in coming}
    found = {}
    for (pod, ask), place in zip(unserved, packing.places, strict=True):
        expected = by_name.get(place)
        if expected is not None:
            found[pod.uid] = Expectation(expected.pool, expected.since, expected.node)
        elif place:
            found[pod.uid] = Expectation(place.rsplit("/", 1)[0], now)
        elif (vain := later.expectation(ask)) is not None:
            found[pod.uid] = vain
    return found


class _Later:
    """For pods for which no node is requested now: the first pool on whose empty node they would fit."""

    def __init__(
        self,
        pools: Sequence[PoolView],
        live: Sequence[OpenRequest],
        pauses: Mapping[str, Pause],
        now: float,
        packer: Packer,
    ) -> None:
        self._pools = pools
        self._pauses = pauses
        self._now = now
        self._packer = packer
        self._open = {pool.name: _may_open(pool, live) for pool in pools}
        self._of_shape: dict[SchedulingRequest, Expectation | None] = {}
        self.needed: set[str] = set()
        """Pools on whose empty node one of them would fit."""

    def expectation(self, ask: SchedulingRequest) -> Expectation | None:
        """What the pod may expect; None if unknown."""
        if ask not in self._of_shape:
            self._of_shape[ask] = self._find(ask)
        return self._of_shape[ask]

    def _find(self, ask: SchedulingRequest) -> Expectation | None:
        for pool in self._pools:
            idle = any(node.idle for node in pool.nodes)
            if (idle and pool.name in self.needed) or not self._packer.serves(pool.name, pool.empty, ask):
                continue
            self.needed.add(pool.name)
            if idle:
                continue
            pause = self._pauses.get(pool.name)
            if pause is not None and pause.until > self._now:
                return Expectation(pool.name, None, until=pause.until, most=pool.most, failed=pause.outcome)
            return Expectation(pool.name, None, most=pool.most) if not self._open[pool.name] else None
        return None
