"""
Nodes reserved for pods: for a starving pod, and for a pod for which others are evicted.

A node is reserved for a pod that has waited past a bound. If the administrator wants it, room is made for a pod of
higher priority, and features add other pods that may be evicted. Pure; the shell holds the lock.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from allocator.cache.reserved import HeldNode
from allocator.engine.reference import Placement
from allocator.preemption import planner, tracker
from allocator.preemption.planner import PreemptionPlan, PreemptionRequest
from allocator.preemption.tracker import PRIORITY, EvictionCause, OngoingPreemption, PreemptionTracker
from allocator.queue import reservation
from allocator.queue.queue import QueuedPodInfo, Rounds
from allocator.queue.records import EventRecord, Eviction, PodFaults
from allocator.scheduler.events import EvictionAnswered
from allocator.scheduler.leadership import SchedulerState
from allocator.settings import Settings
from contract.model import NodeState
from contract.scheduling.nodeinfo import AllocatedPod

_RESERVE_EVERY = 5.0
"""Seconds until the reserved node is chosen again; this looks at every GPU of the cluster."""
_MOST_IN_THE_WAY = 32
"""Refused nodes for which the search finds the evictions that would open them; each takes some rounds of the
filters."""
_TRIES = 4
"""Pending pods for which victims are looked for at a time; each costs a look at many nodes."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """Pods of one kind that may be evicted now."""

    least: float
    """The lowest priority of a waiting pod for which some of them may be evicted; infinite where there are none."""
    agreed: frozenset[str] | None = None
    """As in `PreemptionRequest`."""


@dataclass(frozen=True, slots=True)
class VictimKind:
    """A kind of pods that may be evicted for a pod that waits, and how room is made by their evictions."""

    cause: EvictionCause
    candidates: Callable[[], Candidates]
    begin: Callable[[QueuedPodInfo, PreemptionPlan], list[Eviction]]
    """Makes room by a plan that holds now; returns the pods to evict at once."""
    plans: Mapping[str, OngoingPreemption] = field(default_factory=dict)
    """Plans that are still to be carried out, by the uid of the waiting pod; no others are made for it."""
    overdue: Callable[[], list[Eviction]] = list
    """The pods to evict by an earlier decision."""


@dataclass(frozen=True, slots=True)
class VictimSearch:
    """The search for victims for one pod, over frozen values: it may run without the lock."""

    pod: QueuedPodInfo
    kind: VictimKind
    question: PreemptionRequest
    planned: tuple[NodeState, ...]
    """Nodes on which room is being made already."""
    open_to_it: tuple[NodeState, ...]
    """Nodes that are not reserved for another pod."""
    sharers: Mapping[str, tuple[AllocatedPod, ...]]
    preemptor: Preemptor

    def run(self) -> Callable[[], list[Eviction] | None]:
        """Search without the lock."""
        plan, blocked = self.plan()
        return lambda: self.preemptor.conclude(self, plan, blocked)

    def plan(self) -> tuple[PreemptionPlan | None, int]:
        """The plan; without one, how many victims would help if disruption budgets allowed their eviction."""
        plan = planner.without_any(self.planned, self.question)
        plan = plan or planner.choose(self.open_to_it, self.sharers, self.question)
        if plan is not None:
            return plan, 0
        blocked = planner.choose(self.open_to_it, self.sharers, replace(self.question, spared=()))
        return None, len(blocked.victims) if blocked else 0


class Preemptor:
    """Makes room for pods: has pods of lower priority evicted, and those of the kinds that features bring."""

    def __init__(
        self,
        state: SchedulerState,
        *,
        rounds: Rounds,
        preemptions: PreemptionTracker,
        faults: PodFaults,
        clock: Callable[[], float],
        settings: Settings,
    ) -> None:
        self._cache = state.cache
        self._queue = state.queue
        self._records = state.records
        self._rounds = rounds
        self._trigger = state.trigger
        self._leadership = state.leadership
        self.sharers = state.cache.allocated
        self._order = state.order
        lower = VictimKind(PRIORITY, lambda: Candidates(self.sharers.lowest() + 1), self.begin)
        self.kinds = [lower] if settings.preemption else []
        """The order in which they are evaluated for one pod."""
        self.on_evicted: list[Callable[[Eviction, str, float], None]] = []
        """Called for each eviction that was granted, with the controller of the pod."""
        self.preemptions = preemptions
        self._faults = faults
        self._clock = clock
        self.begun_at = float("-inf")
        """When making room for a pod last began."""

    def overdue(self) -> list[Eviction]:
        """The pods to evict by an earlier decision."""
        return next(filter(None, (kind.overdue() for kind in self.kinds)), [])

    def searches(self) -> list[VictimSearch]:
        """
        The searches for victims that are worth their time now, the first in the queue first; for each pod in the order
        of the kinds, those of lower priority first: their eviction makes room at once.
        """
        if not self.kinds:
            return []
        kept, requested = self.kept_for_patience(), [(kind, kind.candidates()) for kind in self.kinds]
        entries = self._who_may_preempt(kept, min(candidates.least for _, candidates in requested))
        found = [search for kind, candidates in requested for search in self._searches(entries, kept, kind, candidates)]
        position = {each.uid: number for number, each in enumerate(entries)}
        return sorted(found, key=lambda search: position[search.pod.uid])

    def _searches(
        self,
        entries: Iterable[QueuedPodInfo],
        kept: Sequence[HeldNode],
        kind: VictimKind,
        candidates: Candidates,
    ) -> list[VictimSearch]:
        """The searches of one kind, over the nodes as they are planned to be."""
        entries = [each for each in entries if candidates.least <= each.priority]
        sharers = self.sharers.by_node() if entries else {}
        nodes = self._as_planned_by(kind, sharers)
        leaving = self.leaving(sharers)
        names = {each.node for each in self.preemptions.under_way.values()}
        found = []
        for entry in entries:
            refused = self._cache.refused_by_others(entry.ask, entry.requester)
            question = self._question(entry, leaving, candidates.agreed)
            question = self._with_neighbours(entry, question, [n for n in nodes if n.name in refused], sharers)
            there = tuple(n for n in nodes if n.name not in refused or n.name in question.in_the_way)
            planned = tuple(node for node in there if node.name in names)
            open_to_it = tuple(node for node in there if not tracker.closed_to(kept, node.name, entry))
            found.append(VictimSearch(entry, kind, question, planned, open_to_it, sharers, self))
        return found

    def conclude(self, search: VictimSearch, plan: PreemptionPlan | None, blocked: int) -> list[Eviction] | None:
        """The pods to evict by a finished search, checked against the present; None if evictions do not help now."""
        if plan is None:
            self.preemptions.fruitless(search.pod.uid, blocked, self._clock(), search.kind.cause)
            self._requeue_if_reported(search.pod)
            return None
        now_best = self.best_there_now(search.pod, plan, search.kind, search.question.agreed)
        return search.kind.begin(search.pod, now_best) if now_best is not None else None

    def set_aside(self, entry: QueuedPodInfo) -> None:
        """Call it while an error from the pod's search is handled."""
        self._faults.leave_alone("preemption", entry)
        self.preemptions.over(entry.uid)

    def kept_for_patience(self) -> tuple[HeldNode, ...]:
        """The reservations for starving pods."""
        return tuple(one for one in self._cache.reservations if one.uid not in self.preemptions.under_way)

    def as_planned(self, sharers: dict[str, tuple[AllocatedPod, ...]]) -> list[NodeState]:
        """
        Every node as it will be once everything in progress is carried out. Pods that leave are removed from `sharers`.

        A pod that is being written is already on its node.
        """
        found = dict(self._cache.snapshot)
        for name in {each.node for each in self.preemptions.under_way.values()} & found.keys():
            plans = [each for each in self.preemptions.on(name) if not self._records.is_writing(each.pod.uid)]
            on = sharers.get(name, ())
            found[name] = tracker.carried_out(found[name], on, plans)
            awaited = {uid for each in plans for uid in each.awaited}
            sharers[name] = tuple(sharer for sharer in on if sharer.uid not in awaited)
        return list(found.values())

    def _as_planned_by(self, kind: VictimKind, sharers: dict[str, tuple[AllocatedPod, ...]]) -> list[NodeState]:
        """`as_planned`, and as if the plans of this kind were carried out too."""
        nodes = self.as_planned(sharers)
        for plan in kind.plans.values():
            on = sharers.get(plan.node, ())
            nodes = [tracker.carried_out(node, on, [plan]) if node.name == plan.node else node for node in nodes]
            sharers[plan.node] = tuple(sharer for sharer in on if sharer.uid not in plan.awaited)
        return nodes

    def _who_may_preempt(self, kept: Sequence[HeldNode], least: float) -> list[QueuedPodInfo]:
        """The first few in the queue of at least this priority for which room may be made."""
        now, found = self._clock(), list[QueuedPodInfo]()
        self.preemptions.retain(lambda uid: self._queue.pod(uid) is not None)
        if not self._leadership.holds() or self._trigger.requeued:
            return []
        for entry in self._order.in_order():
            if len(found) == _TRIES or entry.priority < least:
                break  # no pod behind it in the queue has a higher priority
            if (
                not any(entry.uid in kind.plans for kind in self.kinds)
                and tracker.wanted(entry, kept)
                and self._records.is_schedulable(entry.uid, now)
                and self.preemptions.may_plan(entry.uid, now)
                and self.has_no_room(entry)
            ):
                found.append(entry)
        return found

    def has_no_room(self, entry: QueuedPodInfo) -> bool:
        """Whether the pod fits on no node now."""
        try:
            return not isinstance(self._cache.decide(entry.ask, entry.requester), Placement)
        except Exception:
            self._faults.leave_alone("preemption", entry)
            return False

    def leaving(self, sharers: Mapping[str, tuple[AllocatedPod, ...]]) -> frozenset[str]:
        """uids of the pods that are ending."""
        now = self._clock()
        return frozenset(uid for on in sharers.values() for uid in tracker.leaving(on, now))

    def _question(
        self, entry: QueuedPodInfo, leaving: frozenset[str], agreed: Container[str] | None
    ) -> PreemptionRequest:
        spared = self.preemptions.spared(self._clock())
        needed = self._cache.neighbours.attracted_by(entry.rules, self.sharers.uids())
        limits = self._cache.engine.limits
        unserved = self._cache.neighbours.unserved
        return PreemptionRequest(
            entry.ask, entry.priority, limits, leaving, spared, agreed, needed=needed, unserved=unserved
        )

    def _with_neighbours(
        self,
        entry: QueuedPodInfo,
        question: PreemptionRequest,
        refused: Iterable[NodeState],
        sharers: Mapping[str, Sequence[AllocatedPod]],
    ) -> PreemptionRequest:
        """
        The question with the pods that keep this one off nodes that are `refused` only because of pods which end anyway
        or may be evicted. Pods that a disruption budget protects now also count, so that the pod's message can say so.
        """
        neighbours, found, tried = self._cache.neighbours, dict[str, frozenset[str]](), 0
        by_scheduler = self._cache.refusals.of(entry.family)  # which no eviction changes
        for node in refused:
            if node.name in by_scheduler:
                continue
            ending = [uid for each in self.preemptions.on(node.name) for uid in each.awaited]
            candidates = planner.may_end(sharers.get(node.name, ()), question)
            hindering = neighbours.hindering(entry.rules, [*ending, *(each.uid for each in candidates)])
            if not hindering:
                continue
            opened = neighbours.in_the_way(entry.rules, entry.ask.needs, node, hindering)
            if opened is not None:
                found[node.name] = opened - frozenset(ending)
            tried += 1
            if tried == _MOST_IN_THE_WAY:
                break
        return replace(question, in_the_way=found) if found else question

    def best_there_now(
        self, entry: QueuedPodInfo, plan: PreemptionPlan, kind: VictimKind, agreed: Container[str] | None
    ) -> PreemptionPlan | None:
        """The plan on that node in the present state under the lock; None if it got worse or the pod does not wait."""
        on = {plan.node: self.sharers.on(plan.node)}
        node = next((state for state in self._as_planned_by(kind, on) if state.name == plan.node), None)
        waits = self._queue.pod(entry.uid) == entry and self._records.is_schedulable(entry.uid, self._clock())
        if node is None or not waits or not self._leadership.holds():
            return None
        question = self._question(entry, self.leaving(on), agreed)
        if plan.node in self._cache.refused_by_others(entry.ask, entry.requester):
            question = self._with_neighbours(entry, question, [node], on)
            if plan.node not in question.in_the_way:
                return None
        found = planner.without_any([node], question) or planner.choose([node], on, question)
        return found if found is not None and len(found.victims) <= len(plan.victims) else None

    def begin(self, entry: QueuedPodInfo, plan: PreemptionPlan, cause: EvictionCause = PRIORITY) -> list[Eviction]:
        """Carry out a plan that holds now; returns the pods to evict."""
        now = self._clock()
        ending = tracker.leaving(self.sharers.on(plan.node), now)
        orders = self.preemptions.begin(entry, plan, ending, now, cause)
        self.hold_nodes()
        self.begun_at = now
        self._trigger.requeue()
        return orders

    def _requeue_if_reported(self, entry: QueuedPodInfo) -> None:
        """Evaluate the queue again where pods can be given a better reason."""
        if self.preemptions.says(entry.uid) is not None:
            self._trigger.requeue()

    def eviction_answered(self, event: EvictionAnswered, now: float) -> None:
        """The result of one of the evictions, or of its dry run."""
        order = event.eviction
        match event.outcome:
            case "evicted":
                code = self.preemptions.granted(order).event
                for listener in self.on_evicted:
                    listener(order, self.preemptions.owner(order), now)
                self._records.note(EventRecord("Pod", order.key, order.uid, code, f"evicted: {order.why}"))
            case "budget":
                self.preemptions.refused(order, now)
            case "failed":
                self.preemptions.failed(order, now)
        self.hold_nodes()
        self._trigger.requeue()

    def tick(self, now: float) -> None:
        """End preemptions whose pod is placed or deleted, or for which room was made but did not help."""
        for uid, under_way in tuple(self.preemptions.under_way.items()):
            entry = self._queue.pod(uid)
            late = now - under_way.since > tracker.STUCK
            ended = all(self.sharers.get(awaited) is None for awaited in under_way.awaited)
            if entry is None or not self._leadership.holds():
                self.preemptions.over(uid)
            elif (ended and self._tried_since(uid, now)) or late or under_way.node not in self._cache.snapshot:
                self.preemptions.in_vain(uid, now)

    def _tried_since(self, uid: str, now: float) -> bool:
        """Whether the pod has been tried since something was last released."""
        return self._records.is_schedulable(uid, now) and not self._trigger.requeued and self._rounds.has_tried(uid)

    def hold_nodes(self) -> None:
        plans = self.preemptions.under_way.values()
        on = {plan.node: self.sharers.on(plan.node) for plan in plans}
        if self._cache.reserve(*tracker.kept(plans, self._cache.snapshot, on, self._records.is_writing)):
            self._trigger.requeue()


class StarvationGuard:
    """Reserves a node for the first pod in the queue that has waited past the bound."""

    def __init__(
        self,
        state: SchedulerState,
        *,
        preemptor: Preemptor,
        faults: PodFaults,
        settings: Settings,
        together: Callable[[QueuedPodInfo, float], tuple[HeldNode, ...] | None],
    ) -> None:
        """`together`: the nodes that are to be reserved for a pod's whole gang; None for a pod by itself."""
        self._cache = state.cache
        self._queue = state.queue
        self._records = state.records
        self._trigger = state.trigger
        self._leadership = state.leadership
        self._faults = faults
        self._preemptor = preemptor
        self._settings = settings
        self._order = state.order
        self._together = together
        rest = settings.starvation_timeout if state.order.fair else 0.0
        self._budget = reservation.HoldingBudget(settings.starvation_reservation_limit, rest)
        self._looked_at = float("-inf")
        self._look_again = 0.0

    def tick(self, now: float) -> None:
        """
        Keep the node where room is made, else one for the first in the queue that has waited past the bound. If a pod
        waits for several whole cards, other pods avoid the nodes with many free ones from the beginning.
        """
        self._cache.engine.spare(self._queue.cards())
        held = reservation.held_nodes(self._cache, self._queue, self._records)
        self._count_what_is_kept(held[0] if held else None, now)
        self._preemptor.tick(now)
        if self._preemptor.preemptions.under_way:
            self._preemptor.hold_nodes()
            return
        # Once a preemption is over, its node is released immediately.
        current = now < self._look_again and self._preemptor.begun_at < self._looked_at
        if current and held == self._cache.reservations:
            return
        self._looked_at = now
        self._look_again = now + _RESERVE_EVERY
        after = self._settings.starvation_timeout if self._leadership.holds() else 0.0
        worth = reservation.choose_held(
            self._cache,
            self._queue,
            self._records,
            self._budget,
            after,
            now,
            self._not_kept_for,
            self._order.is_behind,
            self._together,
        )
        if self._cache.reserve(*worth):
            self._trigger.requeue()

    def _count_what_is_kept(self, held: HeldNode | None, now: float) -> None:
        """The pod whose node is kept, until it is placed or its time is over."""
        for kept in self._cache.reservations:
            placed = self._records.is_writing(kept.uid) or self._cache.ledger.holding(kept.uid) is not None
            if held is None and placed:
                self._budget.served(kept.namespace)
                self._budget.begin_rest(kept.namespace, now)
        self._budget.passes(held.namespace if held is not None else "", now)
        if held is not None and not self._budget.allows(held.namespace, now):
            self._look_again = now

    def _not_kept_for(self, entry: QueuedPodInfo) -> None:
        self._faults.leave_alone("keeping", entry)
