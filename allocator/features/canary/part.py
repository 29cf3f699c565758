"""
The feature's part of the core: finds the nodes that await a proof, their idle cards, and canaries that block other
pods.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from itertools import islice

from allocator.features.canary.machine import CanaryNode, CanaryPod, CanaryView
from allocator.features.canary.pods import SHARE
from allocator.queue.queue import QueuedPodInfo
from allocator.scheduler.parts import Core
from contract import names
from contract.model import FREE, NodeState
from contract.nodes.proofs import AWAITED
from contract.scheduling import fit
from contract.scheduling.filters import Limits, node_reason
from contract.scheduling.fit import Fit

_MOST_ASKED = 32
"""The number of waiting pods to check, from the head of the queue: some milliseconds under the lock."""
_OURS = f"{names.CANARY_NAMESPACE}/"
_STARTED_AT_ONCE = 4
"""Nodes that await a proof and are checked in one step, the first ones by name: there are few canaries at a time."""


class CanaryPart:
    """The core's data that canaries need. Call it under the lock."""

    def __init__(self, core: Core) -> None:
        self._state = core.state
        self._turn = ""
        """The name of the last checked node, so that each gets its turn."""

    def view(self, pods: Collection[CanaryPod], limits: Limits) -> CanaryView | None:
        """
        The cluster as a step of the machine sees it; None if another replica decides. While the queue must be tried,
        no node awaits a canary, because a pod may be about to get its cards.
        """
        if not self._state.leadership.holds():
            return None
        cache = self._state.cache
        return CanaryView(
            tuple(self._node(cache.snapshot[name]) for name in self._turns()),
            frozenset(self._wanted(pods, limits)),
            frozenset(self._crowded(pods)),
            {name: found.driver for name in cache.snapshot if (found := cache.inventory(name)) is not None},
        )

    def _turns(self) -> list[str]:
        """Some of the nodes that await a proof, in turn."""
        if self._state.trigger.requeued or self._state.trigger.running:
            return []
        awaiting = [name for name in sorted(self._state.cache.snapshot) if self._awaits(name)]
        after = [name for name in awaiting if name > self._turn]
        chosen = (after + [name for name in awaiting if name <= self._turn])[:_STARTED_AT_ONCE]
        self._turn = chosen[-1] if chosen else ""
        return chosen

    def _wanted(self, pods: Collection[CanaryPod], limits: Limits) -> Iterator[str]:
        """
        The nodes with canaries on which a pod that waits would fit without them. Nodes without a canary are left out:
        the queue has been tried there, and what waits does not fit.
        """
        first = islice(self._state.order.in_order(), 4 * _MOST_ASKED) if pods else ()
        waiting = [each for each in first if not each.key.startswith(_OURS) and not each.foreign][:_MOST_ASKED]
        for name in {pod.node for pod in pods}:
            state = self._state.cache.snapshot.get(name)
            if state is not None:
                without = _without(state, {uuid for pod in pods for uuid in self._cards(pod, name)})
                if any(_fits(without, each, limits) for each in waiting):
                    yield name

    def _crowded(self, pods: Collection[CanaryPod]) -> Iterator[str]:
        """The uids of canaries on whose card another pod has a share."""
        for pod in pods:
            used = self._state.cache.ledger.used(pod.node)
            if any(used[uuid].sharers > 1 for uuid in self._cards(pod, pod.node) if uuid in used):
                yield pod.uid

    def _cards(self, pod: CanaryPod, node: str) -> Collection[str]:
        """The cards of the node on which the canary has its share."""
        held = self._state.cache.allocated.get(pod.uid)
        return held.demands.keys() if held is not None and held.node == node else ()

    def _awaits(self, name: str) -> bool:
        found, state = self._state.cache.inventory(name), self._state.cache.snapshot[name]
        open_ = state.ready and not state.cordoned and not state.silent
        return found is not None and found.proof in AWAITED and open_

    def _node(self, state: NodeState) -> CanaryNode:
        used, found = self._state.cache.ledger.used(state.name), self._state.cache.inventory(state.name)
        idle = [
            gpu.uuid
            for gpu in state.gpus
            if gpu.healthy and not gpu.parent and gpu.usable >= 2 * SHARE and gpu.uuid not in used
        ]
        return CanaryNode(state.name, found.driver if found is not None else "", tuple(idle))


def _without(state: NodeState, uuids: Collection[str]) -> NodeState:
    """The node as it is when no pod has a share of these cards."""
    usage = tuple(FREE if gpu.uuid in uuids else usage for gpu, usage in zip(state.gpus, state.usage, strict=True))
    return replace(state, usage=usage)


def _fits(state: NodeState, entry: QueuedPodInfo, limits: Limits) -> bool:
    """Whether a waiting pod would get its GPUs there."""
    if node_reason(state, entry.ask.needs) is not None:
        return False
    return isinstance(fit.fit(state, entry.ask.request, limits, fit.least_free), Fit)
