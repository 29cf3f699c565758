"""
The clock's part of the allocator: what becomes of pods and reservations when nothing happens for too long.

Pods whose pause is over may be tried again, one that has waited past a bound has a node kept for it, one of higher
priority has room made for it where the administrator wants that, a share that nobody can use is told of, and a
reservation whose pod never came is given back. To be called about once a second; like all that works on the state it
does so under the one lock, in memory, and returns what is to be written.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace

from allocator.cache import unconfirmed
from allocator.cache.capacities import HeldBeyond
from allocator.cache.ledger import OWN, Reservation
from allocator.cache.reserved import NodeReservation
from allocator.cache.unbound import UnboundPod
from allocator.cache.unconfirmed import Unconfirmed
from allocator.engine.reference import Placement
from allocator.preemption import planner, tracker
from allocator.preemption.planner import PreemptionPlan, PreemptionRequest
from allocator.preemption.tracker import PreemptionTracker
from allocator.queue import reservation
from allocator.queue.queue import QueuedPodInfo
from allocator.queue.reporting import EventRecord, Eviction, StatusUpdate
from allocator.queue.rounds import Rounds
from allocator.scheduler import messages
from allocator.scheduler.context import SchedulerContext
from allocator.scheduler.succession import Succession
from contract.model import NodeState
from contract.scheduling.nodeinfo import AllocatedPod

_KEEP_EVERY = 5.0
"""Seconds after which it is looked anew which node to keep; it takes a look at every GPU of the cluster."""
_TRIES = 4
"""Waiting pods for which victims are looked for at a time; each costs a look at many nodes."""
_TELL_EVERY = 15.0
"""Seconds between two passes down the line that are made only to tell pods new figures."""


_HARD_END = 3
"""Times `assume_ttl` after which a reservation ends though nobody could say whether its pod exists."""
_RELISTED = 100
"""Reservations for which the pods were listed anew, that are remembered so that it is not done again for them."""


class Tending(Succession):
    """What time brings about."""

    def __init__(self, context: SchedulerContext) -> None:
        super().__init__(context)
        self._options = context.options
        self._unconfirmed = Unconfirmed(context.options.max_unconfirmed)
        self._evictions: list[Eviction] = []
        self._look_again = 0.0
        self._budget = reservation.Budget(context.options.starvation_reservation_limit)
        self._passed = 0.0
        self._preemption = PreemptionTracker()
        self._rounds = Rounds()
        self._relist = False
        """The pods are to be listed anew, since what is known is not what the API server says."""
        self._existed: set[str] = set()
        """Overdue reservations whose pods were found to exist, though the watch had not brought them."""
        self._relisted_for: tuple[str, ...] = ()

    def settle(self) -> None:
        """
        The clock's part, to be called about once a second: pods may be tried again whose pause is over, pods are told
        that hold a share and have not been bound for too long, and what was told is kept true.
        """
        with self._lock:
            now = self._clock()
            self._waken(self._line.resume(now))
            if self._mandate.holds():
                for stuck in self._unbound.due(now):
                    try:
                        self._say_unbound(stuck, now)
                    except Exception:
                        self._faulted("unbound", stuck.key)
            self._tend_the_kept_node(now)
            # Only who decides makes the pass that this asks for.
            if self._changed and self._mandate.holds() and now - self._passed >= _TELL_EVERY:
                self._wake()

    def to_write(self) -> list[HeldBeyond | StatusUpdate]:
        """
        What is to be written besides news: on GPUNodes what pods hold beyond what their GPUs promise, and on pods what
        they were told and do not show. Pods whose GPU is gone are told. To be called about once a second.
        """
        with self._lock:
            if not self._mandate.holds():
                return []
            now = self._clock()
            words: list[HeldBeyond | StatusUpdate] = [
                *self._capacities.look(self._cluster, now),
                *self._line.tell_once_more(now),
            ]
            stranded = self._capacities.stranded(self._cluster, now)
            for pod in stranded:
                self._line.note(EventRecord("Pod", pod.key, pod.uid, pod.code, pod.why))
            if stranded:
                self._wake()
            return words

    def _tend_the_kept_node(self, now: float) -> None:
        """Keep the node where room is made, else one for the first in line that has waited past the bound."""
        held = reservation.still_kept(self._cluster, self._queue, self._line)
        self._count_what_is_kept(held, now)
        self._tend_preemption(now)
        if self._preemption.under_way:
            self._keep_for_preemption()
            return
        if now < self._look_again and (() if held is None else (held,)) == self._cluster.kept:
            return
        self._look_again = now + _KEEP_EVERY
        after = self._options.starvation_timeout if self._mandate.holds() else 0.0
        worth = reservation.worth_keeping(
            self._cluster, self._queue, self._line, self._budget, after, now, self._not_kept_for
        )
        if self._cluster.keep(*(() if worth is None else (worth,))):
            self._rouse()

    def _count_what_is_kept(self, held: NodeReservation | None, now: float) -> None:
        """Whose node is kept, until its pod is placed or its time is over."""
        for kept in self._cluster.kept:
            placed = self._line.is_writing(kept.uid) or self._cluster.ledger.holding(kept.uid) is not None
            if held is None and placed:
                self._budget.served(kept.namespace)
        self._budget.passes(held.namespace if held is not None else "", now)
        if held is not None and not self._budget.allows(held.namespace, now):
            self._look_again = now

    def _not_kept_for(self, entry: QueuedPodInfo) -> None:
        self._leave_alone("keeping", entry)

    def _keep_for_preemption(self) -> None:
        plans = self._preemption.under_way.values()
        on = {plan.node: self._sharers.on(plan.node) for plan in plans}
        if self._cluster.keep(*tracker.kept(plans, self._cluster.snapshot, on, self._line.is_writing)):
            self._rouse()

    # -- preemption -----------------------------------------------------------------------------------------------

    def preempt(self) -> list[Eviction]:
        """
        Look for the first in line for whom evictions would make room; who must go, if anybody must. Beside what is
        under way already, as long as that is not too much.

        The choice takes a while where there are many nodes, so it is made beside the lock and then checked under it.
        """
        if not self._options.preemption:
            return []
        with self._lock:
            kept = self._kept_for_patience()
            entries = self._who_may_preempt(kept)
            sharers = self._sharers.by_node() if entries else {}
            nodes = self._as_planned(sharers)
            leaving = self._leaving(sharers)
            questions = [(entry, self._question(entry, leaving)) for entry in entries]
            planned = {each.node for each in self._preemption.under_way.values()}
        for entry, question in questions:
            open_to_it = [node for node in nodes if not tracker.closed_to(kept, node.name, entry)]
            there = [node for node in nodes if node.name in planned]
            try:
                orders = self._preempt_for(entry, question, there, open_to_it, sharers)
            except Exception:
                self._not_preempted_for(entry)
                continue
            if orders is not None:
                return orders
        return []

    def _preempt_for(
        self,
        entry: QueuedPodInfo,
        question: PreemptionRequest,
        planned: list[NodeState],
        open_to_it: list[NodeState],
        sharers: dict[str, tuple[AllocatedPod, ...]],
    ) -> list[Eviction] | None:
        """Look for victims for one pod; None where evictions do not help it now."""
        plan = planner.without_any(planned, question) or planner.choose(open_to_it, sharers, question)
        blocked = None if plan else planner.choose(open_to_it, sharers, replace(question, spared=()))
        with self._lock:
            if plan is None:
                self._preemption.fruitless(entry.uid, len(blocked.victims) if blocked else 0, self._clock())
                self._rouse_if_said(entry)
                return None
            now_best = self._best_there_now(entry, plan)
            return self._begin(entry, now_best) if now_best is not None else None

    def _not_preempted_for(self, entry: QueuedPodInfo) -> None:
        with self._lock:
            self._leave_alone("preemption", entry)
            self._preemption.over(entry.uid)

    def _kept_for_patience(self) -> tuple[NodeReservation, ...]:
        return tuple(one for one in self._cluster.kept if one.uid not in self._preemption.under_way)

    def _as_planned(self, sharers: dict[str, tuple[AllocatedPod, ...]]) -> list[NodeState]:
        """
        Every node as it will be once what is under way is carried out. Of `sharers` those are taken out who go.

        A pod that is being written is on its node already.
        """
        found = dict(self._cluster.snapshot)
        for name in {each.node for each in self._preemption.under_way.values()} & found.keys():
            plans = [each for each in self._preemption.on(name) if not self._line.is_writing(each.pod.uid)]
            on = sharers.get(name, ())
            found[name] = tracker.carried_out(found[name], on, plans)
            awaited = {uid for each in plans for uid in each.awaited}
            sharers[name] = tuple(sharer for sharer in on if sharer.uid not in awaited)
        return list(found.values())

    def _who_may_preempt(self, kept: Sequence[NodeReservation]) -> list[QueuedPodInfo]:
        """The first few in line that are of higher priority than somebody who holds a share."""
        now, found = self._clock(), list[QueuedPodInfo]()
        self._preemption.retain(lambda uid: self._queue.pod(uid) is not None)
        if not self._mandate.holds() or self._untried:
            return []
        for entry in self._queue.in_order():
            if len(found) == _TRIES or not self._sharers.any_below(entry.priority):
                break  # whoever is behind it in line is of no higher priority
            if (
                tracker.wanted(entry, kept)
                and self._line.may_try(entry.uid, now)
                and self._preemption.may_ask(entry.uid, now)
                and self._has_no_room(entry)
            ):
                found.append(entry)
        return found

    def _has_no_room(self, entry: QueuedPodInfo) -> bool:
        try:
            return not isinstance(self._cluster.decide(entry.ask, entry.asking), Placement)
        except Exception:
            self._leave_alone("preemption", entry)
            return False

    def _leaving(self, sharers: Mapping[str, tuple[AllocatedPod, ...]]) -> frozenset[str]:
        now = self._clock()
        return frozenset(uid for on in sharers.values() for uid in tracker.leaving(on, now))

    def _question(self, entry: QueuedPodInfo, leaving: frozenset[str]) -> PreemptionRequest:
        spared = self._preemption.spared(self._clock())
        return PreemptionRequest(entry.ask, entry.priority, self._cluster.engine.limits, leaving, spared)

    def _best_there_now(self, entry: QueuedPodInfo, plan: PreemptionPlan) -> PreemptionPlan | None:
        """The plan on that node as things stand under the lock; None where it got worse or the pod does not wait."""
        on = {plan.node: self._sharers.on(plan.node)}
        node = next((state for state in self._as_planned(on) if state.name == plan.node), None)
        waits = self._queue.pod(entry.uid) == entry and self._line.may_try(entry.uid, self._clock())
        if node is None or not waits or not self._mandate.holds():
            return None
        question = self._question(entry, self._leaving(on))
        found = planner.without_any([node], question) or planner.choose([node], on, question)
        return found if found is not None and len(found.victims) <= len(plan.victims) else None

    def _begin(self, entry: QueuedPodInfo, plan: PreemptionPlan) -> list[Eviction]:
        now = self._clock()
        ending = tracker.leaving(self._sharers.on(plan.node), now)
        orders = self._preemption.begin(entry, plan, ending, now)
        self._keep_for_preemption()
        self._look_again = now  # once it is over, the node is not kept a moment longer
        self._rouse()
        return orders

    def _rouse_if_said(self, entry: QueuedPodInfo) -> None:
        """The line tells pods why they wait, so it is gone down once more where there is more to say."""
        if self._preemption.says(entry.uid) is not None:
            self._rouse()

    def _has_not_come(self, holding: Reservation) -> None:
        namespace = unconfirmed.namespace_of(holding)
        self._unconfirmed.ended(namespace, self._clock())
        self._arrivals.given_back(holding.key, namespace, holding.since)

    def preempted(self, order: Eviction, outcome: str) -> None:
        """What became of one of the evictions, or of the question whether it would be granted."""
        with self._lock:
            now = self._clock()
            match outcome:
                case "evicted":
                    self._preemption.granted(order)
                    self._line.note(
                        EventRecord("Pod", order.key, order.uid, "GPUSharePreempted", f"evicted: {order.why}")
                    )
                case "budget":
                    self._preemption.refused(order, now)
                case "failed":
                    self._preemption.failed(order, now)
            self._keep_for_preemption()
            self._rouse()

    def _tend_preemption(self, now: float) -> None:
        """End what is under way where its pod is placed or gone, or where room was made and did not help."""
        for uid, under_way in tuple(self._preemption.under_way.items()):
            entry = self._queue.pod(uid)
            late = now - under_way.since > tracker.STUCK
            gone = all(self._sharers.get(awaited) is None for awaited in under_way.awaited)
            if entry is None or not self._mandate.holds():
                self._preemption.over(uid)
            elif self._line.may_try(uid, now) and gone and not self._untried and self._rounds.has_tried(uid):
                self._preemption.in_vain(uid, now)  # it has been tried since the last of them went
            elif late or under_way.node not in self._cluster.snapshot:
                self._preemption.in_vain(uid, now)

    def _say_unbound(self, stuck: UnboundPod, now: float) -> None:
        text = messages.not_bound(stuck, (now - stuck.since) / 60)
        self._line.tell(
            StatusUpdate(stuck.key, stuck.uid, True, messages.NOT_SCHEDULED, text, warning="GPUShareUnused"), now
        )
        if self._options.unbound == "delete" and stuck.owned:
            self._evictions.append(Eviction(stuck.key, stuck.uid, stuck.version, "unbound", text))
        self._rouse()

    def take_evictions(self) -> list[Eviction]:
        """The pods that must go, each once; asked for, and written, by the leader only."""
        with self._lock:
            evictions, self._evictions = self._evictions, []
            return evictions if self._mandate.holds() else []

    def overdue(self) -> tuple[Reservation, ...]:
        """
        Reservations from admissions whose pods should have been seen by now.

        The watch may be behind, so this alone frees nothing: ask the API server for the pods, then `expire`.
        """
        with self._lock:
            now, writing = self._clock(), self._line.writing()
            late = (h for h in self._cluster.ledger.assumed() if now - h.since > self._waited_for(h))
            return tuple(h for h in late if h.key not in writing and not h.key.startswith(OWN))

    def _waited_for(self, holding: Reservation) -> float:
        """Seconds for which the pod of a reservation is waited for."""
        if holding.judged is None:
            return self._options.assume_ttl
        return self._arrivals.within(unconfirmed.namespace_of(holding))

    def expire(self, overdue: Iterable[Reservation], exist: Container[str]) -> None:
        """
        Give back the overdue reservations, except those whose allocation id a pod that exists carries: these the watch
        will bring, and are given their time once more. If it has not brought them by then, the pods are listed anew.
        """
        with self._lock:
            for holding in overdue:
                if holding.key in exist:
                    self._cluster.renew(holding.key, self._clock())
                    self._relist_for(holding)
                else:
                    self._give_back(holding)
            self._existed &= {holding.key for holding in self._cluster.ledger.assumed()}

    def _relist_for(self, holding: Reservation) -> None:
        """Once for each: a pod whose annotations are damaged is never brought as one that holds this share."""
        if holding.key in self._existed and holding.key not in self._relisted_for:
            self._relisted_for = (*self._relisted_for[-_RELISTED:], holding.key)
            self._relist = True
        self._existed.add(holding.key)

    def not_listed(self, overdue: Iterable[Reservation]) -> None:
        """
        Nobody could say whether the pods of these reservations exist. A reservation outlives that three times its own
        time at most, so that no failure makes it last.

        Should its pod be stored all the same and never have been seen, it comes too late, and is failed before it uses
        a GPU that others were given meanwhile (`late`).
        """
        with self._lock:
            end = self._clock() - _HARD_END * self._options.assume_ttl
            for holding in overdue:
                if holding.since <= end:
                    self._give_back(holding)

    def _give_back(self, holding: Reservation) -> None:
        if self._cluster.forget(holding.key):
            self._forgotten("expired")
            self._has_not_come(holding)
            self._rouse()
