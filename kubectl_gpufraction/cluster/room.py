"""
Whether a node takes a pod after some of its pods have ended, and on which GPUs, by `contract.scheduling`'s rules.

The limits are those of the options that a GPUNode states, and the defaults. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from contract.model import NO_OVERCOUNT, Compute, NodeState, Overcount, PodRequest
from contract.reasons.nodes import Reason
from contract.scheduling import counting, fit, nodeinfo
from contract.scheduling.demand import Demand, overcount
from contract.scheduling.filters import DEFAULT_LIMITS, node_reason
from contract.scheduling.fit import GpuChoice
from contract.scheduling.needs import PodNeeds, SchedulingRequest
from kubectl_gpufraction.cluster.state import Pod


@dataclass(frozen=True, slots=True)
class RoomRequest:
    """The pod or GPUs that need room. `bare`: GPUs without a pod, so the node need not accept one."""

    request: PodRequest
    needs: PodNeeds
    bare: bool = False

    @property
    def ask(self) -> SchedulingRequest:
        """As a pod to place."""
        return SchedulingRequest(self.request, self.needs)


@dataclass(frozen=True, slots=True)
class ShareHolder:
    """A pod that holds a share. `stays`: why it must not be evicted, or empty."""

    pod: Pod
    uid: str
    needs: PodNeeds
    shares: Mapping[str, Demand]
    budgets: frozenset[str] = frozenset()
    """The PodDisruptionBudgets that count it, as `namespace/name`."""
    stays: str = ""
    resized: Compute | None = None
    """Resources besides GPUs that it takes of the node while it is resized in place; its successor takes `needs`."""

    @property
    def held(self) -> PodNeeds:
        """The resources that it needs of its node."""
        return self.needs if self.resized is None else replace(self.needs, compute=self.resized)

    @property
    def wanted(self) -> RoomRequest:
        """The request of its successor."""
        return RoomRequest(self.pod.request, self.needs)

    @property
    def overcount(self) -> Overcount:
        """The resources that Kubernetes counts for it beyond those that it holds."""
        found = self.pod.allocation
        return NO_OVERCOUNT if found is None else overcount(self.pod.request, found, self.shares.values())

    @property
    def memory(self) -> int:
        """The bytes that it holds on all GPUs."""
        return sum(share.memory for share in self.shares.values())


@dataclass(frozen=True, slots=True)
class NodeWithPods:
    """A node: its state with only the pods without a share, and the pods that hold one."""

    state: NodeState
    holders: tuple[ShareHolder, ...] = ()

    @property
    def name(self) -> str:
        """The node's name."""
        return self.state.name

    def without(self, evicted: Collection[str]) -> NodeState:
        """The node with its holders, except those with these uids."""
        staying = [holder for holder in self.holders if holder.uid not in evicted]
        state = nodeinfo.holding(self.state, ((holder.shares, holder.held) for holder in staying))
        return replace(state, overcount=sum((holder.overcount for holder in staying), NO_OVERCOUNT))


def takes(state: NodeState, wanted: RoomRequest) -> GpuChoice | None:
    """The GPUs for each container, the fullest GPUs that fit first; None if there is no room."""
    if not (state.ready and not state.cordoned if wanted.bare else node_reason(state, wanted.needs) is None):
        return None
    found = counting.shortage(state, wanted.ask) or fit.fit(state, wanted.request, DEFAULT_LIMITS, fit.least_free)
    return None if isinstance(found, Reason) else found.chosen


def booked(state: NodeState, wanted: RoomRequest, chosen: GpuChoice) -> NodeState:
    """The node with this pod on these GPUs."""
    return nodeinfo.booked(state, wanted.ask, fit.allocate(state, wanted.request, chosen))
