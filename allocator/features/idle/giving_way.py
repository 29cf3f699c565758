"""
Evicts idle pods for a waiting pod: warns them first, and evicts them only if they are still idle.

    planned ──warned──▶ grace ──idle all the time, and the agent reported so since──▶ evicted
       │                  │
       └──────────────────┴── one of them computes or ends, or the waiting pod needs no room any more ──▶ withdrawn

No room is reserved meanwhile, because none was released. The plan is made again before a pod is evicted.

A warning belongs to the pod and not to the plan. If a plan is withdrawn and another one names the same pod soon after,
the pod is not warned twice. The warning expires once the pod has computed, even briefly, or some time after its grace
period: no pod is evicted hours after a warning. All of this is only in memory, so a new leader warns again.

Pure: time is passed in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from allocator.preemption.planner import PreemptionPlan
from allocator.preemption.tracker import EvictionCause, OngoingPreemption
from allocator.queue.queue import QueuedPodInfo
from contract.reasons.pods import PodEventReason
from contract.scheduling.nodeinfo import AllocatedPod

IDLE = EvictionCause(
    "idle",
    why="its GPU share is idle, and a pod of equal or higher priority waits for it",
    one="idle pod",
    more="idle pods",
    event=PodEventReason.GAVE_WAY,
)
MOST = 16
"""The number of waiting pods for which idle pods are warned at a time."""
STANDS = 600.0
"""Seconds for which a warning counts after its grace period."""
_LATE = 900.0
"""Seconds after the grace period until a plan is withdrawn if the agent does not report its victims as idle."""


class GivingWay:
    """The warnings, and the plans that wait for them. Not thread-safe: one owner uses it."""

    def __init__(self, grace: float, since: Callable[[AllocatedPod], int | None]) -> None:
        """
        `grace`: seconds between a pod's warning and its eviction. `since`: the time since which a pod is idle, by its
        node's clock; None if it is not. It changes when the pod computes in between.
        """
        self.grace = grace
        self._since = since
        self.plans: dict[str, OngoingPreemption] = {}
        """Plans by the uid of the pod that needs room, in the order of creation."""
        self._warned: dict[str, tuple[float, int | None]] = {}
        """When each pod was warned, and since when it was idle, by uid."""
        self._to_warn: dict[str, tuple[AllocatedPod, ...]] = {}
        """The victims of each plan that are not warned yet, by the uid of its pod."""

    def may_plan(self, uid: str) -> bool:
        """Whether idle pods may be looked for on behalf of this pod."""
        return uid not in self.plans and len(self.plans) < MOST

    def begin(self, pod: QueuedPodInfo, plan: PreemptionPlan, leaving: frozenset[str], now: float) -> None:
        """The plan's victims must give way for the pod. `leaving`: pods that leave anyway."""
        awaited = leaving | {victim.uid for victim in plan.victims}
        self.plans[pod.uid] = OngoingPreemption(pod, plan, awaited, now, IDLE)
        to_warn = tuple(victim for victim in plan.victims if self.warned(victim, now) is None)
        if to_warn:
            self._to_warn[pod.uid] = to_warn

    def victims(self) -> Iterator[AllocatedPod]:
        """All pods that are to be evicted."""
        return (victim for each in self.plans.values() for victim in each.plan.victims)

    def take_warnings(self) -> list[tuple[OngoingPreemption, tuple[AllocatedPod, ...]]]:
        """The pods to warn now, plan by plan, each once."""
        found, self._to_warn = self._to_warn, {}
        return [(self.plans[uid], victims) for uid, victims in found.items()]

    def warned(self, pod: AllocatedPod, now: float) -> float | None:
        """When the pod was warned; None if no warning counts any more."""
        at, since = self._warned.get(pod.uid, (float("-inf"), None))
        return at if now - at <= self.grace + STANDS and since is not None and since == self._since(pod) else None

    def note(self, pod: AllocatedPod, now: float) -> None:
        """The pod is warned."""
        self._warned[pod.uid] = (now, self._since(pod))

    def over(self, uid: str) -> None:
        """Drop the plan: its pod is placed or deleted, or the plan is carried out or withdrawn."""
        self.plans.pop(uid, None)
        self._to_warn.pop(uid, None)

    def of(self, victim: str) -> OngoingPreemption | None:
        """The plan that contains this victim."""
        return next((each for each in self.plans.values() if victim in _uids(each)), None)

    def retain(self, still_idle: Callable[[AllocatedPod], bool], now: float) -> list[OngoingPreemption]:
        """
        Withdraw and return the plans with a victim that has computed or is deleted, or whose agent is silent.

        Such victims are warned again before another plan evicts them.
        """
        ended = {
            victim.uid
            for victim in self.victims()
            if not still_idle(victim) or (victim.uid in self._warned and self.warned(victim, now) is None)
        }
        late = {uid for uid, each in self.plans.items() if now - each.since > self.grace + _LATE}
        withdrawn = [each for uid, each in self.plans.items() if uid in late or ended & _uids(each)]
        for each in withdrawn:
            self.over(each.pod.uid)
        self.forget(ended)
        self._warned = {uid: each for uid, each in self._warned.items() if now - each[0] <= self.grace + STANDS}
        return withdrawn

    def forget(self, uids: Iterable[str]) -> None:
        """Drop the warnings of these pods."""
        for uid in uids:
            self._warned.pop(uid, None)

    def clear(self) -> None:
        """This replica no longer decides."""
        self.plans.clear()
        self._warned.clear()
        self._to_warn.clear()

    def ripe(self, confirmed: Callable[[AllocatedPod, float], bool], now: float) -> list[OngoingPreemption]:
        """The plans whose victims' grace periods are over, with all victims `confirmed` idle since their warning."""

        def had(victim: AllocatedPod) -> bool:
            at = self.warned(victim, now)
            return at is not None and now - at >= self.grace and confirmed(victim, at)

        return [each for each in self.plans.values() if all(map(had, each.plan.victims))]


def _uids(plan: OngoingPreemption) -> frozenset[str]:
    return frozenset(victim.uid for victim in plan.plan.victims)
