"""
Reserve a node for a starving pod: the first in the queue that has waited past a bound and that some node could serve.

Filling gaps with whatever fits keeps GPUs busy, but would let a large pod wait forever: smaller ones take each released
share. So past the bound one node is reserved for the pod, the one with the least still to be released. Only pods of
higher priority are placed there meanwhile, until the pod is placed or deleted, or its namespace has used up the time
for which a node may be reserved for it (`HoldingBudget`).

The bound counts from when this process first saw the pod wait. A pod need not have been the first all that time: of
many large pods, each has its turn as soon as the one before it is placed.

What pods of its own namespace hold does not count as given back: their author decides when they end, and could
otherwise close a node to others forever. If no node would serve the pod otherwise, one is reserved against its own
namespace only.

At most one node is reserved this way at a time. The choice only moves to a node that lacks less, and what a reserved
node lacks only shrinks, so the choice becomes stable. Pure over the cache and the queue's records.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from allocator.cache.cache import Cache
from allocator.cache.reserved import HeldNode, Requester
from allocator.engine.reference import FINE, Snapshot
from allocator.queue.queue import QueuedPodInfo, SchedulingQueue
from allocator.queue.records import PodRecords
from contract.backoff import backoff
from contract.model import FREE, NO_OVERCOUNT, WHOLE, Compute, FractionRequest, Gpu, NodeState, Usage
from contract.reasons.nodes import Reason
from contract.scheduling import counting, filters, fit
from contract.scheduling.demand import demand_of
from contract.scheduling.filters import Limits, gpu_reason, lasting_reason
from contract.scheduling.fit import Steps
from contract.scheduling.needs import SchedulingRequest
from contract.scheduling.nodefilters.resources import amount_of

_TRIES = 8
"""Pods in the queue that are looked at; each costs a look at every GPU, and most often the first one gets a node."""
_LONGEST_PAUSE = 8
"""The longest pause, as a multiple of the bound."""


@dataclass(slots=True)
class _Spent:
    seconds: float = 0.0
    """Seconds for which a node was reserved since the last pause."""
    pauses: int = 0
    until: float = 0.0
    """The end of the last pause."""
    last: float = 0.0
    """When a node was last reserved."""


class HoldingBudget:
    """
    How long a node may be reserved for pods of a namespace: `most` seconds, until one of them is placed. A pause of as
    many seconds follows, and of twice as many each time that again no pod was placed. 0: no bound.

    The time is counted by namespace: a pod that is deleted and created again gets no fresh time. Not thread-safe: one
    owner calls it.
    """

    def __init__(self, most: float, rest: float = 0.0) -> None:
        """`rest`: seconds for which a namespace rests after one of its pods was placed on a reserved node."""
        self._most = most
        self._rest = rest
        self._of: dict[str, _Spent] = {}
        self._rests_until: dict[str, float] = {}
        self._kept = ""
        self._since = 0.0

    def passes(self, namespace: str, now: float) -> None:
        """A node is now reserved for this namespace; for none if it is empty."""
        if self._kept and self._most:
            self._spend(self._of.setdefault(self._kept, _Spent()), now)
        self._kept = namespace
        self._since = now
        over = 2 * _LONGEST_PAUSE * self._most
        for idle in [name for name, spent in self._of.items() if now - max(spent.last, spent.until) > over]:
            del self._of[idle]

    def _spend(self, spent: _Spent, now: float) -> None:
        spent.seconds = spent.seconds + now - self._since
        spent.last = now
        if spent.seconds >= self._most:
            pause = backoff(spent.pauses + 1, self._most, self._most * _LONGEST_PAUSE)
            spent.seconds = 0.0
            spent.pauses = min(spent.pauses + 1, _LONGEST_PAUSE)
            spent.until = now + pause

    def allows(self, namespace: str, now: float) -> bool:
        """Whether a node may be reserved for this namespace now."""
        spent = self._of.get(namespace)
        return spent is None or now >= spent.until

    def rests(self, namespace: str, now: float) -> bool:
        """Whether a pod of this namespace was recently placed on a reserved node."""
        return now < self._rests_until.get(namespace, now)

    def served(self, namespace: str) -> None:
        """The pod for which a node was reserved is placed, so the budget is full again."""
        self._of.pop(namespace, None)
        self._kept = ""

    def begin_rest(self, namespace: str, now: float) -> None:
        """From now on the namespace rests, if namespaces rest at all."""
        if self._rest:
            self._rests_until = {name: until for name, until in self._rests_until.items() if until > now}
            self._rests_until[namespace] = now + self._rest


def held_node(cache: Cache, queue: SchedulingQueue, records: PodRecords) -> HeldNode | None:
    """The first reservation with a pod that is in the queue and is not being written; None if there is none."""
    for kept in cache.reservations:
        if queue.pod(kept.uid) is not None and not records.is_writing(kept.uid):
            return replace(kept, others=(), compute=Compute())
    return None


def held_nodes(cache: Cache, queue: SchedulingQueue, records: PodRecords) -> tuple[HeldNode, ...]:
    """The reservations of the first starving pod that has one: of a gang there are several."""
    first = held_node(cache, queue, records)
    if first is None or not first.gang:
        return () if first is None else (first,)
    return tuple(one for one in cache.reservations if one.uid == first.uid)


def choose_held(
    cache: Cache,
    queue: SchedulingQueue,
    records: PodRecords,
    budget: HoldingBudget,
    after: float,
    now: float,
    failed: Callable[[QueuedPodInfo], None],
    behind: Callable[[QueuedPodInfo], bool] = lambda pod: False,
    together: Callable[[QueuedPodInfo, float], tuple[HeldNode, ...] | None] = lambda pod, now: None,
) -> tuple[HeldNode, ...]:
    """
    The reservation of a node for a starving pod; none if no pod has waited for `after` seconds, or `after` is 0.
    `together` gives those of a whole gang, and None for a pod that is placed by itself.

    A pod whose namespace has used up its budget is passed over. A node whose room other namespaces hold is preferred to
    one whose room the pod's own namespace holds.

    The longest wait counts, not the order of the queue: a place in the fair order changes with each placement. In that
    order an older backlog would have one node after the other reserved for it, and so be served before others.
    Therefore a namespace that rests is passed over while it is `behind` another one.

    `failed` is called in the handler of an error caused by a pod; the next one in the queue is then looked at.
    """
    waiting = (
        entry
        for entry in (queue.in_order() if after else ())
        if not (
            entry.foreign
            or entry.ask.request.claim
            or records.is_writing(entry.uid)
            or records.quarantine.holds(entry.uid, now)
            or now - records.waits(entry.uid, now) < after
            or not budget.allows(entry.requester.namespace, now)
            or (budget.rests(entry.requester.namespace, now) and behind(entry))
        )
    )
    kept = held_node(cache, queue, records)
    gangs, tries = set[object](), 0
    for entry in waiting:
        if entry.gang is not None and entry.gang.key in gangs:
            continue
        found = together(entry, now)
        if found is None:
            one = first_held(
                (entry,),
                cache.snapshot,
                cache.engine.limits,
                kept,
                held_by=cache.ledger.held_by,
                failed=failed,
                refused=lambda pod: cache.refused_by_others(pod.ask, pod.requester),
            )
            found = () if one is None else (one,)
        elif entry.gang is not None:
            gangs.add(entry.gang.key)
        if found:
            return found
        tries += 1
        if tries == _TRIES:
            break
    return ()


class Starving(Protocol):
    """A pod in the queue that has waited past the bound."""

    @property
    def ask(self) -> SchedulingRequest:
        """Its request."""

    @property
    def requester(self) -> Requester:
        """The pod as reserved nodes see it."""


StarvingPod = TypeVar("StarvingPod", bound=Starving)
Staying = Mapping[str, Mapping[str, Usage]]
"""The shares that do not count as released, by node and GPU UUID."""
Shortage = Callable[[NodeState, SchedulingRequest, Limits], int | None]


def first_held(
    starving: Iterable[StarvingPod],
    nodes: Snapshot,
    limits: Limits,
    kept: HeldNode | None,
    *,
    held_by: Callable[[str], Staying],
    failed: Callable[[StarvingPod], None],
    lack: Shortage | None = None,
    refused: Callable[[StarvingPod], Collection[str]] = lambda pod: (),
) -> HeldNode | None:
    """
    A node for the first of these pods, which are in the order of the queue, that some node could serve. `refused` are
    the nodes that other pods refuse for it.

    `held_by` gives what the pods of a namespace hold. `lack` is `shortage`, or remembers what it answered.
    """
    tries = 0
    for pod in starving:
        before = kept.node if kept is not None and kept.uid == pod.requester.uid else ""
        try:
            out = refused(pod)
            there = {name: node for name, node in nodes.items() if name not in out} if out else nodes
            found = _soonest(pod, there, limits, before, held_by, lack)
        except Exception:
            failed(pod)
            continue
        if found is not None:
            return found
        tries += 1
        if tries == _TRIES:
            break
    return None


def _soonest(
    pod: Starving,
    nodes: Snapshot,
    limits: Limits,
    before: str,
    held_by: Callable[[str], Staying],
    lack: Shortage | None,
) -> HeldNode | None:
    who = pod.requester
    node, against = soonest(nodes.values(), pod.ask, limits, before, held_by(who.namespace), lack), ""
    if node is None:
        node, against = soonest(nodes.values(), pod.ask, limits, before, lack=lack), who.namespace
    if node is None:
        return None
    return HeldNode(node, who.uid, who.priority, against=against, namespace=who.namespace)


def soonest(
    nodes: Iterable[NodeState],
    ask: SchedulingRequest,
    limits: Limits,
    kept: str = "",
    staying: Staying | None = None,
    lack: Shortage | None = None,
) -> str | None:
    """
    The node that lacks least until it takes the pod, if everything taken of its GPUs is released except what is
    `staying`; None if none would take it even then.

    A node that is reserved already (`kept`) stays the choice unless another lacks strictly less. Ties go to the lesser
    name. `lack` is `shortage`, or remembers what it answered.
    """
    lacking, steps = [], Steps()
    lack_of = lack or shortage
    for node in nodes:
        missing = lack_of(node, ask, limits)
        if missing is not None:
            lacking.append((missing, node.name != kept, node.name, node))
    for _, _, name, node in sorted(lacking, key=lambda entry: entry[:3]):
        left = (staying or {}).get(node.name, {})
        usage = tuple(left.get(gpu.uuid, FREE) for gpu in node.gpus)
        emptied = replace(node, usage=usage, overcount=NO_OVERCOUNT)
        if counting.shortage(emptied, ask) is not None:
            continue
        if not isinstance(fit.fit(emptied, ask.request, limits, fit.least_free, steps), Reason):
            return name
        if steps.spent:
            break
    return None


def shortage(node: NodeState, ask: SchedulingRequest, limits: Limits) -> int | None:
    """
    How much must be given back before the node takes the pod, in millionths of a GPU (or of the node's own resources);
    None if that would not help.
    """
    if lasting_reason(node, ask.needs) is not None:
        return None
    total = _compute_shortage(node, ask)
    containers = ask.request.containers
    if ask.request.same_gpus and len(containers) > 1:
        containers = (fit.combined(ask.request),)
    for fraction in containers:
        lacks = sorted(
            _lack(gpu, usage, fraction, limits)
            for gpu, usage in zip(node.gpus, node.usage, strict=True)
            if gpu_reason(gpu, FREE, fraction, limits) is None
        )
        if total is None or len(lacks) < fraction.count:
            return None
        total += sum(lacks[: fraction.count])
    return total


def _lack(gpu: Gpu, usage: Usage, fraction: FractionRequest, limits: Limits) -> int:
    alone = demand_of(fraction, gpu.usable)
    memory, cores, sharers, in_all = filters.shortage(gpu, usage, alone, limits)
    lack = max(memory * FINE // max(limits.capacity(gpu), 1), cores * FINE // WHOLE, 0)
    lack = max(lack, in_all * FINE // max(limits.in_all(gpu), 1))
    lack = max(lack, sharers * FINE // limits.sharers(gpu))
    if usage.exclusive or (fraction.exclusive and usage.sharers):
        # All pods on it must end, even if they use little.
        lack = max(lack, FINE * usage.sharers)
    return lack


def _compute_shortage(node: NodeState, ask: SchedulingRequest) -> int | None:
    has, taken, wanted = node.allocatable, node.requested, ask.needs.compute
    total = 0
    for most, used, more in (
        (has.cpu, taken.cpu, wanted.cpu),
        (has.memory, taken.memory, wanted.memory),
        (has.storage, taken.storage, wanted.storage),
        (has.pods, taken.pods, wanted.pods),
        *((amount_of(has.scalars, name), amount_of(taken.scalars, name), more) for name, more in wanted.scalars or ()),
    ):
        if more > most:
            return None
        if more:
            total += max(0, used + more - most) * FINE // max(most, 1)
    return total
