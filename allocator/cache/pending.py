"""
What kube-scheduler is about to put on nodes: the CPU, memory and storage of pods that have no node yet.

A pod that is bound when it is admitted competes with these for its node, and its kubelet refuses whoever comes second.
Which nodes they may go to is not looked at: that would mean to keep their selectors, of pods that are none of ours. So
it is an upper bound. Those that came a moment ago count even if they have a node by now, since as many more may be on
their way that the watch has yet to bring. Pure: times are passed in.
"""

from __future__ import annotations

from collections import deque

from contract.model import Compute
from contract.scheduling.nodeinfo import plus

_LATELY = 2.0
"""Seconds."""
_MOST = 4096
"""Pods that came lately and are remembered."""


class Pending:
    """Pods without a node by uid. Not thread-safe: one owner calls it."""

    def __init__(self) -> None:
        self._waiting: dict[str, Compute] = {}
        self._came: deque[tuple[float, Compute]] = deque(maxlen=_MOST)
        self._sum = Compute()

    def __contains__(self, uid: str) -> bool:
        """Whether the pod has no node yet."""
        return uid in self._waiting

    def uids(self) -> frozenset[str]:
        """Every pod without a node."""
        return frozenset(self._waiting)

    def put(self, uid: str, compute: Compute, now: float) -> None:
        """A pod without a node is new or changed."""
        before = self._waiting.get(uid)
        if before is None:
            self._came.append((now, compute))
        else:
            self._sum = _less(self._sum, before)
        self._waiting[uid] = compute
        self._sum = plus(self._sum, compute)

    def drop(self, uid: str) -> None:
        """It has a node, or is finished or gone."""
        before = self._waiting.pop(uid, None)
        if before is not None:
            self._sum = _less(self._sum, before)

    def total(self, now: float) -> Compute:
        """What waits for a node, and once more what came lately."""
        while self._came and self._came[0][0] < now - _LATELY:
            self._came.popleft()
        found = self._sum
        for _, compute in self._came:
            found = plus(found, compute)
        return found

    def check_invariants(self) -> None:
        """Raise unless the sum is that of the pods."""
        found = Compute()
        for compute in self._waiting.values():
            found = plus(found, compute)
        if found != self._sum:
            raise AssertionError("what waits for a node is not what its pods need")


def _less(one: Compute, other: Compute) -> Compute:
    return Compute(one.cpu - other.cpu, one.memory - other.memory, one.storage - other.storage, one.pods - other.pods)
