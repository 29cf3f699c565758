"""
The shell around the allocator's state: it builds the parts, holds the only lock, and hands each call to the part that
answers it.

Events in (`handle`), effects out (`tick`, `schedule_pending`): see `allocator.scheduler.events`. Every public method
takes the lock, works on memory only and returns at once; workers do what takes time. So a decision and its reservation
are one step, and no two can take the same share.

| part | what it does |
|---|---|
| `SchedulerState` | what is where; who waits; what was reported to pods and what is written; what other parts share |
| `Leadership` | whether this replica may decide |
| `EventHandlers` | takes in what the watches bring; its `Fence` and `LatePods` handle the former leader's writes |
| `Admission` | answers the webhook |
| `SchedulingCycle` | decides for pending pods; its `Bindings` take in the result of each write |
| `Preemptor` | makes room |
| `Housekeeping` | what depends on time; it reserves nodes, and reports what is wrong and what nodes' agents report |
| `Core`, `FeaturePart` | what a feature may use, and what it adds |
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar, get_args

from allocator.cache.cache import Cache, FrozenCluster
from allocator.cache.ledger import Change, Journal
from allocator.cache.podinfo import PodEvent
from allocator.cache.reserved import HeldNode
from allocator.faults import Faulted, surfaced
from allocator.queue.records import Binding, Eviction, Report
from allocator.scheduler import view
from allocator.scheduler.admission import Admission
from allocator.scheduler.consistency import ListedPod
from allocator.scheduler.cycle import SchedulingCycle
from allocator.scheduler.events import (
    AgentsHeard,
    AssumedChecked,
    BarrierWritten,
    BindAbandoned,
    BindFailed,
    BindFaulted,
    BindSucceeded,
    BindUnknown,
    DriftFound,
    Effect,
    Event,
    EvictionAnswered,
    ExcludedGpusChanged,
    ExcludedGpusListed,
    FenceRefused,
    HeldBeyondChanged,
    IdleSharesReported,
    InventoriesListed,
    InventoryChanged,
    InventoryDeleted,
    LatePodFailed,
    NamespacesLabelled,
    NodeChanged,
    NodeDeleted,
    NodesListed,
    ParkedRead,
    PodDeleted,
    PodFenced,
    PodsListed,
    PodsReported,
    PoolsDeclared,
    ProfilesDeclared,
    QueueWeighed,
    ShareTaken,
    StorageChanged,
    StorageDeleted,
    StorageListed,
    TickPhase,
    UncountedFound,
    UntoldRead,
)
from allocator.scheduler.handlers import EventHandlers
from allocator.scheduler.housekeeping import Housekeeping
from allocator.scheduler.leadership import Leadership, SchedulerState
from allocator.scheduler.parts import NO_CLAIMS, NO_GANGS, Core, FeaturePart, Handler, Search
from allocator.scheduler.reservations import Preemptor
from allocator.scheduler.view import SchedulerFigures, SchedulerView
from allocator.scoring.tables import Tables
from allocator.settings import Settings
from contract.dialects import DIALECTS
from contract.dialects.table import Dialects
from contract.encoding.protocol import Answer, Question
from contract.model import GpuKind, NodeState, PodRequest
from contract.nodes.attributes import NodeFacts
from contract.scheduling.gates import NEWEST, Gates
from contract.scheduling.needs import SchedulingRequest

T = TypeVar("T")
_LOOKED_AT = 256
"""Nodes looked at in one turn."""


class Controller:
    """The lock, and the parts behind it."""

    def __init__(
        self,
        *,
        cache: Cache,
        settings: Settings,
        gates: Gates = NEWEST,
        by_claims: bool = False,
        dialects: Dialects = DIALECTS,
        clock: Callable[[], float],
        new_id: Callable[[], str],
        leading: Callable[[], bool],
        wake: Callable[[], None],
        term: Callable[[], int | None] | None = None,
        forgotten: Callable[[str], None] = lambda reason: None,
        on_request: Callable[[PodRequest, int], None] = lambda request, cpu: None,
        faulted: Faulted = surfaced,
        give_way: Callable[[], None] = lambda: None,
        journal: Journal | None = None,
        wall: Callable[[], float] = lambda: 0.0,
        hints: bool = True,
        parts: Iterable[Callable[[Core], FeaturePart]] = (),
    ) -> None:
        """
        `gates`: kube-scheduler's feature gates that are on. `by_claims`: whether pods name ResourceClaims, by which
        some nodes deliver. `clock`: seconds from any start, never going back. `wall`: seconds since the epoch, by which
        pods' ages are measured. `new_id`: an allocation's id, unique. `wake` is called when there may be something to
        decide or to write, `forgotten` with the reason of each reservation that is given back before its pod was seen,
        `on_request` once for each pod that requests a share, with its CPU in thousandths.

        `faulted` is called in the handler of an error that must stay with one pod. `give_way` is called between two
        turns of what takes long, without the lock. It must let other threads run: a waiting thread does not get a lock
        that another one takes again at once.

        `hints`: whether an event wakes only those waiting pods that it can help; without, each event wakes all of them.

        `parts` make what the features add.

        `journal` is the cache's, which is stamped with the times of `clock` and of `wall`, seconds since 1970.
        """
        self._journal = journal
        self._wall = wall
        self._lock = threading.Lock()  # guards everything below
        self._settings = settings
        self._clock = clock
        self._give_way = give_way
        self._cache = cache
        self._leadership = Leadership(leading, term)
        state = SchedulerState.begin(
            cache, self._leadership, settings, dialects=dialects, clock=clock, wake=wake, faulted=faulted
        )
        self._records, self._queue, self._order = state.records, state.queue, state.order
        self._trigger, self._pools = state.trigger, state.pools
        self._handlers = EventHandlers(
            state,
            settings=settings,
            evict=lambda order: self._housekeeping.evict(order),
            forgotten=forgotten,
            on_request=on_request,
        )
        self.preemptor = Preemptor(
            state,
            rounds=state.rounds,
            preemptions=state.preemptions,
            faults=state.faults,
            settings=settings,
            clock=clock,
        )
        """To others it is for reading, while no other thread calls the controller."""
        core = Core(
            state,
            preemptor=self.preemptor,
            pools=state.pools,
            rounds=state.rounds,
            clock=clock,
            wall=wall,
            new_id=new_id,
            synced=self._handlers.synced,
            faulted=faulted,
            by_claims=by_claims,
        )
        made = tuple(make(core) for make in parts)
        claims = next((part.claims for part in made if part.claims is not None), NO_CLAIMS)
        gangs = next((part.gangs for part in made if part.gangs is not None), NO_GANGS)
        self._handlers.gangs, self._queue.reads_gangs = gangs, gangs is not NO_GANGS
        for part in made:
            self._leadership.needs(part.lists, part.booked)
            if part.evicted is not None:
                self.preemptor.on_evicted.append(part.evicted)
            self.preemptor.kinds.extend(part.victims)
        others = (part.searches for part in made if part.searches is not None)
        self._searches: tuple[Callable[[], Iterable[Search]], ...] = (self.preemptor.searches, *others)
        self._admission = Admission(
            state,
            claims=claims,
            gangs=gangs,
            settings=settings,
            gates=gates,
            clock=clock,
            new_id=new_id,
            forgotten=forgotten,
        )
        self._cycle = SchedulingCycle(
            state,
            handlers=self._handlers,
            claims=claims,
            gangs=gangs,
            explains=(part.explains for part in made if part.explains is not None),
            adds=(part.adds for part in made if part.adds is not None),
            clock=clock,
            new_id=new_id,
            forgotten=forgotten,
            hints=hints,
        )
        self._housekeeping = Housekeeping(
            state,
            preemptor=self.preemptor,
            gangs=gangs,
            settings=settings,
            clock=clock,
            forgotten=forgotten,
        )
        bindings = self._cycle.bindings
        own: Mapping[type, Handler] = {
            PodEvent: self._handlers.pod_changed,
            PodsListed: self._handlers.pods_listed,
            PodDeleted: self._handlers.pod_deleted,
            NamespacesLabelled: self._handlers.namespaces_labelled,
            ProfilesDeclared: self._handlers.profiles_declared,
            StorageListed: self._handlers.storage_listed,
            StorageChanged: self._handlers.storage_changed,
            StorageDeleted: self._handlers.storage_deleted,
            NodesListed: self._handlers.nodes_listed,
            NodeChanged: self._handlers.node_changed,
            NodeDeleted: self._handlers.node_deleted,
            InventoriesListed: self._handlers.inventories_listed,
            InventoryChanged: self._handlers.inventory_changed,
            InventoryDeleted: self._handlers.inventory_deleted,
            HeldBeyondChanged: self._handlers.held_beyond_changed,
            IdleSharesReported: self._handlers.idle_shares_reported,
            AgentsHeard: self._housekeeping.silence.heard,
            PodsReported: lambda event, now: self._housekeeping.reports.seen(event.reports, listed=event.listed),
            ExcludedGpusListed: self._handlers.excluded_gpus_listed,
            ExcludedGpusChanged: self._handlers.excluded_gpus_changed,
            ParkedRead: self._handlers.parked_read,
            UntoldRead: self._handlers.untold_read,
            BarrierWritten: self._handlers.barrier_written,
            PodFenced: self._handlers.pod_fenced,
            BindSucceeded: bindings.succeeded,
            BindFailed: bindings.failed,
            BindUnknown: bindings.unknown,
            BindFaulted: bindings.faulted,
            BindAbandoned: bindings.abandoned,
            FenceRefused: bindings.fence_refused,
            LatePodFailed: self._handlers.late.failed,
            ShareTaken: self._handlers.gates.taken,
            AssumedChecked: self._housekeeping.checked,
            DriftFound: self._housekeeping.drift_found,
            EvictionAnswered: self.preemptor.eviction_answered,
            UncountedFound: self._housekeeping.overcommit.uncounted_found,
            PoolsDeclared: self._admission.pools_declared,
            QueueWeighed: self._cycle.weighed,
        }
        phases: Mapping[TickPhase, Callable[[float], list[Effect]]] = {
            TickPhase.TAKE_OVER: self._take_over,
            TickPhase.LATE_PODS: self._late_pods,
            TickPhase.FOREIGN_GATES: self._handlers.gates.tick,
            TickPhase.UNBOUND_PODS: self._handlers.unbound.tick,
            TickPhase.UPKEEP: self._upkeep,
            TickPhase.BINDINGS: bindings.tick,
            TickPhase.RESERVATIONS: self._housekeeping.overdue,
            TickPhase.EVICTIONS: self._housekeeping.evictions,
        }
        if own.keys() != set(get_args(Event)) or phases.keys() != set(TickPhase):
            raise AssertionError("every event and every phase of a tick needs its part")
        self._taken_by = dict(own)
        for part in made:
            if self._taken_by.keys() & part.handlers.keys():
                raise AssertionError("an event has one part that takes it in")
            self._taken_by |= part.handlers
        self._phases = phases
        self._feature_ticks = {
            phase: tuple(part.ticks[phase] for part in made if phase in part.ticks) for phase in TickPhase
        }
        self._faulted = faulted

    # -- events in, effects out -----------------------------------------------------------------------------------

    def handle(self, event: object) -> None:
        """Take in what happened. Its effects leave with the next `tick` or `schedule_pending`."""
        with self._lock:
            now = self._clock()
            self._taken_by[type(event)](event, now)
            self._stamp(now)

    def tick(self, phase: TickPhase) -> list[object]:
        """The effects of this phase, each once; call it about once a second."""
        with self._lock:
            now = self._clock()
            effects: list[object] = [*self._phases[phase](now)]
            for tick in self._feature_ticks[phase]:
                # The core gives out its decisions only once, so an error of a feature must not lose them.
                try:
                    effects.extend(tick(now))
                except Exception:
                    self._faulted("feature", phase)
            self._stamp(now)
            return effects

    def _stamp(self, now: float) -> None:
        if self._journal is not None:
            self._journal.stamp(now, self._wall())

    def wants_volumes(self) -> bool:
        """Whether a pod that requests a share has a claim, so that claims and volumes are to be followed."""
        return self._cache.neighbours.storage.wanted  # one attribute, so no lock

    def follow_volumes(self) -> None:
        """Follow claims and volumes from now on."""
        self._cache.neighbours.storage.wanted = True

    def wants_devices(self, plural: str) -> bool:
        """Whether a pod that requests a share needs these: ResourceClaims or DeviceClasses, each followed by itself."""
        return self._cache.neighbours.devices.of_kind(plural).wanted  # one attribute, so no lock

    def follow_devices(self) -> None:
        """Follow ResourceClaims and DeviceClasses from now on."""
        devices = self._cache.neighbours.devices
        devices.claims.wanted = devices.classes.wanted = True

    def wants_selectors(self) -> bool:
        """Whether a profile has default constraints, so that Services and controllers are to be followed."""
        return self._cache.neighbours.spreading.wanted  # one attribute, so no lock

    def take_changes(self) -> tuple[list[tuple[float, Change]], bool]:
        """
        The changes of shares and cards since the last call, each with its time; and whether everything from the time
        when this replica began to lead is known, if it leads.
        """
        with self._lock:
            settled = not self._leadership.unready() and self._leadership.unlisted() is None
            return self._journal.take() if self._journal is not None else [], settled

    def _take_over(self, now: float) -> list[Effect]:
        began = [*self._handlers.barrier.tick(now), *self._housekeeping.relist()]
        return [*began, *self._handlers.fence.tick(), *self._handlers.read_untold()]

    def _late_pods(self, now: float) -> list[Effect]:
        return [*self._handlers.late.due(listing=self._handlers.listing)]

    def _upkeep(self, now: float) -> list[Effect]:
        self._housekeeping.tick(now)
        self._handlers.unbound.upkeep(now)
        self._housekeeping.starvation.tick(now)
        self._trigger.event(self._cycle.neighbours_changed())
        # Only a replica that decides runs the cycle that this requests.
        if self._cycle.is_outdated(now) and self._leadership.holds():
            self._trigger.wake()
        return [*self._housekeeping.status_updates(now), *self._handlers.read_parked()]

    # -- the webhook's question -----------------------------------------------------------------------------------

    def reserve(self, question: Question) -> Answer:
        """`Admission.answer`, with the pod read before the lock is taken."""
        seen = self._admission.judged(question)
        with self._lock:
            return self._admission.answer(question, seen)

    def offered(self, node: str) -> frozenset[str]:
        """
        The resources by which NVIDIA's own plugin hands out GPUs on a node; none if there is no such node.

        Raises `NotReady` where this replica has not seen the cluster.
        """
        with self._lock:
            self._admission.require_ready()
            return self._cache.offered(node)

    def cards(self) -> set[GpuKind]:
        """`Admission.cards`."""
        with self._lock:
            return self._admission.cards()

    # -- the scheduling cycle -------------------------------------------------------------------------------------

    def schedule_pending(self) -> tuple[list[Binding], list[Report]]:
        """
        One scheduling cycle: reserve for each pod that fits, and report what changed for pods since the last cycle.

        As much of the queue as `allocator.queue.queue` allows; if some is left, another cycle is requested at once. In
        turns, since even that takes a while at thousands of nodes, and the webhook waits for less.
        """
        self.in_turns(self._cycle.turns())
        with self._lock:
            return self._cycle.results()

    def locked(self, call: Callable[[], T]) -> T:
        """The queries of a feature to its own part, under the lock."""
        with self._lock:
            return call()

    def in_turns(self, steps: Iterator[None]) -> None:
        """Each step under the lock, which is released in between."""
        while True:
            with self._lock:
                if next(steps, self) is self:
                    return
            self._give_way()

    def adopt(self, tables: Tables) -> None:
        """Decide by what was learned from now on. In turns, so that decisions continue."""
        self.in_turns(self._cache.engine.adopting(tables))

    # -- leadership -----------------------------------------------------------------------------------------------

    def decides(self) -> bool:
        """Whether this replica may decide, and so must maintain the state."""
        with self._lock:
            return self._leadership.holds()

    def deciding(self) -> tuple[bool, int | None]:
        """Whether this replica decides now, and in which leadership."""
        with self._lock:
            return self._leadership.holds(), self._leadership.number()

    def term(self) -> int | None:
        """The present leadership; None if there is no election, or another replica leads."""
        with self._lock:
            return self._leadership.number()

    def may_write_in(self, term: int | None) -> bool:
        """Whether the leadership of this number still holds; call this right before the write."""
        return self._leadership.covers(term)

    def preempt(self) -> list[Eviction]:
        """
        Look for the first pods in the queue for which evictions would make room; returns the pods to evict, if any,
        earlier decisions first.

        The search takes a while where there are many nodes, so it runs without the lock and its result is checked
        under it.
        """
        with self._lock:
            orders = self.preemptor.overdue()
        return orders or next(filter(None, map(self._evictions, self._searches)), [])

    def _evictions(self, searches: Callable[[], Iterable[Search]]) -> list[Eviction]:
        with self._lock:
            found = tuple(searches())
        for search in found:
            try:
                conclude = search.run()
                with self._lock:
                    orders = conclude()
            except Exception:
                with self._lock:
                    self.preemptor.set_aside(search.pod)
                continue
            if orders is not None:
                return orders
        return []

    # -- consistency ----------------------------------------------------------------------------------------------

    def uids(self) -> frozenset[str]:
        """Every tracked pod. A pod that is tracked now and not listed later was deleted."""
        with self._lock:
            return self._handlers.uids()

    def known(self, uid: str) -> bool:
        """Whether the pod is tracked."""
        with self._lock:
            return self._handlers.tracks(uid)

    def differs(self, listed: ListedPod) -> bool:
        """Whether the list differs from the watches about the pod."""
        with self._lock:
            if listed.uid in self._records.quarantine.uids():
                return False  # reading it again would end in the same error
            return self._handlers.tracked(listed.uid) != listed.known

    def report_overcommitted(self) -> None:
        """`OvercommitReporter.report_overcommitted`; to be called about once a second."""
        with self._lock:
            self._housekeeping.overcommit.report_overcommitted()

    # -- what others see ------------------------------------------------------------------------------------------

    def ready(self) -> str:
        """Empty if this replica has seen the whole cluster, else what it is still waiting for."""
        with self._lock:
            return self._leadership.unready()

    def look(self) -> SchedulerFigures:
        """Figures for metrics."""
        with self._lock:
            unbound = self._cache.allocated.unbound(self._clock(), self._settings.unbound_after)
            set_aside = len(self._records.quarantine)
            return view.figures(self._cache, self._queue, unbound=unbound, quarantined=set_aside)

    def not_evaluated(self) -> Counter[str]:
        """The number of pods with a share that are subject to rules that are not evaluated here, by kind."""
        with self._lock:
            return self._handlers.unbound.not_evaluated(self._clock())

    def nodes(self) -> tuple[NodeState, ...]:
        """Every node with GPUs, as a decision sees it."""
        with self._lock:
            return tuple(self._cache.snapshot.values())

    def idle_nodes(self) -> tuple[NodeState, ...]:
        """Every node with GPUs as it is without pods, but for those that it always has; in turns."""
        with self._lock:
            known = tuple(self._cache.snapshot)
        found: list[NodeState] = []
        for start in range(0, len(known), _LOOKED_AT):
            with self._lock:
                states = map(self._cache.idle, known[start : start + _LOOKED_AT])
                found.extend(state for state in states if state is not None)
            self._give_way()
        return tuple(found)

    def empty_nodes(self) -> tuple[NodeState, ...]:
        """The empty node of each declared pool, by `PoolsDeclared`."""
        with self._lock:
            return self._pools.nodes

    def node_facts(self) -> tuple[NodeFacts, ...]:
        """Every Node, with GPUs or without."""
        with self._lock:
            return self._cache.facts()

    def frozen(self) -> tuple[FrozenCluster, bool]:
        """The cluster at this moment; False if pods of the queue are about to get what was released."""
        with self._lock:
            return self._cache.frozen(self._pools.nodes), not (self._trigger.requeued or self._trigger.running)

    def asks(self, uids: Iterable[str]) -> dict[str, SchedulingRequest]:
        """The requests of those of these pods that wait in the queue."""
        with self._lock:
            found = {uid: self._queue.pod(uid) for uid in uids}
            return {uid: entry.ask for uid, entry in found.items() if entry is not None}

    def reserved_nodes(self) -> tuple[HeldNode, ...]:
        """The reservations of nodes, each with the pod that it is for."""
        return self._cache.reservations  # one attribute, so no lock

    def view(self) -> SchedulerView:
        """Exactly the state that the next decision will use."""
        with self._lock:
            return view.view(self._cache, self._order, self._records, self._clock())

    def holds(self, key: str) -> bool:
        """Whether a share is reserved under an allocation's id or a pod's uid."""
        with self._lock:
            return self._cache.ledger.holding(key) is not None

    def check_invariants(self) -> None:
        """Raise if the state contradicts itself."""
        with self._lock:
            self._cache.check_invariants()
            noted = self._records.noted() - self._records.quarantine.uids()
            strangers = {uid for uid in noted if not self._handlers.tracks(uid)}
            if strangers:
                raise AssertionError(f"records are kept of {len(strangers)} pods that are not tracked")
