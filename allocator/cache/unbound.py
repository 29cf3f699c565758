"""
Pods that hold a share and that kube-scheduler cannot bind: who they are, and since when.

A pod pinned by affinity has its share from the moment it is placed, but kube-scheduler still judges the rest: volumes,
spread, other pods. Where it says "Unschedulable" for longer than a bound, a GPU lies idle, and somebody must be told.
Pure notes by uid; time is passed in, so that no clock of the API server matters.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from allocator.cache.podinfo import PodInfo


@dataclass(frozen=True, slots=True)
class UnboundPod:
    """A pod whose share nobody uses. `version` is what it was last seen at."""

    uid: str
    key: str
    node: str
    since: float
    said: str
    """What kube-scheduler says."""
    owned: bool
    """A controller will make another in its place."""
    version: int | None
    told: bool = False


class UnboundPods:
    """The notes. Not thread-safe: one owner calls it."""

    def __init__(self, after: float) -> None:
        self._after = after
        self._stuck: dict[str, UnboundPod] = {}

    def see(self, pod: PodInfo, node: str, now: float) -> bool:
        """A pod that holds a share on `node` is new or changed. True if it was told to be stuck and is no more."""
        uid, said = pod.uid, pod.unschedulable
        known = self._stuck.get(uid)
        if said is None:
            self._stuck.pop(uid, None)
            return known is not None and known.told
        since, told = (known.since, known.told) if known else (now, False)
        self._stuck[uid] = UnboundPod(uid, pod.key, node, since, said, pod.owned, pod.version, told)
        return False

    def drop(self, uid: str) -> None:
        """The pod holds nothing any more."""
        self._stuck.pop(uid, None)

    def due(self, now: float) -> list[UnboundPod]:
        """The pods that have been stuck past the bound and of whom it was not said yet; each is given once."""
        late = [s for s in self._stuck.values() if not s.told and now - s.since >= self._after]
        for stuck in late:
            self._stuck[stuck.uid] = replace(stuck, told=True)
        return late

    def late(self, now: float) -> int:
        """How many are stuck past the bound."""
        return sum(now - s.since >= self._after for s in self._stuck.values())
