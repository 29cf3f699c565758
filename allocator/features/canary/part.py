"""
The feature's part of the core: which nodes await a proof, which of their cards are idle, and where a canary is in the
way.
"""

from __future__ import annotations

from collections.abc import Collection
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

_MOST_ASKED = 64
"""Waiting pods that are asked whether they would fit, the first of the queue: each is compared with few nodes."""
_OURS = f"{names.CANARY_NAMESPACE}/"
_STARTED_AT_ONCE = 16
"""Nodes that await a proof and are looked at in one step, the first ones by name: canaries are few at a time."""


class CanaryPart:
    """What the core knows that canaries need. Under the lock."""

    def __init__(self, core: Core) -> None:
        self._state = core.state
        self._turn = ""
        """The name of the last node that was looked at, so that each has its turn."""

    def view(self, pods: Collection[CanaryPod], limits: Limits) -> CanaryView | None:
        """
        The cluster as a step of the machine sees it; None where another replica decides. While the queue has to be
        tried no node awaits a canary, since a pod may be about to get its cards.
        """
        if not self._state.leadership.holds():
            return None
        settled = not (self._state.trigger.requeued or self._state.trigger.running)
        cache, used = self._state.cache, self._state.cache.ledger.used
        awaiting = [name for name in sorted(cache.snapshot) if settled and self._awaits(name)]
        after = [name for name in awaiting if name > self._turn]
        chosen = (after + [name for name in awaiting if name <= self._turn])[:_STARTED_AT_ONCE]
        self._turn = chosen[-1] if chosen else ""
        nodes = {
            name: cache.snapshot[name] for name in {*chosen, *(pod.node for pod in pods)} if name in cache.snapshot
        }
        waiting = [
            each
            for each in islice(self._state.order.in_order(), 4 * _MOST_ASKED)
            if not each.key.startswith(_OURS) and not each.foreign
        ][:_MOST_ASKED]
        canaries = {pod.uid: pod for pod in pods}
        shares = {uid: pod for uid in canaries if (pod := cache.allocated.get(uid)) is not None}
        crowded = {
            uid
            for uid, held in shares.items()
            for uuid in held.demands
            if used(held.node).get(uuid) is not None and used(held.node)[uuid].sharers > 1
        }
        without = {
            name: self._without(state, {uuid for held in shares.values() if held.node == name for uuid in held.demands})
            for name, state in nodes.items()
        }
        return CanaryView(
            tuple(self._node(nodes[name]) for name in chosen if name in nodes),
            frozenset(name for name, state in without.items() if any(_fits(state, each, limits) for each in waiting)),
            frozenset(crowded),
            {name: found.driver for name in cache.snapshot if (found := cache.inventory(name)) is not None},
        )

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

    def _without(self, state: NodeState, uuids: Collection[str]) -> NodeState:
        usage = tuple(FREE if gpu.uuid in uuids else usage for gpu, usage in zip(state.gpus, state.usage, strict=True))
        return replace(state, usage=usage)


def _fits(state: NodeState, entry: QueuedPodInfo, limits: Limits) -> bool:
    """Whether a pod that waits would get its GPUs there."""
    if node_reason(state, entry.ask.needs) is not None:
        return False
    return isinstance(fit.fit(state, entry.ask.request, limits, fit.least_free), Fit)
