"""
The allocator's view of the cluster: nodes, their GPUs, and every pod that uses some of them.

Watch events come in, a snapshot of frozen node states comes out. The cache owns the ledger; pods that wait are in the
queue and not here. It makes no decision, does no I/O and has no clock: times are passed in. Its content is rebuilt from
the API server alone.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from sys import intern
from typing import Any

from allocator.cache import reserved, staying
from allocator.cache.agents import Agents
from allocator.cache.idle import IdleShares
from allocator.cache.ledger import (
    OWN,
    CardsChanged,
    Journal,
    Ledger,
    Reservation,
    ReservationState,
    SharesIdle,
    gpus_of,
    is_overcommitted,
    usage_of,
)
from allocator.cache.podinfo import AllocatedPods, NodeUse, PodInfo, TrackedPod
from allocator.cache.refusals import Refusals
from allocator.cache.reserved import HeldNode, Requester
from allocator.cache.starting import StartingPod, StartingPods
from allocator.cache.staying import StayingPod
from allocator.engine.engine import Engine
from allocator.engine.reference import Decision, Snapshot
from allocator.faults import Faulted, surfaced
from allocator.neighbours.pods import Neighbours
from allocator.scoring.tables import Tables
from contract.model import FREE, NO_OVERCOUNT, WHOLE, Compute, Gpu, Inventory, NodeState, Scalars, Usage
from contract.nodes import capacity
from contract.nodes.attributes import NodeFacts
from contract.nodes.capacity import Amounts
from contract.nodes.heartbeat import PATIENCE, Heartbeat
from contract.nodes.idle import IdleReport
from contract.pods import unread_cards
from contract.reasons.base import Cure
from contract.reasons.nodes import Reason
from contract.scheduling.clusterfilters import FILTERS, Filter
from contract.scheduling.clusterfilters.neighbourhood import NO_NEIGHBOURS, NeighbourSnapshot
from contract.scheduling.clusterfilters.objects import PodRules
from contract.scheduling.fairness import Held
from contract.scheduling.gates import NEWEST, Gate, Gates
from contract.scheduling.needs import SchedulingRequest
from contract.scheduling.nodefilters.resources import BY_CLAIM, added_up, minus, plus, takes_less
from contract.scheduling.nodeinfo import starting_on

JSON = dict[str, Any]
_NOTHING = Compute()
_NOBODY = Requester()
_MOST_TAKEN = 1 << 60
"""The largest amount that counts as taken of a node: a pod's author chooses the node and the amount."""
_LATELY = 2.0
"""Seconds."""
_MOST_LATELY = 4096
"""Recent pods that are remembered."""
_SUSPECT = "a pod on it could not be counted"
_NO_PORTS: frozenset[tuple[str, str, int]] = frozenset()


@dataclass(frozen=True, slots=True)
class FrozenCluster:
    """The input of decisions at one moment: the nodes, their reservations, and the learned tables."""

    nodes: tuple[NodeState, ...]
    reservations: tuple[HeldNode, ...] = ()
    tables: Tables | None = None
    to_come: tuple[NodeState, ...] = ()
    """An empty node of each declared pool."""
    neighbours: NeighbourSnapshot = NO_NEIGHBOURS
    """Pods, namespaces and volumes, for filters that look beyond one node."""


class Pending:
    """
    The amounts that kube-scheduler is about to place: CPU, memory and storage of pods that have no node yet, by uid.

    A pod that is bound when it is admitted competes with these for its node, and its kubelet refuses the second of the
    two. The nodes that they may go to are not considered, because this would mean keeping the selectors of pods without
    GPUs. So it is an upper bound. Recent pods count even if they have a node by now, because the watch may be late with
    as many others. Not thread-safe: one owner calls it.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, Compute] = {}
        self._came: deque[tuple[float, Compute]] = deque(maxlen=_MOST_LATELY)
        self._sum = Compute()

    def __contains__(self, uid: str) -> bool:
        """Whether the pod has no node yet."""
        return uid in self._waiting

    def uids(self) -> frozenset[str]:
        """Every pod without a node."""
        return frozenset(self._waiting)

    def put(self, uid: str, compute: Compute, now: float) -> None:
        """A pod without a node is new or changed. Only what every node has is counted."""
        compute = replace(compute, scalars=()) if compute.scalars else compute
        before = self._waiting.get(uid)
        if before is None:
            self._came.append((now, compute))
        else:
            self._sum = minus(self._sum, before)
        self._waiting[uid] = compute
        self._sum = plus(self._sum, compute)

    def drop(self, uid: str) -> None:
        """The pod has a node, finished or was deleted."""
        before = self._waiting.pop(uid, None)
        if before is not None:
            self._sum = minus(self._sum, before)

    def total(self, now: float) -> Compute:
        """The sum of the pods that wait for a node and of recent pods."""
        while self._came and self._came[0][0] < now - _LATELY:
            self._came.popleft()
        found = self._sum
        for _, compute in self._came:
            found = plus(found, compute)
        return found

    def check_invariants(self) -> None:
        """Raise unless the sum is that of the pods."""
        found = Compute()
        for compute in self._waiting.values():
            found = plus(found, compute)
        if found != self._sum:
            raise AssertionError("what waits for a node is not what its pods need")


class Cache:
    """The state. Not thread-safe: one owner calls it."""

    def __init__(
        self,
        *,
        engine: Engine,
        faulted: Faulted = surfaced,
        journal: Journal | None = None,
        gates: Gates = NEWEST,
        filters: tuple[Filter, ...] = FILTERS,
        patience: float = PATIENCE,
    ) -> None:
        """
        `gates`: kube-scheduler's feature gates that are on. `filters`: those that look beyond one node. `patience`:
        seconds for which an agent may be silent; 0: forever.

        `faulted` is called with a node whose state cannot be made; the node then counts as absent. `journal` notes
        every share that comes or goes, and every node whose cards change.
        """
        self._faulted = faulted
        self._gates = gates
        self._suspect: dict[str, frozenset[str]] = {}
        """Nodes on which a pod may hold a share that cannot be counted, by that pod or claim."""
        self._suspect_on: dict[str, dict[str, frozenset[str]]] = {}
        """The same by node: the pods and claims, and for each the UUIDs of its cards, among other texts."""
        self._journal = journal
        self.ledger = Ledger(journal)
        self.engine = engine
        """Gets every node state that changes, so that it can decide at any time."""
        self._facts: dict[str, NodeFacts] = {}
        self._inventories: dict[str, Inventory] = {}
        self._agents = Agents(patience)
        self.idle_shares = IdleShares()
        """The pods that compute nothing."""
        self.starting = StartingPods()
        """The pods that start alone and are not ready; other parts only read it."""
        self.allocated = AllocatedPods()
        """The pods that hold a share and were seen."""
        self._on_node: dict[str, NodeUse] = {}
        self.neighbours = Neighbours(gates, filters)
        """All pods on nodes, for the rules between them; other parts only read it."""
        self.refusals = Refusals()
        """The refusals of kube-scheduler; other parts only read them."""
        self.pending = Pending()
        """Pods that kube-scheduler is about to place; other parts only read it."""
        self._pods_of: dict[str, dict[str, NodeUse]] = {}
        self._by_claim: frozenset[str] = frozenset()
        """Extended resources for which DeviceClasses stand."""
        self._snapshot: dict[str, NodeState] = {}
        self._overcommitted: dict[str, tuple[str, ...]] = {}
        self.gpus = 0
        """The total number of GPUs."""
        self._totals: Held | None = None
        """The total amounts of all GPUs; None if they must be added up again."""
        self._kept: tuple[HeldNode, ...] = ()
        self._closed: frozenset[str] = frozenset()
        self.changes = 0
        """The number of changes of the input of decisions: of the state of a node, or of the reserved nodes."""
        self._cures: set[Cure] = set()
        self.freed: set[str] = set()
        """Nodes that may have more room than when its reader emptied it."""
        self._touched: dict[str, None] = {}
        self._joining: dict[str, tuple[str, Amounts]] = {}
        """Pods of the queue that wait until Kubernetes has room on a node for a share that other pods have: by uid."""
        self._stale: set[str] | None = None
        """Nodes that changed since `hold`; None if every state is what it should be."""

    # -- reading --------------------------------------------------------------------------------------------------

    @property
    def snapshot(self) -> Snapshot:
        """Every node with an inventory. The mapping is live, its values are frozen."""
        return self._snapshot

    def idle(self, name: str) -> NodeState | None:
        """A node as it is without pods, but for those that it always has: DaemonSets' and static ones."""
        state = self._snapshot.get(name)
        if state is None:
            return None
        uses = (use for use in self._pods_of.get(name, {}).values() if use.staying)
        pods = (StayingPod(use.staying, use.compute, use.host_ports) for use in uses)
        requested, host_ports = staying.taken_by(pods, state.allocatable)
        free = (FREE,) * len(state.gpus)
        return replace(state, usage=free, requested=requested, host_ports=host_ports, overcount=NO_OVERCOUNT)

    def tracked(self, uid: str) -> TrackedPod:
        """The record of a pod that does not wait; `UNTRACKED` for a pod that uses nothing of any node."""
        taken, holding = self._on_node.get(uid), self.ledger.holding(uid)
        return TrackedPod(
            node=taken.node if taken is not None and not taken.nominated else "",
            allocation=holding.allocation if holding is not None else None,
        )

    def tracks(self, uid: str) -> bool:
        """Whether the pod takes something of a node."""
        return uid in self._on_node or self.ledger.holding(uid) is not None

    @property
    def reservations(self) -> tuple[HeldNode, ...]:
        """The reservations of nodes, which are closed to other pods."""
        return self._kept

    def frozen(self, to_come: tuple[NodeState, ...] = ()) -> FrozenCluster:
        """The cluster at this moment, for decisions that are only tried."""
        seen = self.neighbours.snapshot()
        return FrozenCluster(tuple(self._snapshot.values()), self._kept, self.engine.tables, to_come, seen)

    def decide(self, ask: SchedulingRequest, who: Requester = _NOBODY) -> Decision:
        """The place of a pod."""
        self.prepare()
        refused = self.refused_by_others(ask, who)
        prefer = self.neighbours.preference(who.rules, ask.needs)
        return reserved.decide(self.engine, self._snapshot, self._kept, ask, who, refused, prefer)

    def refused_by_others(
        self, ask: SchedulingRequest, who: Requester, nodes: Iterable[NodeState] | None = None
    ) -> Mapping[str, Reason]:
        """
        The nodes that other pods or kube-scheduler refuse for this pod, with the reason; see `Neighbours` and
        `Refusals`. `nodes`: those about which other pods are asked; None for all.
        """
        found = self.neighbours.refused(who.rules, ask.needs, self._snapshot.values() if nodes is None else nodes)
        learnt = self.refusals.of(who.family)
        return {**learnt, **found} if learnt else found

    def learn_refusal(self, family: str, node: str, message: str, now: float) -> None:
        """kube-scheduler has refused a pod of the family on the node, with this message."""
        self.refusals.learn(family, node, message, now)
        self.changes += 1

    def expire_refusals(self, now: float) -> bool:
        """Forget the refusals that are over. True if there was any, so that pods may fit now."""
        over = self.refusals.expire(now)
        if over:
            self.changes += 1
            self._cures.add(Cure.TIME)
        return over

    def closed_pools(self, ask: SchedulingRequest, rules: PodRules, empty: Iterable[NodeState]) -> frozenset[str]:
        """The pools, of each an empty node under its name, on whose new nodes other pods or volumes refuse the pod."""
        if not self.neighbours.concerns(rules):
            return frozenset()
        refused = (node.name for node in empty if self.neighbours.refused_if_new(rules, ask.needs, node) is not None)
        return frozenset(refused)

    def overcommitted(self) -> dict[str, tuple[str, ...]]:
        """GPUs with more booked than they have, by node."""
        return dict(self._overcommitted)

    def totals(self) -> Held:
        """The memory that all GPUs may promise together, and their cores."""
        if self._totals is None:
            capacity = self.engine.limits.capacity
            gpus = [gpu for state in self._snapshot.values() for gpu in state.gpus]
            self._totals = Held(sum(map(capacity, gpus)), WHOLE * len(gpus))
        return self._totals

    def inventory(self, name: str) -> Inventory | None:
        """A node's GPUNode, whether there is a Node of the name or not."""
        return self._inventories.get(name)

    def unserved(self, name: str) -> Amounts:
        """The amounts that Kubernetes counts on a node for pods that run there without their requested share."""
        return capacity.total(use.unserved for use in self._pods_of.get(name, {}).values())

    def counted_again(self, name: str) -> Amounts:
        """
        The amounts that Kubernetes counts on a node for pods that use, or are about to use, a ResourceClaim alongside
        another pod. The node's capacity exceeds the promise of its GPUs by this.
        """
        found = self.ledger.counted_again(name)
        about_to = (amounts for node, amounts in self._joining.values() if node == name)
        return capacity.total((Amounts(found.memory, found.cores), *about_to))

    def room_to_join(self, uid: str, name: str, wanted: Amounts) -> Amounts | None:
        """
        The room that Kubernetes has left on a node for a pod that uses other pods' share; None if it has enough.
        Until it has, the pod counts in `counted_again`, by which the node's agent makes the capacity larger.

        A Node without accounting resources is not asked: kube-scheduler binds no pod to it.
        """
        self._leave(uid)
        left = self._accounting_left(name)
        if left is None or wanted.above(left) == capacity.NOTHING:
            return None
        self._joining[uid] = name, wanted
        self._touched[name] = None
        return left

    def _leave(self, uid: str) -> None:
        """The pod no longer waits for that."""
        before = self._joining.pop(uid, None)
        if before is not None:
            self._touched[before[0]] = None

    def _accounting_left(self, name: str) -> Amounts | None:
        """The room that Kubernetes has left on a node; None if the Node does not publish its amounts."""
        facts = self._facts.get(name)
        if facts is None or facts.accounting is None:
            return None
        more = self.ledger.overcount(name) + self.ledger.counted_again(name)
        used = (Amounts(usage.memory, usage.cores) for usage in self.ledger.used(name).values())
        return facts.accounting.above(capacity.total((*used, Amounts(more.memory, more.cores), self.unserved(name))))

    def take_cures(self) -> frozenset[Cure]:
        """The changes since the last call that may let a waiting pod fit, by their names in the registry."""
        found = frozenset(self._cures | self.neighbours.take_cures())
        self._cures.clear()
        return found

    def take_touched(self) -> tuple[str, ...]:
        """The nodes that have changed since the last call: their GPUs, or what is taken there."""
        touched, self._touched = tuple(self._touched), {}
        return touched

    # -- nodes ----------------------------------------------------------------------------------------------------

    def put_node(self, facts: NodeFacts) -> bool:
        """A Node is new or changed. True if a waiting pod might fit better now."""
        before = self._facts.get(facts.name)
        if before == facts:
            return False
        self._facts[facts.name] = facts
        self.neighbours.put_node(facts)
        helps = before is not None and before.accounting != facts.accounting and self._is_joined(facts.name)
        if helps:
            self._cures.add(Cure.ALLOCATABLE)
        return self._refresh(facts.name) or helps

    def _is_joined(self, name: str) -> bool:
        """Whether a pod waits until Kubernetes has room for it there."""
        return any(node == name for node, _ in self._joining.values())

    def facts(self) -> tuple[NodeFacts, ...]:
        """Every Node."""
        return tuple(self._facts.values())

    def replace_nodes(self, listed: Mapping[str, NodeFacts]) -> None:
        """All Nodes that exist, by name."""
        for removed in self._facts.keys() - listed.keys():
            self.drop_node(removed)
        for facts in listed.values():
            self.put_node(facts)

    def replace_inventories(self, listed: Mapping[str, Inventory]) -> None:
        """All GPUNodes that exist, by name."""
        for removed in self._inventories.keys() - listed.keys():
            self.drop_inventory(removed)
        for inventory in listed.values():
            self.put_inventory(inventory)

    def drop_node(self, name: str) -> bool:
        """A Node was deleted."""
        self._facts.pop(name, None)
        self.neighbours.drop_node(name)
        return self._refresh(name)

    def offered(self, name: str) -> frozenset[str]:
        """The resources by which NVIDIA's own plugin hands out GPUs on a node; none if there is no such node."""
        facts = self._facts.get(name)
        return facts.vendors if facts is not None else frozenset()

    def put_inventory(self, inventory: Inventory) -> bool:
        """A GPUNode is new or changed. True if a waiting pod might fit better now."""
        if self._inventories.get(inventory.node) == inventory:
            return False
        self._inventories[inventory.node] = inventory
        return self._refresh(inventory.node)

    def drop_inventory(self, name: str) -> bool:
        """A GPUNode was deleted."""
        self._inventories.pop(name, None)
        return self._refresh(name)

    # -- pods -----------------------------------------------------------------------------------------------------

    def put_pod(self, pod: PodInfo, now: float) -> bool:
        """A pod is new or changed. True if something was given back. A pod behind our gate holds nothing."""
        if pod.resized is not None and Gate.IN_PLACE_RESIZE in self._gates:
            pod = pod._replace(compute=pod.resized)
        uid, allocation, request = pod.uid, pod.allocation, pod.request
        self._note_neighbour(pod)
        if pod.finished:
            if pod.ended is not None and self.ledger.holding(uid) is None:
                self.ledger.note_ended(
                    pod.key, uid, pod.ended.request, pod.ended.allocation, pod.held_since, pod.ended.until
                )
            # It may have been created and have finished between two looks, so that its reservation is still assumed.
            came = self.forget(pod.allocation_id)
            return self.drop_pod(uid) or came
        if pod.waiting is not None:
            return self._release(uid)
        self._leave(uid)
        changed = False
        if request is not None and allocation is not None:
            holding = Reservation(
                uid,
                pod.key,
                request,
                allocation,
                _NOTHING,
                ReservationState.CONFIRMED,
                now,
                held_since=pod.held_since,
            )
            before = self.ledger.holding(uid)
            changed = self.ledger.confirm(holding)
            if before is not None and before.allocation.node != allocation.node:
                self._refresh(before.allocation.node)
        else:
            self._release(uid)
        self._note_pending(pod, now)
        shrank = self._put_on_node(pod)
        booked, opened = self.ledger.holding(uid), False
        if booked is not None:
            self.allocated.see(pod, booked, now)
            if self._note_start(pod, booked):
                changed, opened = True, pod.starting is None
            if changed:
                self._refresh(booked.allocation.node)
        return shrank or opened

    def _note_start(self, pod: PodInfo, booked: Reservation) -> bool:
        """Whether the pod is starting alone. True if it closes other GPUs than before, or none any more."""
        if pod.starting is None:
            return self.starting.drop(pod.uid)
        cards = gpus_of(booked)
        return self.starting.see(StartingPod(pod.uid, pod.key, booked.allocation.node, cards, pod.starting))

    def end_starts(self, now: float, wall: float, bound: float) -> tuple[StartingPod, ...]:
        """The pods whose start closes no GPU any more, since it has taken too long; see `StartingPods.take_overdue`."""
        found = self.starting.take_overdue(now, wall, bound)
        for node in {pod.node for pod in found}:
            self._refresh(node)
        return found

    def drop_pod(self, uid: str) -> bool:
        """A pod finished or was deleted. True if that gave something back."""
        self._leave(uid)
        self.pending.drop(uid)
        self.neighbours.drop(uid)
        known = self._on_node.pop(uid, None)
        if known is not None:
            self._pods_of[known.node].pop(uid, None)
        released = self._release(uid)
        if known is not None:
            self._refresh(known.node)
        return released or (known is not None and known.node in self._snapshot)

    def book(self, holding: Reservation) -> None:
        """Book the share of an ElasticGPU, in place of what was booked under its key before."""
        before = self.ledger.holding(holding.key)
        if self.ledger.confirm(holding):
            for node in {h.allocation.node for h in (before, holding) if h is not None}:
                self._refresh(node)

    def unbook(self, key: str) -> bool:
        """An ElasticGPU was deleted. True if it had a share booked."""
        return self._release(key)

    def pod_uids(self) -> frozenset[str]:
        """Every pod that takes something of a node, or is about to."""
        return frozenset((*self._on_node, *self.pending.uids(), *self._holding_pods()))

    def _holding_pods(self) -> Iterator[str]:
        return (h.key for h in self.ledger if h.state is ReservationState.CONFIRMED and not h.key.startswith(OWN))

    # -- many changes at once -------------------------------------------------------------------------------------

    def hold(self) -> None:
        """
        Many changes follow: leave nodes' states as they are until `catch_up` makes each of them once.

        Decide nothing in between, and ignore what `put_node` and the others return.
        """
        if self._stale is None:
            self._stale = set()

    def catch_up(self) -> None:
        """Make the state of every node that has changed since `hold`."""
        stale, self._stale = self._stale, None
        for name in stale or ():
            self._refresh(name)

    def prepare(self) -> None:
        """Prepare the engine for decisions; a node that it cannot take in counts as absent."""
        try:
            self.engine.prepare()
        except Exception:
            for name, state in tuple(self._snapshot.items()):
                if not self.engine.takes(state):
                    self._faulted("node", name)
                    self._without(name)
            self.engine.prepare()

    # -- pods that cannot be counted ------------------------------------------------------------------------------

    def close(self, who: str, nodes: frozenset[str], cards: frozenset[str] = frozenset()) -> bool:
        """
        Let no new pod onto these nodes: `who`, a pod or claim, may hold a share there that could not be counted.

        `cards`: texts among which are the UUIDs of its cards, so that the others stay open; where none of them is on a
        node, all of it is closed. Until it is counted, or deleted: `open`. True if that is news.
        """
        before = self._suspect.pop(who, frozenset())
        known = {name: self._suspect_on[name].pop(who) for name in before}
        if nodes:
            self._suspect[who] = nodes
        for name in nodes:
            self._suspect_on.setdefault(name, {})[who] = cards
        changed = [name for name in before | nodes if known.get(name) != self._suspect_on.get(name, {}).get(who)]
        for name in changed:
            if not self._suspect_on[name]:
                del self._suspect_on[name]
            self._refresh(name)
        return bool(changed)

    def suspects(self) -> frozenset[str]:
        """The pods and claims for which nodes are closed."""
        return frozenset(self._suspect)

    def open(self, who: str) -> bool:
        """Count again the amounts that this pod or claim holds. True if nodes were closed for it."""
        return who in self._suspect and self.close(who, frozenset())

    def _gpus(self, inventory: Inventory) -> tuple[Gpu, ...]:
        suspects = self._suspect_on.get(inventory.node)
        if suspects is None:
            return inventory.gpus
        uuids = {gpu.uuid for gpu in inventory.gpus}
        closed = set[str]().union(*(unread_cards(texts, uuids) for texts in suspects.values()))
        return tuple(
            replace(gpu, healthy=False, reason=_SUSPECT) if gpu.uuid in closed else gpu for gpu in inventory.gpus
        )

    # -- silent agents --------------------------------------------------------------------------------------------

    def hear(self, node: str, beat: Heartbeat, now: float, *, listed: bool = False) -> bool:
        """Apply a GPUNode's report about its agent; see `Agents.hear`. True if a waiting pod might fit better now."""
        return self._agents.hear(node, beat, now, listed=listed) and self._refresh(node)

    def retain_agents(self, nodes: Collection[str]) -> None:
        """All GPUNodes that there are."""
        for node in self._agents.nodes().difference(nodes):
            if self._agents.drop(node):
                self._refresh(node)

    def restart_silence(self, now: float) -> None:
        """Agents could not be heard for a while; see `Agents.restart`."""
        self._agents.restart(now)

    def take_silent(self, now: float) -> Mapping[str, float]:
        """The nodes that take no new pods from now on, since their agents are silent, and for how many seconds."""
        found = self._agents.take_silent(now)
        for node in found:
            self._refresh(node)
        return found

    # -- idle shares ----------------------------------------------------------------------------------------------

    def report_idle(self, node: str, report: IdleReport, now: float, *, listed: bool = False) -> None:
        """Apply a GPUNode's report about the idle shares of its node. `listed`: the report may be old."""
        if self.idle_shares.see(node, report, now, listed=listed):
            self._note_idle(node, {pod: now - (report.lasted(pod) or 0) for pod in report.shares})

    def retain_idle(self, nodes: Collection[str]) -> None:
        """All GPUNodes that there are."""
        for removed in self.idle_shares.retain(nodes):
            self._note_idle(removed, {})

    def drop_idle(self, node: str) -> None:
        """A GPUNode was deleted."""
        self.idle_shares.drop(node)
        self._note_idle(node, {})

    def _note_idle(self, node: str, since: Mapping[str, float]) -> None:
        if self._journal is not None:
            self._journal.note(SharesIdle(node, since))

    # -- reserving nodes ------------------------------------------------------------------------------------------

    def reserve(self, *kept: HeldNode) -> bool:
        """Reserve exactly these nodes from now on. True if that opens a node that was reserved before."""
        before, after = {one.node for one in self._kept}, {one.node for one in kept}
        self.changes += self._kept != kept
        if self._kept != kept:
            self._cures.add(Cure.RESERVATION)
        self._kept = kept
        self._closed = frozenset(after)
        for name in before ^ after:
            if name in self._snapshot:
                self.engine.put(self._shown(self._snapshot[name]))
        return bool(before - after)

    def _shown(self, state: NodeState) -> NodeState:
        return reserved.closed(state) if state.name in self._closed else state

    # -- reservations ---------------------------------------------------------------------------------------------

    def assume(self, holding: Reservation) -> None:
        """Reserve what was just decided."""
        self.ledger.assume(holding)
        if holding.rules is not None:
            self.neighbours.put(holding.allocation.id, holding.rules.placed(), holding.allocation.node)
            self.neighbours.assume_volumes(holding.allocation.id, holding.rules, holding.allocation.node)
        self._refresh(holding.allocation.node)

    def forget(self, allocation_id: str) -> bool:
        """Drop a reservation. True if it gave something back."""
        holding = self.ledger.holding(allocation_id)
        if holding is None or not self.ledger.forget(allocation_id):
            return False
        self.neighbours.drop(allocation_id)
        self.neighbours.settle_volumes(allocation_id)
        self._refresh(holding.allocation.node)
        return True

    def renew(self, allocation_id: str, now: float) -> None:
        """Restart the time of a reservation whose pod exists."""
        self.ledger.renew(allocation_id, now)

    # -- inside ---------------------------------------------------------------------------------------------------

    def _release(self, uid: str) -> bool:
        holding = self.ledger.holding(uid)
        if holding is None:
            return False
        self.ledger.release(uid)
        self.starting.drop(uid)
        self.allocated.drop(uid)
        self.neighbours.settle_volumes(holding.allocation.id)
        self._refresh(holding.allocation.node)
        return True

    def _note_pending(self, pod: PodInfo, now: float) -> None:
        """Whether kube-scheduler is about to place the pod: not where gates hold it, or while it is deleted."""
        if pod.node or pod.gated or pod.deleting:
            self.pending.drop(pod.uid)
        else:
            self.pending.put(pod.uid, pod.compute, now)

    def _note_neighbour(self, pod: PodInfo) -> None:
        """Count the pod on its node, and no longer where its share was reserved."""
        if pod.allocation_id and pod.allocation is not None:
            self.neighbours.drop(pod.allocation_id)
            if pod.bound:
                self.neighbours.settle_volumes(pod.allocation_id)
            else:
                self.neighbours.assume_volumes(pod.allocation_id, pod.rules, pod.allocation.node)
        node = pod.node or pod.nominated
        if node and not pod.finished:
            self.neighbours.put(pod.uid, pod.rules.placed(terminating=pod.deleting), node)
        else:
            self.neighbours.drop(pod.uid)

    def _put_on_node(self, pod: PodInfo) -> bool:
        """
        Count what the pod takes of its node, or of the one that is nominated for it; it may be resized there. True if
        it takes less than before.
        """
        uid, node = pod.uid, pod.node or pod.nominated
        known = self._on_node.get(uid)
        namespace = intern(pod.key.split("/", 1)[0]) if pod.daemon and pod.node else ""
        entry = None
        if node:
            entry = NodeUse(node, pod.compute, pod.host_ports, pod.unserved, namespace, nominated=not pod.node)
        if known == entry:
            return False
        if known is not None:
            self._pods_of[known.node].pop(uid, None)
            del self._on_node[uid]
            if entry is None or entry.node != known.node:
                self._refresh(known.node)
        if entry is None:
            return known is not None
        self._on_node[uid] = entry
        self._pods_of.setdefault(node, {})[uid] = entry
        self._refresh(node)
        return known is not None and (known.node != node or _takes_less(entry.compute, known.compute))

    def _refresh(self, name: str) -> bool:
        """Make the node's state. True if it changed."""
        self._touched[name] = None
        if self._stale is not None:
            self._stale.add(name)
            return False
        try:
            return self._make(name)
        except Exception:
            # The former state may have more room than there is.
            self._without(name)
            self._faulted("node", name)
            return False

    def _make(self, name: str) -> bool:
        before = self._snapshot.get(name)
        after = self._state(name)
        if before is not after and (before is None or after is None or before.gpus is not after.gpus):
            self._cards_changed(name, before, after)
        self.gpus += (len(after.gpus) if after is not None else 0) - (len(before.gpus) if before is not None else 0)
        if after is None:
            self._snapshot.pop(name, None)
            self._overcommitted.pop(name, None)
            self.engine.drop(name)
            self.changes += before is not None
            return before is not None
        if before == after:
            return False
        self.changes += 1
        found = cures(before, after) if before is not None else _JOINS
        if found:
            self._cures |= found
            self.freed.add(name)
        self._snapshot[name] = after
        self._note_overcommitted(after)
        self.engine.put(self._shown(after))
        return True

    def _cards_changed(self, name: str, before: NodeState | None, after: NodeState | None) -> None:
        self._totals = None
        if self._journal is not None:
            since = self._facts[name].created if before is None and name in self._facts else 0.0
            self._journal.note(CardsChanged(name, after.gpus if after is not None else (), since))

    def _without(self, name: str) -> None:
        self.changes += 1
        self._cards_changed(name, self._snapshot.get(name), None)
        self._snapshot.pop(name, None)
        self._overcommitted.pop(name, None)
        self.engine.abandon(name)

    def _note_overcommitted(self, state: NodeState) -> None:
        pairs = zip(state.gpus, state.usage, strict=True)
        found = tuple(gpu.uuid for gpu, usage in pairs if is_overcommitted(gpu, usage, self.engine.limits))
        if found:
            self._overcommitted[state.name] = found
        else:
            self._overcommitted.pop(state.name, None)

    def _state(self, name: str) -> NodeState | None:
        facts, inventory = self._facts.get(name), self._inventories.get(name)
        if facts is None or inventory is None:
            return None
        taken = [*self._pods_of.get(name, {}).values()]
        assumed = self.ledger.compute_assumed(name)
        return NodeState(
            name=name,
            gpus=self._gpus(inventory),
            usage=self._usage(inventory, assumed),
            labels=facts.labels,
            taints=facts.taints,
            cordoned=facts.cordoned,
            ready=facts.ready,
            silent=name in self._agents.silent,
            allocatable=self._allocatable(facts),
            requested=_sum([*(entry.compute for entry in taken), *(h.compute for h in assumed)], facts.allocatable),
            delivery=inventory.delivery,
            isolation=inventory.isolation,
            features=facts.features if Gate.DECLARED_FEATURES in self._gates else None,
            overcount=self.ledger.overcount(name),
            host_ports=_NO_PORTS.union(*(e.host_ports for e in taken), *(h.host_ports for h in assumed)),
        )

    def _usage(self, inventory: Inventory, assumed: Iterable[Reservation]) -> tuple[Usage, ...]:
        """The usage of the node's GPUs. A share that is assumed for a pod that starts alone counts as starting."""
        usage = usage_of(inventory.gpus, self.ledger, inventory.node)
        starting = Counter(self.starting.on(inventory.node))
        for holding in assumed:
            if holding.request.alone:
                starting.update(gpus_of(holding))
        return starting_on(inventory.gpus, usage, starting) if starting else usage

    def _allocatable(self, facts: NodeFacts) -> Compute:
        """The node's amounts. Only kube-scheduler knows the amount of a resource that only ResourceClaims provide."""
        by_claim = self._by_claim.difference(name for name, much in facts.allocatable.scalars or () if much)
        if not by_claim:
            return facts.allocatable
        own = (each for each in facts.allocatable.scalars or () if each[0] not in by_claim)
        return replace(facts.allocatable, scalars=tuple(sorted((*own, *((name, BY_CLAIM) for name in by_claim)))))

    def devices_changed(self) -> bool:
        """ResourceClaims or DeviceClasses are new or changed. True if a waiting pod might fit better now."""
        found = self.neighbours.extended_resources()
        if found == self._by_claim:
            return False
        self._by_claim = found
        return any([self._refresh(name) for name in self._snapshot.keys() & self._facts.keys()])

    def check_invariants(self) -> None:
        """Raise unless the ledger is consistent and every snapshot state is what it would be if made now."""
        self.ledger.check_invariants()
        self.pending.check_invariants()
        self.neighbours.check_invariants()
        if {pod.uid for on in self.allocated.by_node().values() for pod in on} != set(self._holding_pods()):
            raise AssertionError("the pods that hold a share are not those of the ledger")
        for each in self.starting:
            holding = self.ledger.holding(each.uid)
            if holding is None or (holding.allocation.node, gpus_of(holding)) != (each.node, each.gpus):
                raise AssertionError("a pod that starts alone does not hold the share that it starts on")
        names_known = self._facts.keys() & self._inventories.keys()
        if self._stale is None and self._snapshot != {name: self._state(name) for name in names_known}:
            raise AssertionError("the snapshot is not what nodes, pods and ledger say")
        if self.gpus != sum(len(state.gpus) for state in self._snapshot.values()):
            raise AssertionError("the number of GPUs is not what the nodes have")
        limits = self.engine.limits
        found = {name: self.ledger.overcommitted(name, state.gpus, limits) for name, state in self._snapshot.items()}
        if self._stale is None and self._overcommitted != {name: uuids for name, uuids in found.items() if uuids}:
            raise AssertionError("the overcommitted GPUs differ from the ledger")


def _sum(amounts: Iterable[Compute], allocatable: Compute) -> Compute:
    """The sum; of other resources only those that the node has."""
    cpu = memory = storage = count = 0
    others: list[Scalars] = []
    for amount in amounts:
        cpu += amount.cpu
        memory += amount.memory
        storage += amount.storage
        count += amount.pods
        if amount.scalars:
            others.append(amount.scalars)
    scalars: Scalars = ()
    if others:
        listed = dict(allocatable.scalars or ())
        scalars = tuple(each for each in added_up(others, _MOST_TAKEN) if each[0] in listed)
    return Compute(min(cpu, _MOST_TAKEN), min(memory, _MOST_TAKEN), min(storage, _MOST_TAKEN), count, scalars)


_JOINS = frozenset((Cure.NODE,))


def cures(before: NodeState, after: NodeState) -> frozenset[Cure]:
    """The cures that the change of a node may bring; empty if no pod can newly fit there."""
    found = (
        (Cure.GPUS, _cards(before) != _cards(after)),
        (Cure.LABELS, before.labels != after.labels),
        (Cure.TAINTS, (before.taints, before.cordoned) != (after.taints, after.cordoned)),
        (Cure.READY, (before.ready, before.silent) != (after.ready, after.silent)),
        (Cure.ALLOCATABLE, before.allocatable != after.allocatable),
        (Cure.FEATURES, before.features != after.features),
        (Cure.SHARE, any(_is_less(now, was) for now, was in zip(after.usage, before.usage, strict=False))),
        (Cure.SHARE, before.overcount is not after.overcount and bool(before.overcount - after.overcount)),
        (Cure.ROOM, _takes_less(after.requested, before.requested) or after.requested.pods < before.requested.pods),
        (Cure.PORTS, not before.host_ports <= after.host_ports),
    )
    return frozenset(cure for cure, happened in found if happened)


def _cards(node: NodeState) -> tuple[object, ...]:
    return node.gpus, node.delivery, node.isolation


def _is_less(now: Usage, was: Usage) -> bool:
    return (
        now.memory < was.memory
        or now.cores < was.cores
        or now.sharers < was.sharers
        or now.memory + now.burst < was.memory + was.burst
        or (was.exclusive and not now.exclusive)
        or now.starting < was.starting
    )


def _takes_less(now: Compute, before: Compute) -> bool:
    return (
        now.cpu < before.cpu
        or now.memory < before.memory
        or now.storage < before.storage
        or (bool(before.scalars) and takes_less(now.scalars, before.scalars))
    )
