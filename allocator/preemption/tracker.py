"""
The preemptions in progress, and the pods that must not be evicted or planned for again yet.

Several are in progress at a time, because a pod takes its grace period to end, and a queue of pods would wait that long
for each. They do not overlap: each is planned as if the earlier ones were carried out, so that no two count on one
victim or on one share, and the room made for one pod is left alone by the others. `allocator.preemption.planner`
chooses the victims; the workers write the evictions; the tracker takes in their results, so that no pod is evicted
twice for one pod, and none in vain. Pure: time is passed in.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from allocator.cache import reserved
from allocator.cache.reserved import HeldNode
from allocator.engine.reference import Snapshot
from allocator.preemption.planner import PreemptionPlan
from allocator.queue.queue import QueuedPodInfo
from allocator.queue.records import Eviction
from contract.backoff import backoff
from contract.model import NodeState
from contract.reasons.base import ReasonName
from contract.reasons.pods import PodEventReason, PodReason
from contract.scheduling import nodeinfo
from contract.scheduling.nodeinfo import AllocatedPod

MOST = 16
"""Preemptions at a time: a cluster with mistaken priorities does not lose its pods all at once."""
STUCK = 600.0
"""Seconds after which an ending pod no longer counts as leaving: its node may have failed permanently."""
_SPARED = 30.0
"""Seconds for which a pod whose disruption budget did not allow its eviction is not chosen."""
_FRUITLESS = 15.0
"""Seconds until the next plan for a pod that no eviction helped."""
_PAUSE, _PAUSE_CAP = 30.0, 600.0
"""Seconds before a pod that was not placed after its preemption may preempt again: the first pause, and the longest."""


@dataclass(frozen=True, slots=True)
class EvictionCause:
    """Why pods are evicted for another one, and the texts about it."""

    name: str
    """For the metric of evictions."""
    why: str
    """The message for a victim; `{node}` stands for its node."""
    one: str
    """What is evicted, as text for the pod that waits."""
    more: str
    """The plural of it."""
    event: PodEventReason
    """The reason of the victim's Event."""


PRIORITY = EvictionCause(
    "preemption",
    why="a pod of higher priority waits for a GPU share, and node {node} requires the fewest evictions",
    one="pod of lower priority",
    more="pods of lower priority",
    event=PodEventReason.PREEMPTED,
)


@dataclass(frozen=True, slots=True)
class OngoingPreemption:
    """Room is being made for a pod."""

    pod: QueuedPodInfo
    plan: PreemptionPlan
    awaited: frozenset[str]
    """uids of its victims, of pods that leave the node anyway, and of those that earlier preemptions there await."""
    since: float
    cause: EvictionCause

    @property
    def node(self) -> str:
        """Where room is made."""
        return self.plan.node

    def eviction(self, victim: AllocatedPod) -> Eviction:
        """The eviction of one of its victims."""
        return Eviction(victim.key, victim.uid, None, self.cause.name, self.cause.why.format(node=self.node))


@dataclass(slots=True)
class _Attempts:
    """The results of preemptions for one waiting pod."""

    paused_until: float = float("-inf")
    vain: int = 0
    """How often in a row room was made for the pod but it was not placed."""
    says: tuple[ReasonName, str] | None = None
    """What preemption means for the pod now, as a code and an addition to why it waits."""
    served: bool = False
    """Whether that is that room will be made for it."""


class PreemptionTracker:
    """The preemptions under way. Not thread-safe: one owner calls it."""

    def __init__(self) -> None:
        self.under_way: dict[str, OngoingPreemption] = {}
        """By the uid of the pod for which room is made."""
        self._attempts: defaultdict[str, _Attempts] = defaultdict(_Attempts)
        self._spared: dict[str, float] = {}
        """Pods that cannot be evicted until then, by uid."""

    # -- reading --------------------------------------------------------------------------------------------------

    def may_plan(self, uid: str, now: float) -> bool:
        """Whether victims may be sought for this pod."""
        attempts = self._attempts.get(uid)
        paused = attempts is not None and attempts.paused_until > now
        return len(self.under_way) < MOST and uid not in self.under_way and not paused

    def on(self, node: str) -> list[OngoingPreemption]:
        """Those on one node, in the order in which they were planned."""
        return [each for each in self.under_way.values() if each.node == node]

    def spared(self, now: float) -> frozenset[str]:
        """uids of the pods that cannot be evicted for the time being."""
        self._spared = {uid: until for uid, until in self._spared.items() if until > now}
        return frozenset(self._spared)

    def says(self, uid: str) -> tuple[ReasonName, str] | None:
        """What preemption means for a waiting pod, as a code and an addition to why it waits; None if nothing."""
        attempts = self._attempts.get(uid)
        return attempts.says if attempts is not None else None

    def serves(self, uid: str) -> bool:
        """Whether room is made for the pod, or will be."""
        attempts = self._attempts.get(uid)
        return uid in self.under_way or (attempts is not None and attempts.says is not None and attempts.served)

    def vain(self) -> frozenset[str]:
        """uids of the waiting pods that were not placed although room was made for them."""
        return frozenset(uid for uid, attempts in self._attempts.items() if attempts.vain)

    # -- moving ---------------------------------------------------------------------------------------------------

    def say(self, uid: str, code: ReasonName, text: str, *, served: bool = False) -> None:
        """What preemption means for a waiting pod from now on. `served`: room will be made for it."""
        attempts = self._attempts[uid]
        attempts.says = (code, text)
        attempts.served = served

    def unsay(self, uid: str, code: ReasonName) -> None:
        """The text with this code no longer holds."""
        if (self.says(uid) or ("",))[0] == code:
            self._attempts[uid].says = None

    def begin(
        self, pod: QueuedPodInfo, plan: PreemptionPlan, leaving: frozenset[str], now: float, cause: EvictionCause
    ) -> list[Eviction]:
        """Room is made for the pod. Returns the evictions. `leaving`: pods that leave anyway, which are awaited too."""
        before = {uid for each in self.on(plan.node) for uid in each.awaited}
        awaited = leaving | before | {victim.uid for victim in plan.victims}
        begun = self.under_way[pod.uid] = OngoingPreemption(pod, plan, awaited, now, cause)
        if not plan.victims:
            self.say(pod.uid, PodReason.PREEMPTING, f"waits until pods on node {plan.node} end")
        return list(map(begun.eviction, plan.victims))

    def granted(self, order: Eviction) -> EvictionCause:
        """
        One of the evictions was granted; returns why it was requested. It is reported only now: if a budget forbids an
        eviction that is requested repeatedly, the earlier report still holds.
        """
        under_way = self._of(order)
        if under_way is None:
            return PRIORITY
        text = f"waits for {under_way.cause.more} on node {under_way.node}, evicted to make room"
        self.say(under_way.pod.uid, PodReason.PREEMPTING, text)
        return under_way.cause

    def _of(self, order: Eviction) -> OngoingPreemption | None:
        """The preemption that this eviction belongs to."""
        for each in self.under_way.values():
            if any(victim.uid == order.uid for victim in each.plan.victims):
                return each
        return None

    def owner(self, order: Eviction) -> str:
        """The controller of the pod that is evicted; empty if the preemption is over."""
        under_way = self._of(order)
        victims = under_way.plan.victims if under_way is not None else ()
        return next((victim.owner for victim in victims if victim.uid == order.uid), "")

    def refused(self, order: Eviction, now: float) -> None:
        """A disruption budget does not allow the eviction now. The preemption is given up; others may be victims."""
        self.spare(order.uid, now)
        under_way = self._of(order)
        if under_way is not None:
            self.over(under_way.pod.uid)

    def spare(self, uid: str, now: float) -> None:
        """A disruption budget does not allow the eviction of this pod now."""
        self._spared[uid] = now + _SPARED

    def failed(self, order: Eviction, now: float) -> None:
        """An eviction could not be requested, for any reason."""
        under_way = self._of(order)
        if under_way is not None:
            self.over(under_way.pod.uid)
            self.cannot_evict(under_way, now)

    def cannot_evict(self, plan: OngoingPreemption, now: float) -> None:
        """The evictions of a plan that is not under way could not be asked for."""
        self._pause(plan.pod.uid, now)
        text = f"evicting {plan.cause.more} would make room, but the evictions failed; the allocator's log says why"
        self.say(plan.pod.uid, PodReason.PREEMPTION_FAILED, text)

    def fruitless(self, uid: str, blocked: int, now: float, cause: EvictionCause) -> None:
        """
        No eviction for this cause helps the pod now; `blocked`: how many would if disruption budgets allowed them. What
        was found for another cause a moment before stays.
        """
        attempts = self._attempts[uid]
        if attempts.paused_until <= now:
            attempts.says = None
        attempts.paused_until = now + _FRUITLESS
        if blocked:
            pods = f"{blocked} {cause.one if blocked == 1 else cause.more}"
            self.say(
                uid, PodReason.BLOCKED, f"evicting {pods} would make room, but disruption budgets do not allow it now"
            )

    def helped(self, uid: str) -> None:
        """
        Evictions will make room for the pod after all; a recent finding that those for another cause do not help must
        not prevent them.
        """
        if uid in self._attempts:
            self._attempts[uid].paused_until = float("-inf")

    def in_vain(self, uid: str, now: float) -> None:
        """All awaited pods have ended, or did not end in time, and the pod still waits."""
        self.over(uid)
        self._pause(uid, now)

    def over(self, uid: str) -> None:
        """The pod is placed, has left the queue, or its preemption is given up."""
        if self.under_way.pop(uid, None) is not None:
            self.unsay(uid, PodReason.PREEMPTING)

    def retain(self, waits: Callable[[str], bool]) -> None:
        """Forget the attempts for pods that no longer wait."""
        for uid in [uid for uid in self._attempts if not waits(uid)]:
            del self._attempts[uid]

    def _pause(self, uid: str, now: float) -> None:
        attempts = self._attempts[uid]
        attempts.vain += 1
        attempts.paused_until = now + backoff(attempts.vain, _PAUSE, _PAUSE_CAP)


def leaving(sharers: tuple[AllocatedPod, ...], now: float) -> frozenset[str]:
    """uids of those pods that are ending and whose shares are still expected back."""
    return frozenset(s.uid for s in sharers if s.ending is not None and now - s.ending < STUCK)


def wanted(pod: QueuedPodInfo, kept: Sequence[HeldNode]) -> bool:
    """
    Whether room may be made for the pod. Not while a node is reserved for a starving pod of higher priority, and not
    for a pod that names a claim: the claim waits for the share, and its pods use it together. Nor for a pod of a gang:
    room for one of its pods starts none of them.
    """
    if (
        pod.foreign
        or pod.gang is not None
        or pod.ask.request.claim
        or (pod.pod.get("spec") or {}).get("preemptionPolicy") == "Never"
    ):
        return False
    return all(one.uid == pod.uid or one.priority <= pod.priority for one in kept)


def closed_to(kept: Sequence[HeldNode], node: str, pod: QueuedPodInfo) -> bool:
    """Whether the node is reserved for another pod, and closed to this one."""
    theirs = {one.node for one in reserved.entitled(kept, pod.requester)}
    return any(one.node == node for one in kept) and node not in theirs


# -- what will be -------------------------------------------------------------------------------------------------


def carried_out(node: NodeState, sharers: Iterable[AllocatedPod], plans: Iterable[OngoingPreemption]) -> NodeState:
    """The node as it will be: without the awaited pods, and with the pods for which room is made."""
    sharers, plans = tuple(sharers), tuple(plans)
    awaited = {uid for each in plans for uid in each.awaited}
    after = nodeinfo.unbooked(node, sharers, [sharer for sharer in sharers if sharer.uid in awaited])
    for each in plans:
        after = nodeinfo.booked(after, each.pod.ask, each.plan.containers)
    return after


def kept(
    plans: Iterable[OngoingPreemption],
    snapshot: Snapshot,
    sharers: Mapping[str, Sequence[AllocatedPod]],
    placed: Callable[[str], bool],
) -> tuple[HeldNode, ...]:
    """
    The reservations of the nodes where room is made, one for each pod, and what others will take of each node by then.

    `placed`: whether the pod of this uid has its share by now, so that it is counted on its node.
    """
    found, plans = list[HeldNode](), tuple(plans)
    for one in plans:
        others = [each for each in plans if each.node == one.node and each is not one and not placed(each.pod.uid)]
        state = snapshot.get(one.node)
        entry = HeldNode(one.node, one.pod.uid, one.pod.priority)
        if others and state is not None:
            after = carried_out(state, sharers.get(one.node, ()), others)
            usage = tuple((gpu.uuid, taken) for gpu, taken in zip(after.gpus, after.usage, strict=True))
            entry = replace(entry, others=usage, compute=after.requested)
        found.append(entry)
    return tuple(found)
