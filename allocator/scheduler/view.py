"""
The state for others: the scraped figures, and the view from which a decision can be replayed. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from allocator.cache.cache import Cache
from allocator.cache.reserved import HeldNode
from allocator.engine.reference import Policy
from allocator.queue.queue import QueuedPodInfo, QueueOrder, SchedulingQueue
from allocator.queue.records import PodRecords
from allocator.scheduler import sharing
from allocator.scoring import estimator
from allocator.scoring.classes import Demanded, supply_of
from allocator.scoring.tables import Tables
from contract.encoding import moments
from contract.model import NodeState
from contract.scheduling.clusterfilters import trimming
from contract.scheduling.clusterfilters.neighbourhood import NO_NEIGHBOURS, NeighbourSnapshot
from contract.scheduling.clusterfilters.objects import NO_RULES, PodRules
from contract.scheduling.filters import Limits
from contract.scheduling.needs import SchedulingRequest


@dataclass(frozen=True, slots=True)
class SchedulerFigures:
    """The numbers of reservations, of waiting pods, and of pods and GPUs with problems."""

    assumed: int
    confirmed: int
    waiting: int
    unreadable: int
    overcommitted: int
    unbound: int = 0
    reserved: int = 0
    quarantined: int = 0
    unread: int = 0
    """Pods and claims whose share cannot be counted."""
    parked: int = 0
    """Those of the waiting pods that are known by name only."""


@dataclass(frozen=True, slots=True)
class QueuedPodView:
    """A pod that waits."""

    key: str
    """`namespace/name`."""
    uid: str
    ask: SchedulingRequest
    priority: int = 0
    created: str = ""
    foreign: tuple[str, ...] = ()
    """Other systems' scheduling gates, which must go first."""
    busy: str = ""
    """
    Why the pod is passed over, empty where it is not: `writing` while it is being bound, `pausing` after a binding that
    failed, `in quarantine`, `by claim` where it has a claim's share, `with its gang` where it starts with others.
    """
    rules: PodRules = NO_RULES
    """What other pods and volumes have a say in, with the labels that some pod's rules ask about."""


@dataclass(frozen=True, slots=True)
class SchedulerView:
    """
    All that decides, at one moment. `queue` is in the order in which pods are tried; in the fair order each pod counts
    as placed in its turn.
    """

    limits: Limits
    policy: Policy
    nodes: tuple[NodeState, ...]
    queue: tuple[QueuedPodView, ...] = ()
    reserved: tuple[HeldNode, ...] = ()
    """The reserved nodes, and for which pods."""
    demand: tuple[tuple[Demanded, float], ...] = ()
    """The learned tables of requests, if the policy learns."""
    scarcity: tuple[int, ...] = ()
    """The tables' scarcity of each kind of card, which depends on how full the cluster was when they were made."""
    largest: int = 0
    """The number of cards of the largest node when the tables were made."""
    awaited: int = 0
    """The most whole cards of one node that a waiting pod requested at the last look; 0 if none requests several."""
    neighbours: NeighbourSnapshot = NO_NEIGHBOURS
    """The part of other nodes, pods on nodes and volumes that decides about the queue."""

    def tables(self) -> Tables | None:
        """The tables that decide, made again."""
        if not self.policy.learned:
            return None
        nodes = {node.name: node for node in self.nodes}
        made = estimator.make(self.policy.node, dict(self.demand), supply_of(nodes, self.limits))
        if made is None:
            return None
        made = replace(made, awaited=self.awaited)
        if len(made.scarcity) != len(self.scarcity):
            return made
        return replace(made, scarcity=np.array(self.scarcity, np.int64), largest=self.largest)


def _not_alone(pod: QueuedPodInfo, cache: Cache) -> str:
    """What decides about the pod apart from nodes; a view has neither claims nor gangs. Empty for most pods."""
    shared = sharing.claim_of(pod, cache.neighbours.devices.objects())
    if pod.ask.request.claim or (shared is not None and sharing.users(cache, shared)):
        return "by claim"
    return "with its gang" if pod.gang is not None else ""


def figures(cache: Cache, queue: SchedulingQueue, *, unbound: int, quarantined: int) -> SchedulerFigures:
    """Count."""
    assumed = len(cache.ledger.assumed())
    return SchedulerFigures(
        assumed=assumed,
        confirmed=len(cache.ledger) - assumed,
        waiting=len(queue) + queue.parking.number,
        parked=queue.parking.number,
        unreadable=len(queue.unreadable),
        overcommitted=sum(len(uuids) for uuids in cache.overcommitted().values()),
        unbound=unbound,
        reserved=len({each.node for each in cache.reservations}),
        quarantined=quarantined,
        unread=len(cache.suspects()),
    )


def view(cache: Cache, order: QueueOrder, records: PodRecords, now: float) -> SchedulerView:
    """Exactly the state that the next decision will use."""
    engine, queue = cache.engine, tuple(order.in_order())
    requester = [cache.neighbours.with_defaults(pod.rules) for pod in queue]
    seen, rules = trimming.trimmed(cache.neighbours.snapshot(), requester)
    others = tuple(node for node in seen.nodes if node.name not in cache.snapshot)
    waiting = tuple(
        QueuedPodView(
            pod.key,
            pod.uid,
            pod.ask,
            pod.priority,
            moments.shown(pod.created),
            pod.foreign,
            _not_alone(pod, cache) or records.busy(pod.uid, now),
            read,
        )
        for pod, read in zip(queue, rules, strict=True)
    )
    learnt = engine.tables
    return SchedulerView(
        engine.limits,
        engine.policy,
        tuple(cache.snapshot.values()),
        waiting,
        cache.reservations,
        tuple(learnt.target.items()) if learnt is not None else (),
        tuple(learnt.scarcity.tolist()) if learnt is not None else (),
        learnt.largest if learnt is not None else 0,
        learnt.awaited if learnt is not None else 0,
        replace(seen, nodes=others),
    )
