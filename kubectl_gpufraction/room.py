"""
Whether a node takes a pod once some of its pods are gone, and on which GPUs: the allocator's rules, on values.

The administrator's limits on sharers and oversubscription are not on any object, so they are left out, as everywhere in
this command. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations, islice

from contract.model import (
    FREE,
    ISOLATION,
    WHOLE,
    Allocation,
    Compute,
    ContainerAllocation,
    FractionRequest,
    Gpu,
    GpuShare,
    NodeState,
    PodRequest,
    Taint,
    Usage,
)
from contract.scheduling import needs as scheduling
from contract.scheduling.needs import PodNeeds
from kubectl_gpufraction.state import ListedShare, Pod, taken_of
from kubectl_gpufraction.views import accepts

_UNSCHEDULABLE = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")
_MOST_CHOICES = 2_000
Chosen = tuple[tuple[int, ...], ...]
"""Per container the positions of its GPUs on the node."""


@dataclass(frozen=True, slots=True)
class RoomRequest:
    """What is to find room. `bare`: GPUs as such, whichever pods the node would take."""

    request: PodRequest
    needs: PodNeeds
    bare: bool = False


@dataclass(frozen=True, slots=True)
class ShareHolder:
    """A pod that holds a share. `stays` is why it must not be evicted, empty if it may be."""

    pod: Pod
    uid: str
    needs: PodNeeds
    shares: Mapping[str, ListedShare]
    budgets: frozenset[str] = frozenset()
    """The PodDisruptionBudgets that count it, as `namespace/name`."""
    stays: str = ""

    @property
    def wanted(self) -> RoomRequest:
        """What it will ask for when it is made again."""
        return RoomRequest(self.pod.request, self.needs)

    @property
    def memory(self) -> int:
        """Bytes that it holds in all."""
        return sum(share.memory for share in self.shares.values())


@dataclass(frozen=True, slots=True)
class NodeWithPods:
    """A node: `state` with what pods without a share take of it, and the pods that hold one."""

    state: NodeState
    holders: tuple[ShareHolder, ...] = ()

    @property
    def name(self) -> str:
        """The node's name."""
        return self.state.name

    def without(self, gone: Collection[str]) -> NodeState:
        """The node with all its holders but those of these uids."""
        held: dict[str, Usage] = {}
        cpu = memory = storage = count = 0
        ports = self.state.host_ports
        for holder in self.holders:
            if holder.uid in gone:
                continue
            for uuid, share in holder.shares.items():
                held[uuid] = _plus(held.get(uuid, FREE), share)
            compute = holder.needs.compute
            cpu, memory = cpu + compute.cpu, memory + compute.memory
            storage, count = storage + compute.storage, count + compute.pods
            ports = ports | holder.needs.host_ports
        return replace(
            self.state,
            usage=tuple(held.get(gpu.uuid, FREE) for gpu in self.state.gpus),
            requested=_sum(self.state.requested, Compute(cpu, memory, storage, count)),
            host_ports=ports,
        )


def added(state: NodeState, shares: Mapping[str, ListedShare], needs: PodNeeds) -> NodeState:
    """The node with one pod more."""
    usage = state.usage or (FREE,) * len(state.gpus)
    return replace(
        state,
        usage=tuple(_plus(used, shares.get(gpu.uuid)) for gpu, used in zip(state.gpus, usage, strict=True)),
        requested=_sum(state.requested, needs.compute),
        host_ports=state.host_ports | needs.host_ports,
    )


def _sum(one: Compute, other: Compute) -> Compute:
    return Compute(one.cpu + other.cpu, one.memory + other.memory, one.storage + other.storage, one.pods + other.pods)


def _plus(used: Usage, share: ListedShare | None) -> Usage:
    if share is None:
        return used
    return Usage(
        used.memory + share.memory, used.cores + share.cores, used.sharers + 1, used.exclusive or share.exclusive
    )


def takes(state: NodeState, wanted: RoomRequest) -> Chosen | None:
    """The GPUs for each container, the fullest that do first; None if there is no room."""
    if not (_open(state) if wanted.bare else _stands(state, wanted.needs)):
        return None
    return next(islice(_fitting(state, wanted.request), 1), None)


def _open(state: NodeState) -> bool:
    return state.ready and not state.cordoned


def stands_for_good(state: NodeState, needs: PodNeeds) -> bool:
    """Whether the node takes the pod as far as pods that come and go do not change it."""
    if needs.node_name not in ("", state.name) or not state.ready:
        return False
    if state.delivery is not None and needs.runtime_class not in state.delivery.classes:
        return False
    if needs.isolation:
        enough = ISOLATION[: ISOLATION.index(needs.isolation) + 1] if needs.isolation in ISOLATION else ()
        if not any(level in enough for level in state.isolation):
            return False
    if state.cordoned and not any(each.tolerates(_UNSCHEDULABLE) for each in needs.tolerations):
        return False
    return scheduling.untolerated(state, needs.tolerations) is None and scheduling.selects(needs, state)


def _stands(state: NodeState, needs: PodNeeds) -> bool:
    has, taken, more = state.allocatable, state.requested, needs.compute
    return (
        stands_for_good(state, needs)
        and scheduling.port_conflict(needs, state) is None
        and (not more.cpu or taken.cpu + more.cpu <= has.cpu)
        and (not more.memory or taken.memory + more.memory <= has.memory)
        and (not more.storage or taken.storage + more.storage <= has.storage)
        and taken.pods + more.pods <= has.pods
    )


def _fitting(state: NodeState, request: PodRequest) -> Iterator[Chosen]:
    """Every choice of GPUs that bears the pod, of the first so many."""
    usage = state.usage or (FREE,) * len(state.gpus)
    order = sorted(range(len(state.gpus)), key=lambda at: (state.gpus[at].usable - usage[at].memory, at))
    for chosen in islice(_choices(state, usage, request, order), _MOST_CHOICES):
        demands = demands_of(state.gpus, request, chosen)
        if all(
            bears(gpu, used, demands[gpu.uuid])
            for gpu, used in zip(state.gpus, usage, strict=True)
            if gpu.uuid in demands
        ):
            yield chosen


def _choices(state: NodeState, usage: tuple[Usage, ...], request: PodRequest, order: Iterable[int]) -> Iterator[Chosen]:
    able = [
        [
            at
            for at in order
            if accepts(state.gpus[at], each) and bears(state.gpus[at], usage[at], alone(state, at, each))
        ]
        for each in request.containers
    ]

    def chosen(upto: int) -> Iterator[Chosen]:
        if upto == 0:
            yield ()
            return
        for before in chosen(upto - 1):
            if request.same_gpus and before:
                yield (*before, before[0])
                continue
            used = {at for positions in before for at in positions}
            preferred = [at for at in able[upto - 1] if at in used] + [at for at in able[upto - 1] if at not in used]
            for more in combinations(preferred, request.containers[upto - 1].count):
                yield (*before, more)

    return chosen(len(able))


def alone(state: NodeState, at: int, fraction: FractionRequest) -> ListedShare:
    """What the container takes of this GPU."""
    return ListedShare(fraction.memory_on(state.gpus[at].usable), fraction.cores, fraction.exclusive)


def demands_of(gpus: tuple[Gpu, ...], request: PodRequest, chosen: Chosen) -> Mapping[str, ListedShare]:
    """What a pod takes, by GPU UUID, given where its containers are."""
    given = tuple(
        ContainerAllocation(
            fraction.container,
            tuple(
                GpuShare(
                    gpus[at].uuid, gpus[at].index, fraction.memory_on(gpus[at].usable), fraction.cores, gpus[at].memory
                )
                for at in positions
            ),
        )
        for fraction, positions in zip(request.containers, chosen, strict=True)
    )
    return taken_of(request, Allocation("", "", given))


def bears(gpu: Gpu, used: Usage, share: ListedShare) -> bool:
    """Whether the GPU takes this share beside what is on it."""
    return (
        gpu.healthy
        and not used.exclusive
        and not (share.exclusive and used.sharers)
        and used.memory + share.memory <= gpu.usable
        and used.cores + max(share.cores, 1) <= WHOLE
    )
