"""
Pods placed one after another on the cluster as its objects describe it, so that each sees those before it. Pure.

The administrator's limits and scores are unknown here, as in the whole command; the first node with the least free
memory is taken. The number of pods that fit is the same on equal GPUs for any score.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from contract.model import Allocation, NodeState
from contract.reasons import nodes as reasons
from contract.reasons.nodes import Reason, ReasonCount
from contract.scheduling import counting, fit, nodeinfo
from contract.scheduling.clusterfilters.objects import NO_RULES
from contract.scheduling.demand import demands
from contract.scheduling.filters import DEFAULT_LIMITS, lasting_reason, node_reason
from contract.scheduling.needs import PodNeeds
from kubectl_gpufraction.cluster import room
from kubectl_gpufraction.cluster.neighbours import NeighbourReader, PendingPod, Surroundings, Unevaluated
from kubectl_gpufraction.cluster.room import NodeWithPods, RoomRequest


@dataclass(frozen=True, slots=True)
class RehearsedPlacement:
    """Where a pod would be: the node and the indexes of its GPUs."""

    node: str
    gpus: tuple[int, ...]


UNRULED = PendingPod(NO_RULES, PodNeeds())
"""A pod to which no rule about other pods or volumes applies."""


class Rehearsal:
    """The cluster's nodes, and the pods that were tentatively placed on them."""

    def __init__(self, hosts: Iterable[NodeWithPods], around: Surroundings | None = None) -> None:
        """`around`: the constraints of other pods and volumes; None if only the manifest's pods count."""
        self._states: dict[str, NodeState] = {host.name: host.without(()) for host in hosts}
        self._touched: set[str] = set()
        self._around = around or Surroundings(NeighbourReader())
        self._there = self._around.there()
        for state in self._states.values():
            self._there.nodes.setdefault(state.name, state)

    def unevaluated(self, pending: PendingPod) -> tuple[Unevaluated, ...]:
        """The filters that concern such pods and are not evaluated here."""
        return self._around.unevaluated(pending)

    def book(self, wanted: RoomRequest, allocation: Allocation, pending: PendingPod = UNRULED) -> bool:
        """
        A pod that the API server would place there; False if pods before it have taken that room, or refuse it. On a
        node without such pods the API server is right, even if the objects disagree.
        """
        state = self._states.get(allocation.node)
        if state is None:
            return True  # not in our lists, so nothing of ours is there
        if self._touched and state.name in self._refused(pending):
            return False
        if state.name in self._touched and room.takes(state, wanted) is None:
            return False
        self._take(nodeinfo.holding(state, [(demands(wanted.request, allocation), wanted.needs)]), pending)
        return True

    def place(self, wanted: RoomRequest, pending: PendingPod = UNRULED) -> RehearsedPlacement | tuple[ReasonCount, ...]:
        """The next pod like this: its place, or why no node takes it."""
        refused = self._refused(pending)
        for state in sorted(self._states.values(), key=_free_memory):
            chosen = room.takes(state, wanted) if state.name not in refused else None
            if chosen is not None:
                self._take(room.booked(state, wanted, chosen), pending)
                indexes = {state.gpus[at].index for positions in chosen for at in positions}
                return RehearsedPlacement(state.name, tuple(sorted(indexes)))
        return reasons.tally(_why(state, wanted, refused) for state in self._states.values())

    def _take(self, state: NodeState, pending: PendingPod) -> None:
        self._touched.add(state.name)
        self._states[state.name] = state
        self._there.add(pending.rules.placed(), state.name)

    def _refused(self, pending: PendingPod) -> Mapping[str, Reason]:
        found = self._around.refused(pending, self._there, tuple(self._states.values()))
        return {each.node: each.reason for each in found}


def _free_memory(state: NodeState) -> tuple[int, str]:
    free = sum(gpu.usable - used.memory for gpu, used in zip(state.gpus, state.usage, strict=True))
    return free, state.name


def _why(state: NodeState, wanted: RoomRequest, refused: Mapping[str, Reason]) -> Reason:
    by_node = lasting_reason(state, wanted.needs) or refused.get(state.name) or node_reason(state, wanted.needs)
    by_node = by_node or counting.shortage(state, wanted.ask)
    found = by_node or fit.fit(state, wanted.request, DEFAULT_LIMITS, fit.least_free)
    assert isinstance(found, Reason), "the node does not accept the pod"
    return found
