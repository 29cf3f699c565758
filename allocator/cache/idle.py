"""
The pods that compute nothing, as published by the agents.

An agent's clock is not ours. So the idle time is the difference of the agent's own two times, of the start and of its
last check, and from there on it counts by our clock. The report of an ended agent would still count, so a caller that
acts on it checks whether the agent has written since some moment (`confirmed`).

A GPUNode counts only for pods on its own node: an agent must not report pods of others. Pure: time is passed in.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from contract.nodes.idle import IdleReport
from contract.scheduling.nodeinfo import AllocatedPod

SILENT = 900.0
"""Seconds without a write of the agent after which nothing counts as idle; it writes every 5 min."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """A GPUNode's report, when it arrived, and whether it was written then; otherwise its age is unknown."""

    report: IdleReport
    came: float
    fresh: bool = False


class IdleShares:
    """The idle pods of all nodes. Not thread-safe: one owner calls it."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Seen] = {}

    def see(self, node: str, report: IdleReport, now: float, *, listed: bool = False) -> bool:
        """
        A GPUNode is new or changed. True if other pods are idle than before, or since another time. `listed`: it came
        with a list, and so may have been written long ago.
        """
        before = self._nodes.get(node)
        if before is None or before.report.observed != report.observed:
            self._nodes[node] = _Seen(report, now, before is not None and not listed)
        elif before.report != report:
            self._nodes[node] = replace(before, report=report)
        return before is None or before.report.shares != report.shares

    def retain(self, nodes: Collection[str]) -> tuple[str, ...]:
        """All existing GPUNodes. Returns the nodes that were known and no longer have one."""
        removed = tuple(node for node in self._nodes if node not in nodes)
        for node in removed:
            del self._nodes[node]
        return removed

    def drop(self, node: str) -> None:
        """A GPUNode was deleted."""
        self._nodes.pop(node, None)

    def lasted(self, pod: AllocatedPod, now: float) -> float | None:
        """Seconds for which the pod has computed nothing; None if it computes, or if that is unknown."""
        seen = self._nodes.get(pod.node)
        lasted = seen.report.lasted(pod.uid) if seen is not None else None
        if seen is None or lasted is None or now - seen.came > SILENT:
            return None
        return lasted + (now - seen.came if seen.fresh else 0.0)

    def since(self, pod: AllocatedPod) -> int | None:
        """Since when the pod computes nothing, by its node's clock; None if it computes, or if that is unknown."""
        seen = self._nodes.get(pod.node)
        return seen.report.shares.get(pod.uid) if seen is not None else None

    def confirmed(self, pod: AllocatedPod, since: float) -> bool:
        """Whether the agent has reported after that moment that the pod is idle."""
        seen = self._nodes.get(pod.node)
        return seen is not None and seen.fresh and seen.came > since and pod.uid in seen.report.shares

    def listed(self) -> Iterator[tuple[str, str]]:
        """Node and uid of each pod that an agent lists."""
        return ((node, uid) for node, seen in self._nodes.items() for uid in seen.report.shares)
