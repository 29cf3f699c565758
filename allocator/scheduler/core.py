"""
The shell around the allocator's state: it builds the parts, holds the only lock, and hands each call to the part that
answers it.

Every public method takes the lock, works on memory only and returns at once; writing to the API server is the caller's,
with what is returned. So a decision and its reservation are one step, and no two can take the same share.

| part | what it does |
|---|---|
| `Cache`, `SchedulingQueue`, `PodRecords` | what is where; who waits; what pods were told and what is written |
| `EventHandlers` | takes in what the watches bring |
| `Admission` | answers the webhook |
| `SchedulingCycle`, `Bindings` | decides for pending pods; takes in what became of each write |
| `Leadership`, `Fence`, `LatePods` | whether this replica may decide, and what it owes to the leader before |
| `Preemptor`, `StarvationGuard` | reserve nodes |
| `Housekeeping`, `OvercommitReporter` | what time brings; what is wrong |
| `ClaimManager` | ElasticGPUClaims |
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Any

from allocator.cache.cache import Cache
from allocator.cache.capacities import Capacities, HeldBeyond
from allocator.cache.ledger import Reservation
from allocator.cache.podinfo import AllocatedPods, UnboundPods, pod_event
from allocator.cache.unconfirmed import Arrivals, Unconfirmed
from allocator.claims import events
from allocator.claims.lifecycle import Refused, Step
from allocator.claims.manager import ClaimManager
from allocator.claims.rendering import ClaimBinding
from allocator.faults import Faulted, surfaced
from allocator.preemption.tracker import PreemptionTracker
from allocator.queue.queue import CycleTrigger, QueuedPodInfo, Rounds, SchedulingQueue
from allocator.queue.records import Binding, EventRecord, Eviction, PodFaults, PodRecords, Report, StatusUpdate
from allocator.scheduler import view
from allocator.scheduler.admission import Admission
from allocator.scheduler.consistency import ListedPod, OvercommitReporter
from allocator.scheduler.cycle import Bindings, SchedulingCycle
from allocator.scheduler.handlers import EventHandlers
from allocator.scheduler.housekeeping import Housekeeping
from allocator.scheduler.leadership import Fence, Leadership
from allocator.scheduler.options import SchedulerOptions
from allocator.scheduler.reservations import Preemptor, StarvationGuard
from allocator.scheduler.succession import LatePod, LatePods
from allocator.scheduler.view import SchedulerFigures, SchedulerView
from allocator.scoring.tables import Tables
from contract import pods
from contract.encoding.protocol import Answer, Question
from contract.model import Inventory, NodeState, PodRequest
from contract.nodes.attributes import NodeFacts
from contract.nodes.excluded import KeptOut

JSON = dict[str, Any]
_REFRESH_EVERY = 15.0
"""Seconds between two cycles that are run only to tell pods new figures."""


class Controller:
    """The lock, and the parts behind it."""

    def __init__(
        self,
        *,
        cache: Cache,
        options: SchedulerOptions,
        clock: Callable[[], float],
        new_id: Callable[[], str],
        leading: Callable[[], bool],
        wake: Callable[[], None],
        term: Callable[[], int | None] | None = None,
        forgotten: Callable[[str], None] = lambda reason: None,
        asked: Callable[[PodRequest, int], None] = lambda request, cpu: None,
        faulted: Faulted = surfaced,
        give_way: Callable[[], None] = lambda: None,
    ) -> None:
        """
        `clock`: seconds from any start, never going back. `new_id`: an allocation's id, unique. `wake` is called when
        there may be something to decide or to write, `forgotten` with the reason of each reservation that is given back
        before its pod was seen, `asked` once for each pod that asks for a share, with its CPU in thousandths.

        `faulted` is called in the handler of an error that must stay with one pod. `give_way` is called between two
        turns of what takes long, without the lock. It must let other threads run: a thread that waits for a lock does
        not get it where another takes it again at once.
        """
        self._lock = threading.Lock()  # guards everything below
        self._options, self._clock, self._give_way = options, clock, give_way
        self._cache, self._queue, self._records = cache, SchedulingQueue(), PodRecords()
        self._leadership = Leadership(leading, term)
        self._trigger, rounds = CycleTrigger(wake), Rounds()
        self._fence = Fence(self._queue, self._trigger, self._leadership)
        sharers, preemptions = AllocatedPods(), PreemptionTracker()
        unconfirmed, arrivals = Unconfirmed(options.max_unconfirmed), Arrivals(options.assume_ttl)
        self._unbound, self._capacities = UnboundPods(options.unbound_after), Capacities()
        faults = PodFaults(
            cache=self._cache,
            records=self._records,
            leads=self._leadership.leads,
            clock=clock,
            wake=wake,
            faulted=faulted,
        )
        self._claims = ClaimManager(
            self._cache,
            new_id=new_id,
            clock=clock,
            most_memory=options.claim_memory,
            faulted=faulted,
            follows=options.claims,
        )
        self._late = LatePods(
            cache=self._cache,
            records=self._records,
            trigger=self._trigger,
            leadership=self._leadership,
            arrivals=arrivals,
            clock=clock,
            forgotten=forgotten,
        )
        self._handlers = EventHandlers(
            cache=self._cache,
            queue=self._queue,
            records=self._records,
            trigger=self._trigger,
            leadership=self._leadership,
            fence=self._fence,
            late=self._late,
            sharers=sharers,
            unbound=self._unbound,
            capacities=self._capacities,
            faults=faults,
            clock=clock,
            asked=asked,
        )
        self._admission = Admission(
            cache=self._cache,
            queue=self._queue,
            records=self._records,
            rounds=rounds,
            trigger=self._trigger,
            leadership=self._leadership,
            claims=self._claims,
            unconfirmed=unconfirmed,
            options=options,
            clock=clock,
            new_id=new_id,
            forgotten=forgotten,
        )
        self._cycle = SchedulingCycle(
            cache=self._cache,
            queue=self._queue,
            records=self._records,
            rounds=rounds,
            trigger=self._trigger,
            leadership=self._leadership,
            claims=self._claims,
            preemptions=preemptions,
            faults=faults,
            clock=clock,
            new_id=new_id,
        )
        self._bindings = Bindings(
            cache=self._cache,
            queue=self._queue,
            records=self._records,
            trigger=self._trigger,
            leadership=self._leadership,
            handlers=self._handlers,
            faults=faults,
            clock=clock,
            forgotten=forgotten,
        )
        self.preemptor = Preemptor(
            cache=self._cache,
            queue=self._queue,
            records=self._records,
            rounds=rounds,
            trigger=self._trigger,
            leadership=self._leadership,
            sharers=sharers,
            preemptions=preemptions,
            faults=faults,
            clock=clock,
        )
        """To others it is for reading, while no other thread calls the controller."""
        self._starvation = StarvationGuard(
            cache=self._cache,
            queue=self._queue,
            records=self._records,
            trigger=self._trigger,
            leadership=self._leadership,
            preemptor=self.preemptor,
            faults=faults,
            options=options,
        )
        self._housekeeping = Housekeeping(
            cache=self._cache,
            records=self._records,
            trigger=self._trigger,
            leadership=self._leadership,
            unbound=self._unbound,
            capacities=self._capacities,
            unconfirmed=unconfirmed,
            arrivals=arrivals,
            options=options,
            clock=clock,
            forgotten=forgotten,
            faulted=faulted,
        )
        self._overcommit = OvercommitReporter(
            cache=self._cache,
            sharers=sharers,
            records=self._records,
            trigger=self._trigger,
            clock=clock,
            evict=self._housekeeping.evict if options.repair == "evict" else None,
        )

    # -- what the watches bring -----------------------------------------------------------------------------------

    def replace_pods(
        self, items: Iterable[JSON], *, first: bool = True, last: bool = True, term: int | None = None
    ) -> None:
        """
        The list of pods, trimmed, or a part of it: between two parts others get the lock, and nobody holds all of it.

        `first`, `last`: this part begins the list, and ends it. `term`: the list was asked for in this leadership,
        after it began.
        """
        read = [pod_event(pod) for pod in items]
        with self._lock:
            self._handlers.replace_pods(read, first=first, last=last, term=term)

    def put_pod(self, pod: JSON) -> None:
        """A pod, trimmed, is new or changed."""
        read = pod_event(pod)
        with self._lock:
            self._handlers.put_pod(read)

    def drop_pod(self, uid: str) -> None:
        """A pod was deleted."""
        with self._lock:
            self._handlers.drop_pod(uid)

    def replace_nodes(self, items: Iterable[NodeFacts]) -> None:
        """The whole list of nodes."""
        with self._lock:
            self._handlers.replace_nodes(items)

    def put_node(self, node: NodeFacts) -> None:
        """A node is new or changed."""
        with self._lock:
            self._handlers.put_node(node)

    def drop_node(self, name: str) -> None:
        """A node was deleted."""
        with self._lock:
            self._handlers.drop_node(name)

    def replace_inventories(self, items: Iterable[Inventory]) -> None:
        """The whole list of GPUNodes."""
        with self._lock:
            self._handlers.replace_inventories(items)

    def put_inventory(self, inventory: Inventory) -> None:
        """A GPUNode is new or changed."""
        with self._lock:
            self._handlers.put_inventory(inventory)

    def drop_inventory(self, name: str) -> None:
        """A GPUNode was deleted."""
        with self._lock:
            self._handlers.drop_inventory(name)

    def put_held_beyond(self, node: str, text: str) -> None:
        """What a GPUNode says of what pods hold beyond its GPUs' promise; empty where it says nothing."""
        with self._lock:
            self._handlers.put_held_beyond(node, text)

    def replace_kept_out(self, items: Iterable[KeptOut]) -> None:
        """Every list of cards that are kept out."""
        with self._lock:
            self._handlers.replace_kept_out(items)

    def put_kept_out(self, node: str, found: KeptOut | None) -> None:
        """A node's list is new or changed; None for one that was deleted."""
        with self._lock:
            self._handlers.put_kept_out(node, found)

    # -- the webhook's question -----------------------------------------------------------------------------------

    def reserve(self, question: Question) -> Answer:
        """`Admission.answer`, with the pod read before the lock is taken."""
        seen = self._admission.judged(question)
        with self._lock:
            return self._admission.answer(question, seen)

    def offered(self, node: str) -> frozenset[str]:
        """
        The resources by which NVIDIA's own plugin hands out GPUs on a node; none where there is no such node.

        Raises `NotReady` where this replica has not seen the cluster.
        """
        with self._lock:
            self._admission.require_ready()
            return self._cache.offered(node)

    # -- the scheduling cycle -------------------------------------------------------------------------------------

    def schedule_pending(self) -> tuple[list[Binding], list[Report]]:
        """
        One scheduling cycle: reserve for each pod that fits, and report what changed for pods since the last cycle.

        As much of the queue as `allocator.queue.queue` allows; where some is left, another cycle is asked for at once.
        In turns, since even that takes a while at thousands of nodes, and the webhook waits for less.
        """
        self._in_turns(self._cycle.turns())
        with self._lock:
            return self._cycle.results()

    def _in_turns(self, steps: Iterator[None]) -> None:
        """Each step under the lock, which is released in between."""
        while True:
            with self._lock:
                if next(steps, self) is self:
                    return
            self._give_way()

    def adopt(self, tables: Tables) -> None:
        """Decide by what was learnt from now on. In turns, so that decisions go on."""
        self._in_turns(self._cache.engine.adopting(tables))

    def bind_succeeded(self, binding: Binding, pod: JSON) -> None:
        """The write took effect; `pod`, trimmed, is what the API server answered."""
        read = pod_event(pod)
        with self._lock:
            self._bindings.succeeded(binding, read)

    def bind_failed(self, binding: Binding, pod: JSON | None, why: str = "", *, refused: bool = False) -> None:
        """The write did not take effect; `pod`, trimmed, is the pod as it is now, None if it is gone."""
        read = pod_event(pod) if pod is not None else None
        with self._lock:
            self._bindings.failed(binding, read, why, refused=refused)

    def bind_unknown(self, binding: Binding) -> None:
        """
        Nobody knows whether the write took effect, or still may.

        Its share stays reserved, however long it takes, until the same binding is written again (`unresolved`) or,
        where this replica may not write, the pod is read back (`to_read_back`).
        """
        with self._lock:
            self._records.leave_unresolved(binding)

    def bind_faulted(self, binding: Binding, *, sent: bool = True) -> None:
        """To be called as an error of ours is handled that came of the write; `sent`: it may have taken effect."""
        with self._lock:
            self._bindings.faulted(binding, sent=sent)

    def unresolved(self) -> list[Binding]:
        """The unresolved bindings to be written again, each once; safe, since each names the version it changes."""
        with self._lock:
            return self._bindings.unresolved()

    def to_read_back(self) -> list[Binding]:
        """The unresolved bindings to be read back, each once, where this replica may not write them again."""
        with self._lock:
            return self._bindings.to_read_back()

    def abandon(self, binding: Binding) -> None:
        """The binding was not written, since the leadership in which it was decided is over."""
        with self._lock:
            self._bindings.abandon(binding)

    # -- leadership -----------------------------------------------------------------------------------------------

    def decides(self) -> bool:
        """Whether this replica may decide, and so must look after the state."""
        with self._lock:
            return self._leadership.holds()

    def deciding(self) -> tuple[bool, int | None]:
        """Whether this replica decides now, and in which leadership."""
        with self._lock:
            return self._leadership.holds(), self._leadership.number()

    def term(self) -> int | None:
        """The leadership that we are in; None where there is no election, or another leads."""
        with self._lock:
            return self._leadership.number()

    def unlisted(self) -> int | None:
        """The leadership for which the pods must be listed before anything is decided in it; None where all is well."""
        with self._lock:
            return self._leadership.unlisted()

    def may_write(self, binding: Binding) -> bool:
        """Whether the leadership in which it was decided still holds; to be asked right before the write."""
        return self._leadership.covers(binding.term)

    def may_write_in(self, term: int | None) -> bool:
        """Whether the leadership of this number still holds; to be asked right before the write."""
        return self._leadership.covers(term)

    def to_fence(self) -> tuple[int | None, tuple[QueuedPodInfo, ...]]:
        """The leadership for which a fence is needed, None where none is, and the pods still to be fenced."""
        with self._lock:
            return self._fence.pending()

    def fenced(self, uid: str, pod: JSON | None) -> None:
        """A pod was fenced; `pod` is what it is now, None where it cannot be written any more."""
        read = pod_event(pod, pods.trim) if pod is not None else None
        with self._lock:
            self._handlers.fenced(uid, read)

    def fence_refused(self, entry: QueuedPodInfo, words: str) -> None:
        """The API server refuses for good what would fence the pod; the pod is passed over, and told so."""
        with self._lock:
            self._bindings.fence_refused(entry, words)

    def late(self) -> tuple[LatePod, ...]:
        """The pods that must be failed now; see `LatePods.due`."""
        with self._lock:
            return self._late.due(listing=self._handlers.listing)

    def failed(self, late: LatePod) -> None:
        """Its kubelet was asked to fail the pod, or it is gone."""
        with self._lock:
            self._late.failed(late)

    # -- what time brings -----------------------------------------------------------------------------------------

    def tick(self) -> None:
        """To be called about once a second: pauses end, nodes are reserved, and what pods were told is kept true."""
        with self._lock:
            now = self._clock()
            self._housekeeping.tick(now)
            self._starvation.tick(now)
            # Only a replica that decides runs the cycle that this asks for.
            late = now - self._cycle.began >= _REFRESH_EVERY
            if self._trigger.outdated and late and self._leadership.holds():
                self._trigger.wake()
            self._trigger.event(self._claims.tick())

    def to_write(self) -> list[HeldBeyond | StatusUpdate]:
        """`Housekeeping.to_write`; to be called about once a second."""
        with self._lock:
            return self._housekeeping.to_write()

    def take_evictions(self) -> list[Eviction]:
        """The pods that must go, each once; asked for, and written, by the leader only."""
        with self._lock:
            return self._housekeeping.take_evictions()

    def overdue(self) -> tuple[Reservation, ...]:
        """`Housekeeping.overdue`: ask the API server for the pods of these reservations, then call `expire`."""
        with self._lock:
            return self._housekeeping.overdue()

    def expire(self, overdue: Iterable[Reservation], exist: Container[str]) -> None:
        """Give back the overdue reservations, except those whose allocation id a pod that exists carries."""
        with self._lock:
            self._housekeeping.expire(overdue, exist)

    def not_listed(self, overdue: Iterable[Reservation]) -> None:
        """Nobody could say whether the pods of these reservations exist."""
        with self._lock:
            self._housekeeping.not_listed(overdue)

    def preempt(self) -> list[Eviction]:
        """
        Look for the first pods in the queue for which evictions would make room; returns who must go, if anybody must.

        The search takes a while where there are many nodes, so it runs without the lock and its result is checked
        under it.
        """
        if not self._options.preemption:
            return []
        with self._lock:
            searches = self.preemptor.searches()
        for search in searches:
            try:
                plan, blocked = search.run()
                with self._lock:
                    orders = self.preemptor.conclude(search, plan, blocked)
            except Exception:
                with self._lock:
                    self.preemptor.set_aside(search.pod)
                continue
            if orders is not None:
                return orders
        return []

    def preempted(self, order: Eviction, outcome: str) -> None:
        """What became of one of the evictions, or of the question whether it would be granted."""
        with self._lock:
            self.preemptor.preempted(order, outcome)

    # -- consistency ----------------------------------------------------------------------------------------------

    def uids(self) -> frozenset[str]:
        """Every tracked pod. A pod that is tracked now and not listed later is gone."""
        with self._lock:
            return self._handlers.uids()

    def known(self, uid: str) -> bool:
        """Whether the pod is tracked."""
        with self._lock:
            return self._handlers.tracks(uid)

    def differs(self, listed: ListedPod) -> bool:
        """Whether the list says something else of the pod than the watches did."""
        with self._lock:
            if listed.uid in self._records.quarantine.uids():
                return False  # reading it again would end in the same error
            return self._handlers.tracked(listed.uid) != listed.known

    def request_relist(self) -> None:
        """The state is not what the API server says: have the pods listed again."""
        with self._lock:
            self._housekeeping.request_relist()

    def take_relist(self) -> bool:
        """Whether the pods are to be listed again; true once."""
        with self._lock:
            return self._housekeeping.take_relist()

    def report_overcommitted(self) -> None:
        """`OvercommitReporter.report_overcommitted`; to be called about once a second."""
        with self._lock:
            self._overcommit.report_overcommitted()

    def report_uncounted(self, found: Mapping[str, str]) -> None:
        """Report pods that ask for a share and have none that anybody counts: `namespace/name` by uid."""
        with self._lock:
            self._overcommit.report_uncounted(found)

    # -- claims ---------------------------------------------------------------------------------------------------

    def replace_claims(self, plural: str, items: Iterable[JSON], *, term: int | None = None) -> None:
        """The whole list of one kind of `elasticgpu.io`. `term`: it was asked for in this leadership."""
        with self._lock:
            self._claims.replace(plural, items)
            self._handlers.synced(plural, term)
            self._trigger.requeue()

    def put_claim(self, plural: str, document: JSON) -> None:
        """An object of such a kind is new or changed."""
        with self._lock:
            self._trigger.event(self._claims.take_in(plural, document))

    def drop_claim(self, plural: str, document: JSON) -> None:
        """An object of such a kind was deleted."""
        with self._lock:
            self._trigger.event(self._claims.drop(plural, document))

    def take_claim_work(self) -> tuple[int | None, list[ClaimBinding], list[Step]]:
        """What is to be written for claims now, and the leadership in which it was decided."""
        with self._lock:
            term = self._leadership.number()
            if not self._leadership.holds():
                self._claims.abandon()
                return term, [], []
            return term, self._claims.take_bindings(), self._claims.take_steps()

    def bound(self, bind: ClaimBinding, outcome: str | Refused) -> None:
        """What became of a claim's binding: `done`, `not-done`, `unknown`, or refused by the API server."""
        with self._lock:
            match outcome:
                case "done":
                    self._claims.written(bind)
                case "unknown":
                    self._claims.unresolved(bind)
                case _:
                    self._claims.not_written(bind)
                    if isinstance(outcome, Refused):
                        self._note_refusal(self._claims.binding_refused(bind, outcome))
                    self._trigger.requeue()

    def stepped(self, step: Step, answer: JSON | Refused | None) -> None:
        """A step was taken, and the API server answered with the object; `Refused` or None where it was not."""
        with self._lock:
            if answer is None or isinstance(answer, Refused):
                self._claims.failed(self._claims.uid_of(step))
                if answer is not None:
                    self._note_refusal(self._claims.step_refused(step, answer))
                return
            helps, record = self._claims.stepped(step, answer), events.event(step, answer)
            if record is not None:
                self._records.note(record)
            self._trigger.event(helps or record is not None)

    def _note_refusal(self, record: EventRecord | None) -> None:
        if record is not None:
            self._records.note(record)
            self._trigger.wake()

    def claim_counts(self) -> tuple[Counter[tuple[str, str]], Counter[str]]:
        """How many claims there are by phase and reason, and how many ElasticGPUs of ours by phase."""
        with self._lock:
            return self._claims.counts()

    # -- what others see ------------------------------------------------------------------------------------------

    def ready(self) -> str:
        """Empty if this replica has seen the whole cluster, else what it is still waiting for."""
        with self._lock:
            return self._leadership.unready()

    def look(self) -> SchedulerFigures:
        """Figures for metrics."""
        with self._lock:
            unbound, set_aside = self._unbound.late(self._clock()), len(self._records.quarantine)
            return view.figures(self._cache, self._queue, unbound=unbound, quarantined=set_aside)

    def nodes(self) -> tuple[NodeState, ...]:
        """Every node with GPUs, as a decision sees it."""
        with self._lock:
            return tuple(self._cache.snapshot.values())

    def view(self) -> SchedulerView:
        """Exactly what the next decision will see."""
        with self._lock:
            return view.view(self._cache, self._queue, self._records, self._clock())

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
