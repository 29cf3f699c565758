"""
The preemptions that are under way, and who must not be asked again yet: notes, with time passed in.

Several at a time, since a pod takes as long to end as its grace period is, and a line of pods would wait that long for
each. They do not meet: each is planned as if those before it were carried out, so that no two count on one victim or
on one share, and what is made free for one is left alone by the others. Who goes is chosen by
`allocator.preemption.planner`; the evictions are written by the loop; here is what came of them, so that no pod is
evicted twice for one and none in vain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from allocator.cache import reserved
from allocator.cache.reserved import NodeReservation
from allocator.engine.reference import Snapshot
from allocator.preemption.planner import PreemptionPlan
from allocator.queue.queue import QueuedPodInfo
from allocator.queue.records import Eviction
from contract.backoff import backoff
from contract.model import NodeState
from contract.scheduling import nodeinfo
from contract.scheduling.nodeinfo import AllocatedPod

MOST = 16
"""Under way at a time: a cluster whose priorities were given by mistake does not lose its pods all at once."""
STUCK = 600.0
"""Seconds after which a pod that ends is no longer counted on: its node may be gone for good."""
_SPARED = 30.0
"""Seconds until a pod is asked about again whose disruption budget did not allow its eviction."""
_FRUITLESS = 15.0
"""Seconds until it is looked anew whether some eviction would help a pod for which none did."""
_PAUSE, _PAUSE_CAP = 30.0, 600.0
"""Seconds before a pod may preempt again that was not placed after all: the first pause, and the longest."""

PREEMPTING, BLOCKED, FAILED = "Preempting", "PreemptionBlocked", "PreemptionFailed"


@dataclass(frozen=True, slots=True)
class OngoingPreemption:
    """For which pod, where, and whose going is awaited."""

    pod: QueuedPodInfo
    plan: PreemptionPlan
    awaited: frozenset[str]
    """Its victims, who leaves anyway, and whom those before it on that node await."""
    since: float

    @property
    def node(self) -> str:
        """Where room is made."""
        return self.plan.node


class PreemptionTracker:
    """The notes. Not thread-safe: one owner calls it."""

    def __init__(self) -> None:
        self.under_way: dict[str, OngoingPreemption] = {}
        """By the uid of the pod for which room is made."""
        self._spared: dict[str, float] = {}
        self._paused: dict[str, float] = {}
        self.vain: dict[str, int] = {}
        """By uid, how often in a row room was made for a pod that was not placed after all."""
        self._said: dict[str, tuple[str, str]] = {}

    # -- reading --------------------------------------------------------------------------------------------------

    def may_ask(self, uid: str, now: float) -> bool:
        """Whether it may be looked for victims for this pod."""
        return len(self.under_way) < MOST and uid not in self.under_way and self._paused.get(uid, now) <= now

    def on(self, node: str) -> list[OngoingPreemption]:
        """Those on one node, in the order in which they were planned."""
        return [each for each in self.under_way.values() if each.node == node]

    def spared(self, now: float) -> frozenset[str]:
        """Who cannot be evicted for the time being."""
        self._spared = {uid: until for uid, until in self._spared.items() if until > now}
        return frozenset(self._spared)

    def says(self, uid: str) -> tuple[str, str] | None:
        """What preemption means for a waiting pod, as a code and an addition to why it waits; None where nothing."""
        return self._said.get(uid)

    # -- moving ---------------------------------------------------------------------------------------------------

    def begin(self, pod: QueuedPodInfo, plan: PreemptionPlan, leaving: frozenset[str], now: float) -> list[Eviction]:
        """Room is made for the pod: these are to be evicted, and those who leave anyway are awaited."""
        before = {uid for each in self.on(plan.node) for uid in each.awaited}
        awaited = leaving | before | {victim.uid for victim in plan.victims}
        self.under_way[pod.uid] = OngoingPreemption(pod, plan, awaited, now)
        if not plan.victims:
            self._said[pod.uid] = (PREEMPTING, f"waits until pods on node {plan.node} end")
        why = f"a pod of higher priority waits for a GPU share, and node {plan.node} needs the fewest evictions"
        return [Eviction(victim.key, victim.uid, None, "preemption", why) for victim in plan.victims]

    def granted(self, order: Eviction) -> None:
        """
        One of the evictions was granted. Only now the waiting pod is told: where a budget forbids what is asked for
        again and again, what it was told before still holds.
        """
        under_way = self._of(order)
        if under_way is not None:
            text = f"waits for pods of lower priority on node {under_way.node}, evicted to make room"
            self._said[under_way.pod.uid] = (PREEMPTING, text)

    def _of(self, order: Eviction) -> OngoingPreemption | None:
        """For which of them somebody is to go."""
        for each in self.under_way.values():
            if any(victim.uid == order.uid for victim in each.plan.victims):
                return each
        return None

    def refused(self, order: Eviction, now: float) -> None:
        """A disruption budget does not allow it now. What was begun is given up; there may be others."""
        self._spared[order.uid] = now + _SPARED
        under_way = self._of(order)
        if under_way is not None:
            self.over(under_way.pod.uid)

    def failed(self, order: Eviction, now: float) -> None:
        """An eviction could not be asked for, whatever the reason."""
        under_way = self._of(order)
        if under_way is not None:
            uid = under_way.pod.uid
            self.over(uid)
            self._pause(uid, now)
            self._said[uid] = (
                FAILED,
                "pods of lower priority could make room, but evicting them failed; the allocator's log says why",
            )

    def fruitless(self, uid: str, blocked: int, now: float) -> None:
        """No eviction helps the pod now; `blocked` is how many would, were it not for disruption budgets."""
        self._paused[uid] = now + _FRUITLESS
        self._said.pop(uid, None)
        if blocked:
            pods = f"{blocked} pod{'s' * (blocked != 1)} of lower priority"
            self._said[uid] = (BLOCKED, f"{pods} could make room, but disruption budgets do not allow it now")

    def in_vain(self, uid: str, now: float) -> None:
        """Everybody awaited is gone, or did not go in time, and the pod still waits."""
        self.over(uid)
        self._pause(uid, now)

    def over(self, uid: str) -> None:
        """The pod is placed, has left the queue, or what was begun for it is given up."""
        if self.under_way.pop(uid, None) is not None and self._said.get(uid, ("",))[0] == PREEMPTING:
            del self._said[uid]

    def retain(self, waits: Callable[[str], bool]) -> None:
        """Forget what is noted of pods that no longer wait."""
        noted: tuple[dict[str, Any], ...] = (self._paused, self.vain, self._said)
        for notes in noted:
            for uid in [uid for uid in notes if not waits(uid)]:
                del notes[uid]

    def _pause(self, uid: str, now: float) -> None:
        self.vain[uid] = failures = self.vain.get(uid, 0) + 1
        self._paused[uid] = now + backoff(failures, _PAUSE, _PAUSE_CAP)


def leaving(sharers: tuple[AllocatedPod, ...], now: float) -> frozenset[str]:
    """Who of these is on the way out and still counted on."""
    return frozenset(s.uid for s in sharers if s.ending is not None and now - s.ending < STUCK)


def wanted(pod: QueuedPodInfo, kept: Sequence[NodeReservation]) -> bool:
    """
    Whether the pod wants room to be made, and nobody of higher priority has a node kept for having waited too long.

    The share of a claim is the claim's to wait for, and its pods share it.
    """
    if pod.foreign or pod.ask.request.claim or (pod.pod.get("spec") or {}).get("preemptionPolicy") == "Never":
        return False
    return all(one.uid == pod.uid or one.priority <= pod.priority for one in kept)


def closed_to(kept: Sequence[NodeReservation], node: str, pod: QueuedPodInfo) -> bool:
    """Whether the node is kept for another pod that has waited too long."""
    theirs = {one.node for one in reserved.entitled(kept, pod.asking)}
    return any(one.node == node for one in kept) and node not in theirs


# -- what will be -------------------------------------------------------------------------------------------------


def carried_out(node: NodeState, sharers: Iterable[AllocatedPod], plans: Iterable[OngoingPreemption]) -> NodeState:
    """The node as it will be: without those who are awaited, and with the pods for which they go."""
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
) -> tuple[NodeReservation, ...]:
    """
    The nodes that are kept for those for whom room is made, and what of each is others' to take.

    `placed`: whether the pod of this uid has its share by now, so that it is counted on its node.
    """
    found, plans = list[NodeReservation](), tuple(plans)
    for one in plans:
        others = [each for each in plans if each.node == one.node and each is not one and not placed(each.pod.uid)]
        state = snapshot.get(one.node)
        entry = NodeReservation(one.node, one.pod.uid, one.pod.priority)
        if others and state is not None:
            after = carried_out(state, sharers.get(one.node, ()), others)
            usage = tuple((gpu.uuid, taken) for gpu, taken in zip(after.gpus, after.usage, strict=True))
            entry = replace(entry, others=usage, compute=after.requested)
        found.append(entry)
    return tuple(found)
