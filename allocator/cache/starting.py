"""
The pods that start alone and are starting, by node, and until when each of them closes its GPUs to others of the kind.

    placed ──▶ STARTING ──ready, finished or deleted──▶ out
                  │
                  └──longer than the bound──▶ OVERDUE ──its containers start later──▶ STARTING

What is starting is read from the pods (`contract.starts`). Pods have times of other machines' clocks: the bound is
measured once, when a pod is first looked at, and counts by the injected clock from then on. Pure: times are passed in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class StartingPod:
    """A pod that is starting."""

    uid: str
    key: str
    """`namespace/name`."""
    node: str
    gpus: frozenset[str]
    """UUIDs of the GPUs on which it has its share."""
    since: float
    """Since when, according to the pod, in seconds since 1970; 0 if missing."""
    until: float | None = None
    """When the bound ends, by the injected clock; None until that was measured."""
    overdue: bool = False
    """It has been starting for longer than the bound, so it no longer closes anything."""


class StartingPods:
    """The pods that start alone and are not ready. Not thread-safe: one owner calls it."""

    def __init__(self) -> None:
        self._pods: dict[str, StartingPod] = {}
        self._by_node: dict[str, dict[str, StartingPod]] = {}

    def see(self, pod: StartingPod) -> bool:
        """A pod is starting. True if it closes other GPUs than before."""
        before = self._pods.get(pod.uid)
        if before is not None and (before.since, before.node, before.gpus) == (pod.since, pod.node, pod.gpus):
            return False
        self._put(pod)
        return _closes(before) != _closes(pod)

    def drop(self, uid: str) -> bool:
        """The pod is ready, or has ended. True if it closed GPUs."""
        before = self._pods.pop(uid, None)
        if before is None:
            return False
        on = self._by_node[before.node]
        del on[uid]
        if not on:
            del self._by_node[before.node]
        return not before.overdue

    def on(self, node: str) -> Mapping[str, int]:
        """The number of pods that close each GPU of a node, by UUID."""
        pods = self._by_node.get(node)
        return Counter(gpu for pod in pods.values() if not pod.overdue for gpu in pod.gpus) if pods else {}

    def take_overdue(self, now: float, wall: float, bound: float) -> tuple[StartingPod, ...]:
        """
        The pods that no longer close anything, because they have been starting for longer than `bound` seconds; each
        once. `wall`: the present in seconds since 1970.
        """
        found = []
        for pod in tuple(self._pods.values()):
            if pod.overdue:
                continue
            if pod.until is None:
                age = min(max(0.0, wall - pod.since), bound) if pod.since else 0.0
                pod = replace(pod, until=now + bound - age)
            if pod.until is not None and pod.until <= now:
                pod = replace(pod, overdue=True)
                found.append(pod)
            self._put(pod)
        return tuple(found)

    def counts(self) -> tuple[int, int]:
        """The number of pods that are starting: within the bound, and for longer."""
        overdue = sum(pod.overdue for pod in self._pods.values())
        return len(self._pods) - overdue, overdue

    def __iter__(self) -> Iterator[StartingPod]:
        return iter(self._pods.values())

    def _put(self, pod: StartingPod) -> None:
        self.drop(pod.uid)
        self._pods[pod.uid] = self._by_node.setdefault(pod.node, {})[pod.uid] = pod


def _closes(pod: StartingPod | None) -> tuple[str, frozenset[str]] | None:
    return None if pod is None or pod.overdue else (pod.node, pod.gpus)
