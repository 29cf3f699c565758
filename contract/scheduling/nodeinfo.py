"""
A node's state with one more pod, or without some of its pods, for decisions that do not change the ledger.

Pure. `contract.scheduling.demand` has the rule for what a pod takes of a GPU.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from contract.model import NO_OVERCOUNT, Allocation, Compute, ContainerAllocation, Gpu, NodeState, Overcount, Usage
from contract.scheduling.demand import Demand, overcount, per_gpu, shares_of
from contract.scheduling.needs import PodNeeds, SchedulingRequest
from contract.scheduling.nodefilters.resources import minus
from contract.scheduling.nodefilters.resources import plus as plus


@dataclass(frozen=True, slots=True)
class AllocatedPod:
    """A pod that holds a share on `node`."""

    uid: str
    key: str
    """`namespace/name`."""
    node: str
    priority: int
    created: float
    """Seconds since 1970; 0 where it is unknown."""
    demands: Mapping[str, Demand]
    """The amounts that its end releases, by GPU UUID; none if a claim has its share, or other pods use it too."""
    compute: Compute
    """The node's resources that it takes besides GPUs."""
    ending: float | None = None
    """When it was first seen to be terminating, by the injected clock; None if it is not."""
    idle_after: int | None = None
    """The idle seconds after which it consents to eviction, 0 for never; None if its namespace decides."""
    successor: SchedulingRequest | None = None
    """The request of its controller's replacement pod; None if there is no replacement, or the pod must not move."""
    owner: str = ""
    """uid of its controller."""
    overcount: Overcount = NO_OVERCOUNT
    """The amounts that Kubernetes counts for it beyond its holdings."""

    @property
    def worth(self) -> tuple[int, float, str]:
        """The order of eviction: lower priority, then younger. The uid makes it an order without ties."""
        return (self.priority, -self.created, self.uid)


def booked(node: NodeState, ask: SchedulingRequest, containers: Iterable[ContainerAllocation]) -> NodeState:
    """The node with the pod on it, on these GPUs."""
    given = tuple(containers)
    taken = per_gpu(ask.request, shares_of(given))
    more = overcount(ask.as_stored, Allocation("", node.name, given), taken.values())
    state = holding(node, [(taken, ask.needs)])
    if ask.request.alone:
        state = replace(state, usage=starting_on(state.gpus, state.usage, Counter(taken.keys())))
    return replace(state, overcount=state.overcount + more) if more else state


def starting_on(gpus: Iterable[Gpu], usage: Iterable[Usage], starting: Mapping[str, int]) -> tuple[Usage, ...]:
    """The usage, parallel to the GPUs, with this many more pods that start alone, by GPU UUID."""
    return tuple(
        replace(taken, starting=taken.starting + more) if (more := starting.get(gpu.uuid, 0)) else taken
        for gpu, taken in zip(gpus, usage, strict=True)
    )


def holding(node: NodeState, pods: Iterable[tuple[Mapping[str, Demand], PodNeeds]]) -> NodeState:
    """The node with these pods on it: what each takes, by GPU UUID, and what else it needs of the node."""
    usage = {gpu.uuid: taken for gpu, taken in zip(node.gpus, node.usage, strict=True)}
    requested, ports = node.requested, node.host_ports
    for demands, needs in pods:
        for uuid, demand in demands.items():
            if uuid in usage:
                usage[uuid] = demand.added_to(usage[uuid])
        requested, ports = plus(requested, needs.compute), ports | needs.host_ports
    return replace(node, usage=tuple(usage[gpu.uuid] for gpu in node.gpus), requested=requested, host_ports=ports)


def unbooked(node: NodeState, sharers: Iterable[AllocatedPod], removed: Iterable[AllocatedPod]) -> NodeState:
    """The node without the pods `removed`, which are among all its known `sharers`; host ports stay taken."""
    going = {sharer.uid: sharer for sharer in removed}
    staying = [sharer for sharer in sharers if sharer.uid not in going]
    usage = tuple(
        without(gpu, taken, going.values(), staying) for gpu, taken in zip(node.gpus, node.usage, strict=True)
    )
    requested, more = node.requested, node.overcount
    for sharer in going.values():
        requested, more = minus(requested, sharer.compute), more - sharer.overcount
    return replace(node, usage=usage, requested=requested, overcount=more)


def without(gpu: Gpu, taken: Usage, going: Iterable[AllocatedPod], staying: Iterable[AllocatedPod]) -> Usage:
    """
    The usage of a GPU after the pods `going` end and the pods `staying` remain. Which of them start alone is not known
    here, so while any pod remains, as many do as before.
    """
    back = [sharer.demands[gpu.uuid] for sharer in going if gpu.uuid in sharer.demands]
    held_whole = any(gpu.uuid in s.demands and s.demands[gpu.uuid].exclusive for s in staying)
    # A reservation without a pod is not among the sharers; it may hold the whole GPU.
    unknown = not any(demand.exclusive for demand in back)
    return Usage(
        taken.memory - sum(demand.memory for demand in back),
        taken.cores - sum(demand.cores for demand in back),
        taken.sharers - len(back),
        taken.exclusive and (held_whole or unknown),
        taken.burst - sum(demand.burst for demand in back),
        max(0, min(taken.starting, taken.sharers - len(back))),
    )
