"""
The one preemption that is under way, and who must not be asked again yet: notes, with time passed in.

At most one at a time: the room that it makes is kept for its pod, and a cluster whose priorities were given by mistake
loses pods one plan after the other and not all at once. Who goes is chosen by `allocator.victims`; the evictions are
written by the loop; here is what came of them, so that no pod is evicted twice for one and none in vain.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from allocator import keeping
from allocator.keeping import Kept
from allocator.line import Evict
from allocator.queue import Waiting
from allocator.sharers import Sharer
from allocator.victims import Plan

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
class UnderWay:
    """For which pod, where, and whose going is awaited."""

    pod: Waiting
    node: str
    awaited: frozenset[str]
    since: float


class Preemption:
    """The notes. Not thread-safe: one owner calls it."""

    def __init__(self) -> None:
        self.under_way: UnderWay | None = None
        self._spared: dict[str, float] = {}
        self._paused: dict[str, float] = {}
        self._vain: dict[str, int] = {}
        self._said: dict[str, tuple[str, str]] = {}

    # -- reading --------------------------------------------------------------------------------------------------

    def kept(self) -> Kept | None:
        """The node that is kept for the pod for which room is being made."""
        now = self.under_way
        return Kept(now.node, now.pod.uid, now.pod.priority) if now is not None else None

    def may_ask(self, uid: str, now: float) -> bool:
        """Whether it may be looked for victims for this pod."""
        return self.under_way is None and self._paused.get(uid, now) <= now

    def spared(self, now: float) -> frozenset[str]:
        """Who cannot be evicted for the time being."""
        self._spared = {uid: until for uid, until in self._spared.items() if until > now}
        return frozenset(self._spared)

    def says(self, uid: str) -> tuple[str, str] | None:
        """What preemption means for a waiting pod, as a code and an addition to why it waits; None where nothing."""
        return self._said.get(uid)

    # -- moving ---------------------------------------------------------------------------------------------------

    def begin(self, pod: Waiting, plan: Plan, leaving: frozenset[str], now: float) -> list[Evict]:
        """Room is made for the pod: these are to be evicted, and those who leave anyway are awaited."""
        self.under_way = UnderWay(pod, plan.node, leaving | {victim.uid for victim in plan.victims}, now)
        if not plan.victims:
            self._said[pod.uid] = (PREEMPTING, f"waits for pods on node {plan.node} that end")
        why = f"a pod of higher priority waits for a GPU share, and node {plan.node} is where the fewest pods must go"
        return [Evict(victim.key, victim.uid, None, "preemption", why) for victim in plan.victims]

    def granted(self) -> None:
        """
        One of the evictions was granted. Only now the waiting pod is told: where a budget forbids what is asked for
        again and again, what it was told before still holds.
        """
        if self.under_way is not None:
            text = f"waits for pods of lower priority on node {self.under_way.node}, evicted to make room"
            self._said[self.under_way.pod.uid] = (PREEMPTING, text)

    def refused(self, order: Evict, now: float) -> None:
        """A disruption budget does not allow it now. What was begun is given up; there may be others."""
        self._spared[order.uid] = now + _SPARED
        self._give_up()

    def failed(self, now: float) -> None:
        """An eviction could not be asked for, whatever the reason."""
        under_way = self.under_way
        self._give_up()
        if under_way is not None:
            uid = under_way.pod.uid
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

    def in_vain(self, now: float) -> None:
        """Everybody awaited is gone, or did not go in time, and the pod still waits."""
        under_way = self.under_way
        self._give_up()
        if under_way is not None:
            self._pause(under_way.pod.uid, now)

    def placed(self) -> None:
        """The pod is being placed, or has left the line."""
        self._give_up()

    def retain(self, waits: Callable[[str], bool]) -> None:
        """Forget what is noted of pods that no longer wait."""
        noted: tuple[dict[str, Any], ...] = (self._paused, self._vain, self._said)
        for notes in noted:
            for uid in [uid for uid in notes if not waits(uid)]:
                del notes[uid]

    def _give_up(self) -> None:
        if self.under_way is not None and self._said.get(self.under_way.pod.uid, ("",))[0] == PREEMPTING:
            del self._said[self.under_way.pod.uid]
        self.under_way = None

    def _pause(self, uid: str, now: float) -> None:
        failures = self._vain.get(uid, 0)
        self._vain[uid] = failures + 1
        self._paused[uid] = now + min(_PAUSE * 2 ** min(failures, 16), _PAUSE_CAP)


def leaving(sharers: tuple[Sharer, ...], now: float) -> frozenset[str]:
    """Who of these is on the way out and still counted on."""
    return frozenset(s.uid for s in sharers if s.ending is not None and now - s.ending < STUCK)


def wanted(pod: Waiting, kept: Kept | None) -> bool:
    """
    Whether the pod wants room to be made, and nobody of higher priority has a node kept for it now.

    The share of a claim is the claim's to wait for, and its pods share it.
    """
    if pod.foreign or pod.ask.request.claim or (pod.pod.get("spec") or {}).get("preemptionPolicy") == "Never":
        return False
    return kept is None or kept.uid == pod.uid or kept.priority <= pod.priority


def closed_to(kept: Kept | None, node: str, pod: Waiting) -> bool:
    """Whether the node is kept for another pod."""
    return kept is not None and kept.node == node and not keeping.entitled(kept, pod.uid, pod.priority)
