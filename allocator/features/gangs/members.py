"""
The members of each gang: the pods that wait, those that hold a share, and the plan of a gang that has begun.

A gang has **begun** while one of its existing pods holds a share, or while a plan contains a pod that still waits. The
plan is on the first placed pod. Here it is kept after that pod is deleted, until none of its pods waits.

Watch events fill it; it decides nothing. Not thread-safe: one owner calls it. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from allocator.cache.podinfo import PodInfo
from contract.encoding import gangplans
from contract.encoding.reading import Malformed
from contract.gangs import GangKey
from contract.model import Allocation

Plan = dict[str, Allocation | None]
"""The share of each member by uid; None if it is not decided yet."""
_ENDS_AFTER = 60.0
"""Seconds."""
_FORMER = 16
"""The number of remembered shares of pods that have left a gang, so that a replacement returns to them."""


@dataclass(slots=True)
class Members:
    """The pods of one gang, by uid."""

    waiting: dict[str, None] = field(default_factory=dict)
    placed: dict[str, Allocation] = field(default_factory=dict)
    """Those with a share that are not deleted."""
    plans: dict[str, str] = field(default_factory=dict)
    """Plans as text, by the pod that has or had them."""
    former: deque[Allocation] = field(default_factory=lambda: deque(maxlen=_FORMER))
    """Shares of pods that left the gang while it ran."""
    version: int = 0
    """How often its pods have changed."""
    alone_since: float | None = None
    """The time since which its leader has waited without any other pod."""
    _read: dict[str, Plan] = field(default_factory=dict)

    def has_begun(self) -> bool:
        """Whether one of its pods has a share, or is about to get one by a plan."""
        return bool(self.placed) or next(self.planned(), None) is not None

    def planned(self) -> Iterator[tuple[str, Allocation | None]]:
        """The waiting pods that are in a plan, each with its share."""
        if not self.plans:
            return
        for pod, text in self.plans.items():
            if pod not in self._read:
                self._read[pod] = _plan(text)
        for uid in self.waiting:
            for plan in self._read.values():
                if uid in plan:
                    yield uid, plan[uid]
                    break

    def settle(self) -> list[str]:
        """Forget the plans for which no pod waits. Returns the pods without a share that had them."""
        waits = {uid for uid, _ in self.planned()} if self.waiting and self.plans else set[str]()
        over = [pod for pod in self.plans if pod not in self.placed and waits.isdisjoint(self._read.get(pod, ()))]
        for pod in over:
            del self.plans[pod]
            self._read.pop(pod, None)
        if not self.waiting:
            self._read.clear()
        return over


def _plan(text: str) -> Plan:
    try:
        return gangplans.from_text(text)
    except Malformed:
        return {}  # of a later version, or damaged: its pods are placed by themselves


class GangIndex:
    """All gangs."""

    def __init__(self) -> None:
        self._gangs: dict[GangKey, Members] = {}
        self._of: dict[str, GangKey] = {}
        """The gang of each pod that is in one."""
        self.open: dict[GangKey, None] = {}
        """Gangs with a plan and with waiting pods."""
        self._ended: dict[GangKey, float | None] = {}
        """Gangs without pods, or with a plan on a pod that has no share any more, and since when; None: not noted."""

    def of(self, key: GangKey) -> Members | None:
        """The pods of a gang; None if it has none."""
        return self._gangs.get(key)

    def key_of(self, uid: str) -> GangKey | None:
        """The gang of a pod."""
        return self._of.get(uid)

    def counts(self) -> tuple[int, int]:
        """The number of gangs that wait as a whole, and of gangs that have begun."""
        begun = sum(bool(each.placed) for each in self._gangs.values())
        return sum(bool(each.waiting and not each.placed) for each in self._gangs.values()), begun

    def see(self, pod: PodInfo) -> None:
        """A pod is new or changed."""
        uid, key = pod.uid, pod.gang.key if pod.gang is not None else None
        before = self._of.get(uid)
        if before is not None and before != key:
            self.drop(uid)
        if key is None:
            return
        members = self._gangs.setdefault(key, Members())
        self._of[uid] = key
        if pod.waiting is not None:
            members.waiting[uid] = None
            self._leave(members, uid)
        else:
            members.waiting.pop(uid, None)
            if pod.plan:
                members.plans[uid] = pod.plan
            if pod.allocation is not None and not pod.deleting:
                members.placed[uid] = pod.allocation
            else:
                self._leave(members, uid)
        members.version += 1
        self._settle(key, members)

    def drop(self, uid: str) -> None:
        """Remove a pod from its gang."""
        key = self._of.pop(uid, None)
        members = self._gangs.get(key) if key is not None else None
        if key is None or members is None:
            return
        members.waiting.pop(uid, None)
        self._leave(members, uid)
        members.version += 1
        self._settle(key, members)

    def _leave(self, members: Members, uid: str) -> None:
        share = members.placed.pop(uid, None)
        if share is not None:
            members.former.append(share)
        if not members.placed:
            members.former.clear()

    def _settle(self, key: GangKey, members: Members) -> None:
        if members.plans and members.waiting:
            self.open[key] = None
        else:
            self.open.pop(key, None)
        if not members.placed.keys() >= members.plans.keys() or not (members.waiting or members.placed):
            self._ended.setdefault(key, None)

    def prune(self, now: float) -> None:
        """
        Forget plans for which no pod waits, and gangs without pods, after a while: a list may contain the ended pod
        with the plan before the waiting pods.
        """
        for key, since in tuple(self._ended.items()):
            if since is None:
                self._ended[key] = now
            elif now - since >= _ENDS_AFTER:
                del self._ended[key]
                self._forget(key)

    def _forget(self, key: GangKey) -> None:
        members = self._gangs.get(key)
        if members is None:
            return
        for uid in members.settle():
            self._of.pop(uid, None)
        if members.waiting or members.placed:
            self._settle(key, members)
        else:
            del self._gangs[key]
            self.open.pop(key, None)
