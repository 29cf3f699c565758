"""
Decides when to create a canary, what its end means, and when to remove it in favour of other pods.

    due ──an idle card, wanted by nobody──▶ running ──exit 0──▶ held      ──▶ annotation, removed
                                               │  ├──exit 3──▶ exceeded   ──▶ annotation, removed
                                               │  └──any other end────────▶ no verdict, removed; the next one later
                                               └──a pod waits that would fit there, or its card
                                                  has another share───────▶ removed at once

Each step reads the existing canaries from the API server, so a new leader knows those of the previous one. Only the
time of a node's next attempt is in memory. Pure: time is passed in.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from contract.backoff import backoff
from contract.nodes.proofs import Proof

AT_ONCE = 4
"""Canaries of a cluster at a time."""
LONGEST = 180.0
"""Seconds that a canary has from its creation, including the pull of its image."""
_PAUSE, _LONGEST_PAUSE = 60.0, 3600.0
"""Seconds until the next attempt on a node after a canary without a verdict; doubled each time."""
_AFTER_FAILURE = 900.0
"""Seconds until the next attempt on a node whose canary exceeded its share."""
_AFTER_PROOF = 60.0
"""Seconds until the next attempt on a node after a proof. Its agent has read the proof by then."""


@dataclass(frozen=True, slots=True)
class CanaryNode:
    """A node whose agent awaits a proof. `idle`: UUIDs of healthy cards without shares."""

    name: str
    driver: str
    idle: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CanaryPod:
    """
    A canary as the API server has it. `node`: for which it was made; `created`: seconds since 1970. `ended`: whether
    its program has. `held`: whether it was refused what exceeded its share; None without a verdict.
    """

    name: str
    uid: str
    node: str
    created: float
    ended: bool = False
    held: bool | None = None
    ending: bool = False


@dataclass(frozen=True, slots=True)
class CanaryView:
    """
    The cluster as a step sees it. `wanted`: nodes on which a pod that waits would fit if there were no canary.
    `crowded`: uids of canaries on whose card another pod has a share. `drivers`: the driver's version of every node
    that has an agent.
    """

    awaiting: tuple[CanaryNode, ...] = ()
    wanted: frozenset[str] = frozenset()
    crowded: frozenset[str] = frozenset()
    drivers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StartCanary:
    """Create a canary on a card of a node."""

    node: str
    uuid: str


@dataclass(frozen=True, slots=True)
class ConcludeCanary:
    """Write what a canary found on its node's GPUNode, and remove it."""

    pod: CanaryPod
    proof: Proof


@dataclass(frozen=True, slots=True)
class RemoveCanary:
    """Remove a canary. `why`: `no-verdict`, `gave-way` or `too-long`."""

    pod: CanaryPod
    why: str


CanaryAction: TypeAlias = StartCanary | ConcludeCanary | RemoveCanary


class Canaries:
    """One owner calls it."""

    def __init__(self) -> None:
        self._next: dict[str, float] = {}
        """The time of the next attempt on a node, by its name."""
        self._tries: dict[str, int] = {}
        """Canaries in a row without a verdict, by node."""

    def step(self, now: float, view: CanaryView, pods: Collection[CanaryPod]) -> list[CanaryAction]:
        """The next actions for all existing canaries. `now`: seconds since 1970."""
        actions = [action for pod in pods if not pod.ending and (action := self._of(pod, view, now)) is not None]
        self._forget(view)
        return actions + self._started(now, view, pods)

    def _of(self, pod: CanaryPod, view: CanaryView, now: float) -> CanaryAction | None:
        driver = view.drivers.get(pod.node, "")
        if pod.ended and pod.held is not None and driver:
            self._tries.pop(pod.node, None)
            self._next[pod.node] = now + (_AFTER_PROOF if pod.held else _AFTER_FAILURE)
            return ConcludeCanary(pod, Proof(pod.held, int(pod.created), driver))
        if pod.ended:
            return self._failed(pod, "no-verdict", now)
        if pod.node in view.wanted or pod.uid in view.crowded:
            self._next[pod.node] = now + _PAUSE
            return RemoveCanary(pod, "gave-way")
        if abs(now - pod.created) > LONGEST:
            return self._failed(pod, "too-long", now)
        return None

    def _failed(self, pod: CanaryPod, why: str, now: float) -> RemoveCanary:
        tries = self._tries[pod.node] = self._tries.get(pod.node, 0) + 1
        self._next[pod.node] = now + backoff(tries, _PAUSE, _LONGEST_PAUSE)
        return RemoveCanary(pod, why)

    def _started(self, now: float, view: CanaryView, pods: Collection[CanaryPod]) -> list[CanaryAction]:
        """Start canaries on nodes without one, beginning with the nodes that have waited longest."""
        busy = {pod.node for pod in pods}
        free = [each for each in view.awaiting if each.idle and each.name not in busy | view.wanted]
        due = [each for each in free if self._is_due(each.name, now)]
        due.sort(key=lambda each: (self._next.get(each.name, 0.0), each.name))
        room = max(AT_ONCE - len(pods), 0)
        for each in due[:room]:
            self._next[each.name] = now + _PAUSE  # where its creation fails
        return [StartCanary(each.name, each.idle[0]) for each in due[:room]]

    def _is_due(self, node: str, now: float) -> bool:
        # A clock that was set back must not stop canaries permanently.
        return not 0 < self._next.get(node, 0.0) - now <= _LONGEST_PAUSE

    def _forget(self, view: CanaryView) -> None:
        for kept in (self._next, self._tries):
            for node in kept.keys() - view.drivers.keys():
                del kept[node]
