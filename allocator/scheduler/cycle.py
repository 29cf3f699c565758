"""
The scheduling cycle: every pending pod that fits gets a share, every other a reason why it waits; and the result of
each binding. Pure; the shell holds the lock.

A pending pod is tried again only when something happened that can cure one of the reasons that its nodes had
(`contract.reasons`): a share came back, a node or its GPUs changed. Where only the figures in its message are
outdated, the whole queue is re-evaluated within 15 s. That is also the safety net, as kube-scheduler's flush is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from allocator.cache import ledger, reserved
from allocator.cache.ledger import Reservation
from allocator.cache.podinfo import PodEvent, stands
from allocator.cache.reserved import HeldNode
from allocator.engine.reference import Placement, Unschedulable
from allocator.queue.queue import QueuedPodInfo
from allocator.queue.records import Binding, Report, StatusUpdate
from allocator.scheduler import messages, sharing
from allocator.scheduler.events import (
    BindAbandoned,
    BindFailed,
    BindFaulted,
    BindSucceeded,
    BindUnknown,
    Effect,
    FenceRefused,
    PodFenced,
    QueueWeighed,
    ReadBack,
)
from allocator.scheduler.handlers import EventHandlers
from allocator.scheduler.leadership import SchedulerState
from allocator.scheduler.parts import ClaimedShares, Explanation, Gangs, GangWaits, Together
from contract.dialects.table import Dialects
from contract.gangs import GangKey
from contract.model import Allocation
from contract.reasons.base import ReasonName
from contract.reasons.claims import PodOfClaim
from contract.reasons.nodes import Code, NodeCode, codes_of
from contract.reasons.pods import PodReason
from contract.scheduling.clusterfilters.objects import NO_RULES, DeviceClaim, PodRules
from contract.scheduling.fairness import BEHIND
from contract.scheduling.needs import SchedulingRequest

JSON = dict[str, Any]
_REPORTED_AFTER = 3
"""Bindings that fail in a row before the pod gets a reason, if nothing refused it explicitly."""
_TELL_AFTER = 2.0
"""Seconds that the binding of a claim, or the making of one, may take before its pod gets a reason."""
_REFRESH_EVERY = 15.0
"""Seconds after which pods get new figures."""
_TURN, _DECIDED = 1_000, 100
"""Pods of the queue in one turn, and how many of them a decision counts as: some ten milliseconds at 5,000 nodes."""


@dataclass(frozen=True, slots=True)
class _Refusal:
    """A shape that does not fit: each pod of the shape gets the same message, which is created once."""

    code: ReasonName
    why: str
    base: str
    """The same where something else is added than the pool."""
    codes: frozenset[NodeCode]
    """Those of all nodes."""

    @classmethod
    def of(cls, decision: Unschedulable, ask: SchedulingRequest, pool: str, dialects: Dialects) -> _Refusal:
        """`pool`: the declared pool of which a new node would serve it, if any."""
        codes = codes_of(decision.reasons)
        why, base = (words(decision, ask.request, pool, dialects) for words in (messages.why, messages.base))
        return cls(messages.code(decision), why, base, codes)


_NOTHING_HELPS = frozenset[NodeCode]()
"""For a pod that only its own change helps."""
_Shape = tuple[SchedulingRequest, tuple[HeldNode, ...], PodRules, int, str]
"""
What pods with one decision have in common: the request, the reserved nodes to which they may go, the rules about other
pods, how often those have changed if a placed pod may help another one, and their family if kube-scheduler has refused
a node to it.
"""
_Failed = dict[_Shape, _Refusal]
"""The decisions that do not fit."""


class SchedulingCycle:
    """Decides for the pods that wait."""

    def __init__(
        self,
        state: SchedulerState,
        *,
        handlers: EventHandlers,
        claims: ClaimedShares,
        gangs: Gangs,
        explains: Iterable[Callable[[str], Explanation | None]],
        adds: Iterable[Callable[[str], str]] = (),
        clock: Callable[[], float],
        new_id: Callable[[], str],
        forgotten: Callable[[str], None],
        hints: bool = True,
    ) -> None:
        """`hints`: whether an event wakes those pods alone that it can help; otherwise it wakes every pod."""
        self._cache = state.cache
        self._queue = state.queue
        self._records = state.records
        self._rounds = state.rounds
        self._trigger = state.trigger
        self._leadership = state.leadership
        self._claims = claims
        self._gangs = gangs
        self._preemption = state.preemptions
        self._pools = state.pools
        self._faults = state.faults
        self._clock = clock
        self._new_id = new_id
        self._order = state.order
        self.bindings = Bindings(state, handlers=handlers, gangs=gangs, forgotten=forgotten)
        self._dialects = state.dialects
        self._hints = hints
        self._decided: list[Binding] = []
        """Bindings to be written, until they are given out; a cycle that ends in an error loses none of them."""
        self.began = 0.0
        """When the last round began."""
        self._failed: _Failed = {}
        self._neighbours_then = 0, 0
        """The state of this round."""
        self._changes = -1
        """`Cache.changes` when the last round began."""
        self._explains = tuple(explains)
        self._adds = tuple(adds)

    def results(self) -> tuple[list[Binding], list[Report]]:
        """The bindings to be written, and what changed for pods since the last cycle; each is handed out once."""
        bindings, self._decided = self._decided, []
        return bindings, self._records.take_news() if self._leadership.holds() else []

    def turns(self) -> Iterator[None]:
        """
        One cycle, a turn at a time. While nothing is released, room only shrinks, so a shape that did not fit is not
        tried again in the round; if something was released between two turns, another round follows. What was released
        is for the pods that were already tried, so no later pod of this cycle is placed on such a node.
        """
        if not self._leadership.holds():
            return
        now = self._clock()
        if self._begins_round(now):
            self._begin_round(now)
        self._trigger.begin()
        self._cache.freed.clear()
        self._rounds.join(self._queue.take_joined())
        for entry, allocation in self._gangs.due(now):
            self._decided.append(self._reserve_waiting(entry, allocation))
        try:
            yield from self._in_order(now, self._decided)
        finally:
            self._trigger.outdated |= self._records.take_owing()
            self._trigger.running = False
            if self._rounds.unfinished:
                self._trigger.wake()

    def _begins_round(self, now: float) -> bool:
        """
        Whether pods are tried again. Where pods have only joined the queue, and the nodes are as they were when the
        round began, only these are tried: all others would keep their messages.

        In the fair order a pod that joins changes the places of others, and claims are looked at in rounds.
        """
        if self._trigger.again or not self._trigger.requeued:
            return self._trigger.again or not self._rounds.unfinished
        as_it_was = self._changes == self._cache.changes and not (self._order.fair or self._claims.exist())
        return not as_it_was or self.is_outdated(now)

    def _begin_round(self, now: float) -> None:
        """
        Begin a round of those pods that what happened may have helped; of all pods where their reason may be something
        else, and where figures are outdated, so that a pod which was left by mistake waits for that long at most.
        """
        happened = self._cache.take_cures()
        if self._tries_all(now):
            self._rounds.begin()
            self._trigger.outdated = False
            self.began = now
        else:
            for uid in self._rounds.begin(happened):
                self._queue.tried(uid)  # a parked pod may take its room, as if it had been tried
        self._queue.parking.begin_round()
        self._failed.clear()
        self._gangs.begin_round()
        if self._claims.exist():
            self._claims.begin_pass()
        self._changes = self._cache.changes

    def _tries_all(self, now: float) -> bool:
        if self._trigger.everyone or not self._hints or self.is_outdated(now):
            return True
        return self._order.fair and not self._trigger.again and self._trigger.requeued

    def is_outdated(self, now: float) -> bool:
        """Whether pods may have had old figures for some time."""
        return self._trigger.outdated and now - self.began >= _REFRESH_EVERY

    def neighbours_changed(self) -> bool:
        """
        Whether other pods or volumes have changed since the last call, while a pod waits that depends on them. A pod
        without rules of its own depends on the anti-affinity of others, which may be on nodes without GPUs.
        """
        neighbours, before = self._cache.neighbours, self._neighbours_then
        self._neighbours_then = now = neighbours.version, neighbours.readmissions
        if self._queue.constrained or neighbours.constrains_all:
            return before != now and len(self._queue) > 0
        return before[1] != now[1] and len(self._queue) > 0

    def weighed(self, event: QueueWeighed, now: float) -> None:
        """Weights of namespaces changed in the fair order; the messages of waiting pods may be outdated."""
        if self._order.weigh(event.weights):
            self._trigger.outdated = True

    def _in_order(self, now: float, bindings: list[Binding]) -> Iterator[None]:
        looked, failed = 0, self._failed
        chosen = self._rounds.choose(self._queue.in_order(), self._costs_nothing(now))
        for uid in self._order.turns(chosen, lambda entry: self._competes(entry, now)):
            if looked >= _TURN:
                looked = 0
                yield
                if not self._leadership.holds():
                    break
            entry = self._queue.pod(uid)
            if entry is not None:
                self._rounds.tried(uid)
                self._queue.tried(uid)
                looked += _DECIDED * self._try_alone(entry, now, failed, bindings) or 1
        else:
            if self._claims.exist() and not self._rounds.unfinished:
                self._claims.bind_the_rest()

    def _costs_nothing(self, now: float) -> Callable[[QueuedPodInfo], bool]:
        """Whether the pod needs no decision. A gang is looked at once, for all its pods."""
        gangs: dict[GangKey, bool] = {}

        def costs_nothing(entry: QueuedPodInfo) -> bool:
            if not self._competes(entry, now):
                return True
            if entry.gang is None:
                return not entry.ask.request.claim and self._shape(entry) in self._failed
            known = gangs.get(entry.gang.key)
            if known is None:
                known = gangs[entry.gang.key] = self._gangs.known(entry, self._shape, now) is not None
            return known

        return costs_nothing

    def _competes(self, entry: QueuedPodInfo, now: float) -> bool:
        return not entry.foreign and self._records.is_schedulable(entry.uid, now)

    def _shape(self, entry: QueuedPodInfo) -> _Shape:
        reservations = self._cache.reservations
        neighbours, rules = self._cache.neighbours, entry.rules
        rules = neighbours.with_defaults(rules) if neighbours.concerns(rules) else NO_RULES
        helped = neighbours.version if rules.affinity or rules.spread else 0
        theirs = reserved.entitled(reservations, entry.requester) if reservations else ()
        family = entry.family if len(self._cache.refusals) else ""
        return entry.ask, theirs, rules, helped, family if self._cache.refusals.of(family) else ""

    def _try_alone(self, entry: QueuedPodInfo, now: float, failed: _Failed, bindings: list[Binding]) -> int:
        """`_try`, isolated so that no error reaches another pod. How many decisions it took."""
        if self._records.quarantine.holds(entry.uid, now):
            return 0
        try:
            tried = self._try(entry, now, failed, bindings)
        except Exception:
            self._faults.leave_alone("decision", entry)
            return 1
        self._records.quarantine.tried(entry.uid)
        return tried

    def _try(self, entry: QueuedPodInfo, now: float, failed: _Failed, bindings: list[Binding]) -> int:
        """Place one pod of the queue, or record why not. Returns the number of decisions that it took."""
        self._records.waits(entry.uid, now)
        if not self._records.is_schedulable(entry.uid, now):
            return 0
        if entry.foreign:
            self._rounds.lacks(entry.uid, _NOTHING_HELPS)
            self._tell(entry, PodReason.FOREIGN_GATE, f"held by the scheduling gate {entry.foreign[0]} first", now)
            return 0
        if entry.ask.request.claim:
            bindings.extend(self._by_claim(entry, now))
            return 1
        if entry.gang is not None:
            known = self._gangs.known(entry, self._shape, now)
            together = known if known is not None else self._gangs.place(entry, self._shape, now)
            if together is not None:
                self._of_gang(entry, together, bindings, now)
                return 0 if known is not None else entry.gang.minimum
        claim = sharing.claim_of(entry, self._cache.neighbours.devices.objects())
        holders = sharing.users(self._cache, claim) if claim is not None else ()
        if claim is not None and holders:
            bindings.extend(self._join(entry, claim, holders, now))
            return 1
        shape = self._shape(entry)
        refused = failed.get(shape)
        if refused is not None:
            self._say_why(entry, refused, now)
            return 0
        decision = self._cache.decide(entry.ask, entry.requester)
        if isinstance(decision, Placement) and decision.node in self._cache.freed:
            self._trigger.requeue_helped()
        elif isinstance(decision, Placement):
            shared = claim.uid if claim is not None else ""
            allocation = Allocation(self._new_id(), decision.node, decision.containers, shared=shared)
            bindings.append(self._reserve_waiting(entry, allocation))
        else:
            closed = self._cache.closed_pools(entry.ask, entry.rules, self._pools.nodes)
            pool = self._pools.only(entry.ask, decision, self._cache.engine, closed)
            failed[shape] = refusal = _Refusal.of(decision, entry.ask, pool, self._dialects)
            self._say_why(entry, refusal, now)
        return 1

    def _by_claim(self, entry: QueuedPodInfo, now: float) -> Iterable[Binding]:
        """A pod that names a claim: its binding, if it can go to the claim's share."""
        found = self._claims.place(entry)
        if isinstance(found, Allocation):
            return (self._reserve_waiting(entry, found),)
        # A condition that ends in a moment is not worth a write to the pod, which would conflict with its binding.
        if found.code != PodOfClaim.BINDING or now - self._records.waits(entry.uid, now) > _TELL_AFTER:
            self._tell(entry, found.code, f"waiting: {found.text}", now)
        return ()

    def _join(
        self, entry: QueuedPodInfo, claim: DeviceClaim, holders: tuple[Reservation, ...], now: float
    ) -> Iterable[Binding]:
        """A pod that names a ResourceClaim which others use: its binding to their share, or none if it waits."""
        decision = sharing.join(self._cache, entry, claim, holders)
        if isinstance(decision, Placement):
            allocation = Allocation(self._new_id(), decision.node, decision.containers, shared=claim.uid)
            return (self._reserve_waiting(entry, allocation),)
        self._say_why(entry, _Refusal.of(decision, entry.ask, "", self._dialects), now)
        return ()

    def _of_gang(
        self, entry: QueuedPodInfo, found: Together | Allocation | GangWaits, bindings: list[Binding], now: float
    ) -> None:
        """The result for a pod of a gang, and for the others with which it starts."""
        if isinstance(found, GangWaits):
            if found.text:
                self._rounds.lacks(entry.uid, found.codes)
                behind = f"; {BEHIND}" if self._order.is_behind(entry) else ""
                self._tell(entry, found.code, f"waiting: {found.text}{behind}", now)
            return
        members = ((entry, found),) if isinstance(found, Allocation) else found.members
        if any(allocation.node in self._cache.freed for _, allocation in members):
            self._trigger.requeue_helped()
            return
        written = [self._reserve_waiting(each, allocation) for each, allocation in members]
        if isinstance(found, Together):
            written[0] = replace(written[0], plan=found.plan)
            self._records.begin(written[0])
            self._gangs.opening(written[0], written[1:])
        bindings.append(written[0])

    def _reserve_waiting(self, entry: QueuedPodInfo, allocation: Allocation) -> Binding:
        self._cache.assume(ledger.assumed(entry.ask, allocation, entry.key, self._clock(), entry.rules))
        binding = Binding(entry, allocation, self._leadership.number())
        self._records.begin(binding)
        self._order.placed(entry)
        return binding

    def _say_why(self, entry: QueuedPodInfo, refusal: _Refusal, now: float) -> None:
        # A claim that another pod gets allocated may be one that this pod can use together with it.
        own = {Code.RESOURCE_CLAIM} if entry.ask.request.own_claims else set()
        self._rounds.lacks(entry.uid, refusal.codes | own)
        if self._is_being_made(entry, refusal, now):
            self._trigger.outdated = True
            return
        preempting = self._preemption.says(entry.uid)
        more = next(filter(None, (explain(entry.uid) for explain in self._explains)), None)
        if preempting is not None:
            code, reason, warns = preempting[0], f"{refusal.why}; {preempting[1]}", False
        elif more is not None:
            code, reason, warns = more.code, f"{refusal.base}; {more.text}", more.warns
        else:
            code, reason, warns = refusal.code, refusal.why, False
        if self._order.is_behind(entry):
            reason = f"{reason}; {BEHIND}"
        reason = "; ".join([reason, *filter(None, (add(entry.uid) for add in self._adds))])
        self._tell(entry, code, f"waiting: {reason}", now, warns=warns)

    def _is_being_made(self, entry: QueuedPodInfo, refusal: _Refusal, now: float) -> bool:
        """
        Whether kube-controller-manager is still making the pod's ResourceClaims, or an agent the room that Kubernetes
        needs on its node, which is over in a moment. A write to the pod would be in the way of its binding.
        """
        waited = now - self._records.waits(entry.uid, now)
        soon = not refusal.codes.isdisjoint((Code.RESOURCE_CLAIM, Code.DEVICES_ELSEWHERE, Code.RESOURCE))
        return entry.ask.request.own_claims and soon and waited < _TELL_AFTER

    def _tell(self, entry: QueuedPodInfo, code: ReasonName, reason: str, now: float, *, warns: bool = False) -> None:
        news = StatusUpdate(entry.key, entry.uid, False, code, reason, warning=code if warns else None)
        self._records.tell(news, now, stands(entry.pod))


class Bindings:
    """The result of each binding: succeeded, failed or unknown."""

    def __init__(
        self,
        state: SchedulerState,
        *,
        handlers: EventHandlers,
        gangs: Gangs,
        forgotten: Callable[[str], None],
    ) -> None:
        self._gangs = gangs
        self._cache = state.cache
        self._queue = state.queue
        self._records = state.records
        self._trigger = state.trigger
        self._leadership = state.leadership
        self._handlers = handlers
        self._faults = state.faults
        self._forgotten = forgotten

    def succeeded(self, event: BindSucceeded, now: float) -> None:
        """
        The binding took effect.

        If the pod has left the queue, the watch was faster than the answer: the pod may have finished or be deleted.
        """
        uid = event.binding.pod.uid
        if self._queue.pod(uid) is None:
            self._records.done(uid)
            self._trigger.event(self._cache.forget(event.binding.allocation.id))
        else:
            self._handlers.take_in(event.pod, now)
            self._records.done(uid, event.pod.version)
        self._gangs.succeeded(event.binding)

    def failed(self, event: BindFailed, now: float) -> None:
        """
        The binding did not take effect.

        The pod is tried again after a pause that doubles with each failure in a row. It learns why if the API server
        refused the binding, or if the binding keeps failing although the pod has not changed.
        """
        binding, pod, uid = event.binding, event.pod, event.binding.pod.uid
        if pod is not None and self._handlers.tracks(uid) and self._gangs.keeps(binding):
            self._records.failed(uid, now)
            self._handlers.take_in(pod, now)
            return
        self._gangs.failed(binding)
        if self._cache.forget(binding.allocation.id):
            self._forgotten(_why_not(binding, pod))
        if pod is None or not self._handlers.tracks(uid):  # the watch may have shown that already
            self._records.done(uid)
            self._handlers.take_out(uid)
        else:
            failures = self._records.failed(uid, now)
            if self._queue.pod(uid) is not None:
                self._handlers.take_in(pod, now)
            if event.refused or (failures >= _REPORTED_AFTER and _why_not(binding, pod) == "refused"):
                self._tell_refused(binding.pod, messages.refused(binding.allocation.node, event.why), now)
        self._trigger.requeue_helped()

    def unknown(self, event: BindUnknown, now: float) -> None:
        """The result of the binding is unknown: its share stays reserved."""
        self._records.leave_unresolved(event.binding)

    def _tell_refused(self, entry: QueuedPodInfo, text: str, now: float) -> None:
        if self._queue.pod(entry.uid) is not None and self._leadership.leads():
            news = StatusUpdate(entry.key, entry.uid, False, PodReason.REFUSED, text, warning=PodReason.REFUSED)
            self._records.tell(news, now, stands(entry.pod))

    def fence_refused(self, event: FenceRefused, now: float) -> None:
        """The API server permanently refuses the write that would fence the pod: the pod is skipped, and learns why."""
        if isinstance(event.pod, QueuedPodInfo):
            self._tell_refused(event.pod, messages.fence_refused(event.words), now)
        self._handlers.pod_fenced(PodFenced(event.pod.uid, None), now)

    def faulted(self, event: BindFaulted, now: float) -> None:
        """
        The binding caused an internal error, which is being handled.

        The result of the write is unknown, unless nothing was sent.
        """
        binding, entry = event.binding, event.binding.pod
        self._faults.leave_alone("write", entry)
        if event.sent:
            self._records.leave_unresolved(binding)
            return
        self._records.done(entry.uid)
        self._gangs.failed(binding)
        if self._cache.forget(binding.allocation.id):
            self._forgotten("failed")
        self._trigger.requeue_helped()

    def abandoned(self, event: BindAbandoned, now: float) -> None:
        """The binding was not written, since the term in which it was decided is over."""
        self._records.done(event.binding.pod.uid)
        self._gangs.failed(event.binding)
        if self._cache.forget(event.binding.allocation.id):
            self._forgotten("fenced")
        self._trigger.requeue_helped()

    def tick(self, now: float) -> list[Effect]:
        """
        The bindings whose outcome is unknown, each once. Where this replica may decide, they are written again, which
        is safe: each names the version that it changes. Where it may not, their pods are read back: the present leader
        changes them, and then the outcome is known.
        """
        unresolved = self._records.take_unresolved()
        return list(unresolved) if self._leadership.holds() else [ReadBack(binding) for binding in unresolved]


def _why_not(binding: Binding, pod: PodEvent | None) -> str:
    """Why a binding did not take effect: the pod was deleted, another writer was faster, or the write was refused."""
    if pod is None:
        return "deleted"
    before, after = (p.get("metadata", {}).get("resourceVersion") for p in (binding.pod.pod, pod.pod))
    return "refused" if before == after else "conflict"
