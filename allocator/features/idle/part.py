"""
The feature's part of the core: it finds pods that are idle for longer than agreed, and evicts them when needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from allocator.features.idle.giving_way import IDLE, GivingWay
from allocator.features.idle.settings import IdleSettings
from allocator.preemption import tracker
from allocator.preemption.planner import PreemptionPlan
from allocator.preemption.tracker import OngoingPreemption
from allocator.queue.queue import QueuedPodInfo
from allocator.queue.records import Eviction
from allocator.scheduler.events import TickPhase
from allocator.scheduler.parts import Core, FeaturePart
from allocator.scheduler.reservations import Candidates, VictimKind
from contract import names
from contract.encoding import moments
from contract.reasons.pods import PodReason
from contract.scheduling import consent
from contract.scheduling.nodeinfo import AllocatedPod

_EVERY = 5.0
"""Seconds between two checks of all pods that agents report as idle."""


@dataclass(frozen=True, slots=True)
class ConsentsListed:
    """Seconds after which idle pods without an annotation may be evicted, for all namespaces with a value."""

    namespaces: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class IdleWarning:
    """Warn a pod before this eviction."""

    eviction: Eviction
    message: str


@dataclass(frozen=True, slots=True)
class WarnIdlePods:
    """Warn the victims of one plan, each by an Event; none of them if one of the evictions would not be allowed now."""

    warnings: tuple[IdleWarning, ...]


WarningOutcome = Literal["warned", "gone", "budget", "failed"]
"""The result of a warning. None is sent if the eviction would not be allowed now."""


@dataclass(frozen=True, slots=True)
class IdlePodWarned:
    """The result of the warning of an idle pod."""

    warning: IdleWarning
    outcome: WarningOutcome


class IdlePods:
    """The idle pods. It warns those that consented to eviction, and evicts them after their grace period."""

    def __init__(self, core: Core, settings: IdleSettings) -> None:
        state = core.state
        self._sharers = state.cache.allocated
        self._idle = state.cache.idle_shares
        self._queue = state.queue
        self._trigger = state.trigger
        self._leadership = state.leadership
        self._preemptor = core.preemptor
        self._preemptions = core.preemptor.preemptions
        self._clock = core.clock
        self._evicts = settings.evict
        self._agreed: Mapping[str, int] = {}
        self._giving_way = GivingWay(settings.grace, self._idle.since)
        self._kind = VictimKind(IDLE, self._candidates, self._begin, self._giving_way.plans, self._overdue)
        self._looked = float("-inf")
        self._found = list[AllocatedPod]()

    def part(self) -> FeaturePart:
        """What it adds to the core."""
        if not self._evicts:
            return FeaturePart()
        return FeaturePart(
            handlers={ConsentsListed: self._consents_listed, IdlePodWarned: self._warned},
            ticks={TickPhase.UPKEEP: self._withdraw, TickPhase.EVICTIONS: self._warnings},
            victims=(self._kind,),
        )

    def counts(self) -> tuple[int, int]:
        """The number of idle pods: those that consented to eviction, and the others."""
        pods = (pod for node, uid in self._idle.listed() if (pod := self._sharers.get(uid)) and pod.node == node)
        consents = [self._consent(pod) > 0 for pod in pods]
        return sum(consents), len(consents) - sum(consents)

    # -- who agreed -----------------------------------------------------------------------------------------------

    def _consents_listed(self, event: ConsentsListed, now: float) -> None:
        self._agreed = event.namespaces

    def _consent(self, pod: AllocatedPod) -> int:
        """Seconds after which the idle pod may be evicted; 0 for never."""
        return consent.agreed(pod.idle_after, self._agreed.get(pod.key.split("/", 1)[0]))

    def _is_due(self, victim: AllocatedPod, now: float) -> bool:
        """Whether the pod still holds its share and its consent to eviction applies now."""
        pod = self._sharers.get(victim.uid)
        if pod is None or pod.ending is not None or pod.node != victim.node:
            return False
        agreed, lasted = self._consent(pod), self._idle.lasted(pod, now)
        return agreed > 0 and lasted is not None and lasted >= agreed

    def _candidates(self) -> Candidates:
        """
        The pods whose consent applies now and that were not warned yet. They are collected every few seconds only,
        because this reads everything that agents list.
        """
        now = self._clock()
        if not len(self._queue):
            return Candidates(float("inf"))
        if not 0 <= now - self._looked < _EVERY:
            self._looked = now
            known = (self._sharers.get(uid) for _, uid in self._idle.listed())
            self._found = [pod for pod in known if pod is not None and self._is_due(pod, now)]
        asked = {victim.uid for victim in self._giving_way.victims()}
        due = [pod for pod in self._found if pod.uid not in asked and self._is_due(pod, now)]
        return Candidates(min((pod.priority for pod in due), default=float("inf")), frozenset(pod.uid for pod in due))

    # -- warned, then evicted -------------------------------------------------------------------------------------

    def _begin(self, entry: QueuedPodInfo, plan: PreemptionPlan) -> list[Eviction]:
        """
        The victims must be warned; no pod is evicted yet. Without victims the pod waits for shares that are being
        released anyway, for example by another pod's plan.
        """
        now = self._clock()
        if not plan.victims:
            self._preemptions.fruitless(entry.uid, 0, now, IDLE)
        elif self._giving_way.may_plan(entry.uid):
            self._giving_way.begin(entry, plan, tracker.leaving(self._sharers.on(plan.node), now), now)
            self._preemptions.helped(entry.uid)
        return []

    def _warnings(self, now: float) -> list[WarnIdlePods]:
        """The idle pods to warn, each once."""
        to_warn = self._giving_way.take_warnings() if self._leadership.holds() else []
        return [
            WarnIdlePods(tuple(IdleWarning(plan.eviction(pod), self._warning(pod, now)) for pod in victims))
            for plan, victims in to_warn
        ]

    def _warning(self, pod: AllocatedPod, now: float) -> str:
        whose = "Its namespace's label" if pod.idle_after is None else "Its annotation"
        lasted, agreed = moments.duration(self._idle.lasted(pod, now) or 0.0), moments.duration(self._consent(pod))
        return (
            f"the pod's GPU share has been idle for {lasted}, and a waiting pod of equal or higher priority needs it. "
            f"{whose} {names.IDLE_AFTER} allows the eviction after {agreed}: the pod is evicted in "
            f"{moments.duration(self._giving_way.grace)} unless it uses the GPU again"
        )

    def _warned(self, event: IdlePodWarned, now: float) -> None:
        """The result of a warning: only a warned pod whose eviction is allowed may be evicted later."""
        order = event.warning.eviction
        plan = self._giving_way.of(order.uid)
        if event.outcome == "warned":
            pod = self._sharers.get(order.uid)
            if pod is not None:
                self._giving_way.note(pod, now)
            if plan is not None:
                self._say(plan)
        elif plan is not None:
            self._over(plan)
            if event.outcome == "budget":
                self._preemptions.spare(order.uid, now)
            elif event.outcome == "failed":
                self._preemptions.cannot_evict(plan, now)
        self._trigger.requeue()

    def _say(self, plan: OngoingPreemption) -> None:
        count = len(plan.plan.victims)
        text = f"waits for {count} {IDLE.one if count == 1 else IDLE.more} on node {plan.node} to be evicted"
        self._preemptions.say(plan.pod.uid, PodReason.IDLE_GIVES_WAY, text, served=True)

    def _over(self, plan: OngoingPreemption) -> None:
        """The plan is carried out or withdrawn."""
        self._giving_way.over(plan.pod.uid)
        self._preemptions.unsay(plan.pod.uid, PodReason.IDLE_GIVES_WAY)

    def _overdue(self) -> list[Eviction]:
        """
        The victims after their grace period, for one pod, by a new plan over the warned pods.
        """
        now = self._clock()
        if not self._leadership.holds() or self._trigger.requeued:
            return []
        for plan in self._giving_way.ripe(self._idle.confirmed, now):
            uid, victims = plan.pod.uid, frozenset(victim.uid for victim in plan.plan.victims)
            self._over(plan)
            self._trigger.requeue()
            entry = self._queue.pod(uid)
            if entry is None or not all(self._is_due(victim, now) for victim in plan.plan.victims):
                continue
            kept = self._preemptor.kept_for_patience()
            wanted = self._preemptions.may_plan(uid, now) and tracker.wanted(entry, kept)
            wanted = wanted and not tracker.closed_to(kept, plan.node, entry) and self._preemptor.has_no_room(entry)
            best = self._preemptor.best_there_now(entry, plan.plan, self._kind, victims) if wanted else None
            if best is not None and best.victims:
                self._giving_way.forget(victim.uid for victim in best.victims)
                return self._preemptor.begin(entry, best, IDLE)
        return []

    def _withdraw(self, now: float) -> tuple[()]:
        """Drop the plans for placed or deleted pods, and those with victims that compute again."""
        if not self._leadership.holds():
            for plan in tuple(self._kind.plans.values()):
                self._over(plan)
            self._giving_way.clear()
            return ()
        for uid in [uid for uid in self._kind.plans if self._queue.pod(uid) is None]:
            self._giving_way.over(uid)
        for plan in self._giving_way.retain(lambda victim: self._is_due(victim, now), now):
            self._over(plan)
            self._trigger.requeue()
        return ()
