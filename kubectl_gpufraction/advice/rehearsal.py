"""
Pods placed one after another on the cluster as its objects describe it, so that each sees those before it. Pure.

The administrator's limits and scores are unknown here, as in the whole command; the first node with the least free
memory is taken. The number of pods that fit is the same on equal GPUs, whatever the score.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from contract.model import Allocation, NodeState
from contract.reasons import nodes as reasons
from contract.reasons.nodes import Reason, ReasonCount
from contract.scheduling import fit, nodeinfo
from contract.scheduling.demand import demands
from contract.scheduling.filters import node_reason
from kubectl_gpufraction.cluster import room
from kubectl_gpufraction.cluster.room import NO_LIMITS, NodeWithPods, RoomRequest


@dataclass(frozen=True, slots=True)
class RehearsedPlacement:
    """Where a pod would be: the node and the indexes of its GPUs."""

    node: str
    gpus: tuple[int, ...]


class Rehearsal:
    """The cluster's nodes, and the pods that were placed on them in thought."""

    def __init__(self, hosts: Iterable[NodeWithPods]) -> None:
        self._states: dict[str, NodeState] = {host.name: host.without(()) for host in hosts}
        self._touched: set[str] = set()

    def book(self, wanted: RoomRequest, allocation: Allocation) -> bool:
        """
        A pod that the API server would place there; False if pods before it have taken that room. On a node without
        such pods the API server is right, whatever the objects say.
        """
        state = self._states.get(allocation.node)
        if state is None:
            return True  # not in our lists, so nothing of ours is there
        if state.name in self._touched and room.takes(state, wanted) is None:
            return False
        self._touched.add(state.name)
        self._states[state.name] = nodeinfo.holding(state, [(demands(wanted.request, allocation), wanted.needs)])
        return True

    def place(self, wanted: RoomRequest) -> RehearsedPlacement | tuple[ReasonCount, ...]:
        """The next pod like this: its place, or why no node takes it."""
        for state in sorted(self._states.values(), key=_free_memory):
            chosen = room.takes(state, wanted)
            if chosen is not None:
                self._touched.add(state.name)
                self._states[state.name] = room.booked(state, wanted, chosen)
                indexes = {state.gpus[at].index for positions in chosen for at in positions}
                return RehearsedPlacement(state.name, tuple(sorted(indexes)))
        return reasons.tally(_why(state, wanted) for state in self._states.values())


def _free_memory(state: NodeState) -> tuple[int, str]:
    free = sum(gpu.usable - used.memory for gpu, used in zip(state.gpus, state.usage, strict=True))
    return free, state.name


def _why(state: NodeState, wanted: RoomRequest) -> Reason:
    found = node_reason(state, wanted.needs) or fit.fit(state, wanted.request, NO_LIMITS, fit.least_free)
    assert isinstance(found, Reason), "the node does not take the pod"
    return found
