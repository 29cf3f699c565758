"""
For whom a node is kept: the first in the queue that has waited past the bound and that some node could serve.

The bound counts from when this process first saw the pod wait, and past it a pod need not have been at the head all
that time: of many large pods, each has its turn as soon as the one before it is placed. Pure over the cluster and the
line's notes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from allocator.cache.cache import Cache
from allocator.cache.reserved import NodeReservation
from allocator.engine.reference import FINE
from allocator.queue.queue import QueuedPodInfo, SchedulingQueue
from allocator.queue.records import PodRecords
from contract.backoff import backoff
from contract.model import FREE, WHOLE, FractionRequest, Gpu, NodeState, Usage
from contract.scheduling import filters, fit
from contract.scheduling.demand import Demand
from contract.scheduling.filters import Limits, gpu_reason, lasting_reason
from contract.scheduling.fit import Steps
from contract.scheduling.needs import SchedulingRequest
from contract.scheduling.reasons import Reason

_TRIES = 8
"""Pods in the queue that are looked at; each costs a look at every GPU, and most often the first one has it."""


_LONGEST_PAUSE = 8
"""Times the bound for which nothing is kept for a namespace, at most."""


@dataclass(slots=True)
class _Spent:
    seconds: float = 0.0
    """For which a node was kept since the last pause."""
    pauses: int = 0
    until: float = 0.0
    """The end of the last pause."""
    last: float = 0.0
    """When a node was last kept."""


class ReservationBudget:
    """
    How long a node may be kept for pods of a namespace: `most` seconds, until one of them is placed. After that comes a
    pause of as many, and of twice as many each time that it was in vain again. 0: no bound.

    The time is counted by namespace: a pod that is deleted and created again gets no fresh time. Not thread-safe: one
    owner calls it.
    """

    def __init__(self, most: float) -> None:
        self._most = most
        self._of: dict[str, _Spent] = {}
        self._kept, self._since = "", 0.0

    def passes(self, namespace: str, now: float) -> None:
        """A node is kept for this namespace from now on, until it is said again; none where it is empty."""
        if self._kept and self._most:
            self._spend(self._of.setdefault(self._kept, _Spent()), now)
        self._kept, self._since = namespace, now
        over = 2 * _LONGEST_PAUSE * self._most
        for idle in [name for name, spent in self._of.items() if now - max(spent.last, spent.until) > over]:
            del self._of[idle]

    def _spend(self, spent: _Spent, now: float) -> None:
        spent.seconds, spent.last = spent.seconds + now - self._since, now
        if spent.seconds >= self._most:
            pause = backoff(spent.pauses + 1, self._most, self._most * _LONGEST_PAUSE)
            spent.seconds, spent.pauses, spent.until = 0.0, min(spent.pauses + 1, _LONGEST_PAUSE), now + pause

    def allows(self, namespace: str, now: float) -> bool:
        """Whether a node may be kept for this namespace now."""
        spent = self._of.get(namespace)
        return spent is None or now >= spent.until

    def served(self, namespace: str) -> None:
        """The pod for which a node was kept is placed: it was not in vain."""
        self._of.pop(namespace, None)
        self._kept = ""


def current_reservation(cache: Cache, queue: SchedulingQueue, line: PodRecords) -> NodeReservation | None:
    """What is kept, unless its pod has left the queue or is being written; the first, where more is."""
    for kept in cache.reservations:
        if queue.pod(kept.uid) is not None and not line.is_writing(kept.uid):
            return NodeReservation(kept.node, kept.uid, kept.priority, against=kept.against, namespace=kept.namespace)
    return None


def choose_reservation(
    cache: Cache,
    queue: SchedulingQueue,
    line: PodRecords,
    budget: ReservationBudget,
    after: float,
    now: float,
    failed: Callable[[QueuedPodInfo], None],
) -> NodeReservation | None:
    """
    Which node to keep for whom; None where nobody has waited for `after` seconds, or `after` is 0.

    Whose namespace has had its time is passed over. A node whose room depends on others is preferred to one whose room
    the pod's own namespace holds.

    `failed` is told of a pod for which an error came up, as it is handled; the next one in the queue is looked at.
    """
    kept, asked = current_reservation(cache, queue, line), 0
    for entry in queue.in_order() if after else ():
        if (
            entry.foreign
            or entry.ask.request.claim
            or line.is_writing(entry.uid)
            or line.quarantine.holds(entry.uid, now)
            or now - line.waits(entry.uid, now) < after
            or not budget.allows(entry.asking.namespace, now)
        ):
            continue
        before = kept.node if kept is not None and kept.uid == entry.uid else ""
        try:
            found = _soonest(cache, entry, before)
        except Exception:
            failed(entry)
            continue
        if found is not None:
            return found
        asked += 1
        if asked == _TRIES:
            break
    return None


def _soonest(cache: Cache, entry: QueuedPodInfo, before: str) -> NodeReservation | None:
    namespace, limits, nodes = entry.asking.namespace, cache.engine.limits, cache.snapshot
    node = soonest(nodes.values(), entry.ask, limits, before, cache.ledger.held_by(namespace))
    against = ""
    if node is None:
        node, against = soonest(nodes.values(), entry.ask, limits, before), namespace
    return (
        None if node is None else NodeReservation(node, entry.uid, entry.priority, against=against, namespace=namespace)
    )


Staying = Mapping[str, Mapping[str, Usage]]
"""What is not given back, by node and GPU UUID."""


def soonest(
    nodes: Iterable[NodeState], ask: SchedulingRequest, limits: Limits, kept: str = "", staying: Staying | None = None
) -> str | None:
    """
    The node that lacks least until it takes the pod, given that its GPUs' users go but for what is `staying`; None if
    none ever would.

    The node that is kept already stays it unless another lacks strictly less. Ties go to the lesser name.
    """
    lacking, steps = [], Steps()
    for node in nodes:
        lack = shortage(node, ask, limits)
        if lack is not None:
            lacking.append((lack, node.name != kept, node.name, node))
    for _, _, name, node in sorted(lacking, key=lambda entry: entry[:3]):
        left = (staying or {}).get(node.name, {})
        emptied = replace(node, usage=tuple(left.get(gpu.uuid, FREE) for gpu in node.gpus))
        if not isinstance(fit.fit(emptied, ask.request, limits, fit.least_free, steps), Reason):
            return name
        if steps.spent:
            break
    return None


def shortage(node: NodeState, ask: SchedulingRequest, limits: Limits) -> int | None:
    """
    How much must be given back before the node takes the pod, in millionths of a GPU (or of the node's own resources);
    None where that would not help.
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
    alone = Demand(fraction.memory_on(gpu.usable), fraction.cores, fraction.exclusive)
    memory, cores, sharers = filters.shortage(gpu, usage, alone, limits)
    lack = max(memory * FINE // max(limits.capacity(gpu), 1), cores * FINE // WHOLE, 0)
    lack = max(lack, sharers * FINE // limits.sharers(gpu))
    if usage.exclusive or (fraction.exclusive and usage.sharers):
        # All of its users must go, however little they use.
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
    ):
        if more > most:
            return None
        if more:
            total += max(0, used + more - most) * FINE // max(most, 1)
    return total
