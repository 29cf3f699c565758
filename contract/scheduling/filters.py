"""
Filter: whether a node can take a pod, and which of its GPUs can.

Pure functions of frozen values. A "no" is a `Reason` with figures. The rules for nodes repeat kube-scheduler's, because
kube-scheduler never sees a pod that is pinned by nodeName.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from contract.isolation import ISOLATION, LIMITING
from contract.model import WHOLE, FractionRequest, Gpu, NodeState, Taint, Usage
from contract.reasons.nodes import Code, Reason, of_withheld
from contract.reslicing import reslices
from contract.scheduling import needs as scheduling
from contract.scheduling.demand import Demand
from contract.scheduling.needs import PodNeeds
from contract.scheduling.nodefilters import resources
from contract.scheduling.selecting import Selects, is_selected, nothing_selected


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits for one GPU where the options of its node's pool (`Gpu.sharing`) have none."""

    max_sharers: int = 48
    """Pods on one GPU; 48 is the least client limit of NVIDIA MPS on GPUs since Volta."""
    memory_factor: float = 1.0
    """Oversubscription: how many times its usable memory a GPU may promise."""
    selects: Selects = field(default=nothing_selected, compare=False, metadata={"stored": False})
    """Evaluates the selectors of claims, which needs a CEL library. It does not count for the equality of limits."""

    def capacity(self, gpu: Gpu) -> int:
        """Bytes that the GPU may promise in all."""
        if gpu.sharing.memory_factor:
            return gpu.sharing.promised(gpu.usable)
        return gpu.usable if self.memory_factor == 1.0 else int(gpu.usable * self.memory_factor)

    def sharers(self, gpu: Gpu) -> int:
        """Pods that the GPU may have in all."""
        return gpu.sharing.max_sharers or self.max_sharers

    def in_all(self, gpu: Gpu) -> int:
        """
        Bytes that the memory limits of the GPU's pods may add up to for another pod that bursts; `UNBOUNDED` without an
        option about it. A pod that does not burst is never refused for it.
        """
        ratio = gpu.sharing.limit_ratio
        return max(self.capacity(gpu), int(gpu.usable * ratio)) if ratio else UNBOUNDED


ONE_FOLD = 1000
"""Thousandths of a whole, in which factors of memory limits are counted."""
UNBOUNDED = 1 << 62
"""More bytes than the limits of any number of pods add up to, within 64 bits with any of them added."""
DEFAULT_LIMITS = Limits()

UNSCHEDULABLE = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")


def node_reason(node: NodeState, needs: PodNeeds) -> Reason | None:
    """Why the node, apart from its GPUs, cannot take the pod; None if it can. The reason to cure first comes first."""
    return lasting_reason(node, needs) or compute_reason(node, needs)


def lasting_reason(node: NodeState, needs: PodNeeds) -> Reason | None:
    """The part of `node_reason` that other pods do not change, except by their host ports."""
    if not node.gpus:
        return Reason(Code.NO_GPUS)
    if needs.node_name and needs.node_name != node.name:
        return Reason(Code.NODE_NAME)
    for code, serves in WAYS:
        if not serves(node, needs):
            return Reason(code)
    closed = _closed(node, needs)
    if closed is not None:
        return Reason(closed)
    if node.taints:
        taint = scheduling.untolerated(node, needs.tolerations)
        if taint is not None:
            return Reason(Code.TAINT, what=f"{taint.key}={taint.value}:{taint.effect}")
    if (needs.node_selector or needs.affinity is not None) and not scheduling.selects(needs, node):
        return Reason(Code.SELECTOR)
    if needs.host_ports:
        conflict = scheduling.port_conflict(needs, node)
        if conflict is not None:
            return Reason(Code.PORTS, what=f"{conflict[2]}/{conflict[1]}")
    return None


def _closed(node: NodeState, needs: PodNeeds) -> Code | None:
    """Why the node takes no new pods at all; None if it takes pods."""
    if node.cordoned and not any(t.tolerates(UNSCHEDULABLE) for t in needs.tolerations):
        return Code.CORDONED
    if not node.ready:
        return Code.NOT_READY
    if node.silent:
        return Code.AGENT_SILENT
    return Code.RESLICING if reslices(node.labels) else None


def delivers(node: NodeState, needs: PodNeeds) -> bool:
    """Whether the node's GPUs reach the pod's containers; True where that is unknown."""
    if node.delivery is None:
        return True
    if node.delivery.dra and not needs.claim:
        return False
    return needs.runtime_class in node.delivery.classes and not (needs.several and node.delivery.single)


def isolates(node: NodeState, needs: PodNeeds) -> bool:
    """Whether the node enforces the pod's level of isolation or a stronger one; no node enforces an unknown level."""
    if not needs.isolation:
        return True
    enough = ISOLATION[: ISOLATION.index(needs.isolation) + 1] if needs.isolation in ISOLATION else ()
    return any(level in enough for level in node.isolation)


def holds_limits(node: NodeState, needs: PodNeeds) -> bool:
    """Whether the node keeps the pod's containers at their memory limits, where those are above the requests."""
    return not needs.bursts or any(level in LIMITING for level in node.isolation)


def has_features(node: NodeState, needs: PodNeeds) -> bool:
    """Whether the node declares the features that the pod needs: kube-scheduler's NodeDeclaredFeatures."""
    return not needs.features or node.features is None or needs.features <= node.features


WAYS: tuple[tuple[Code, Callable[[NodeState, PodNeeds], bool]], ...] = (
    (Code.DELIVERY, delivers),
    (Code.ISOLATION, isolates),
    (Code.LIMIT_NOT_HELD, holds_limits),
    (Code.FEATURES, has_features),
)
"""The requirements for a node's delivery of GPUs, its limiter and its features, in the order of the checks."""


def largest_limit(gpu: Gpu) -> int:
    """The largest memory limit above a request that a GPU can hold; 0 on a slice, on which no limiter works."""
    return 0 if gpu.parent else gpu.usable


def limit_factor(gpu: Gpu) -> int:
    """
    How many thousandths of its own request a container's memory limit may be: the option `memoryLimitRatio`. Without
    the option nobody may have more than was requested.
    """
    return max(ONE_FOLD, round(gpu.sharing.limit_ratio * ONE_FOLD))


def raised(amount: int, factor: int) -> int:
    """An amount of a request times `limit_factor`, rounded down, within 64 bits."""
    return amount // ONE_FOLD * factor + amount % ONE_FOLD * factor // ONE_FOLD


def allowed_limit(gpu: Gpu, fraction: FractionRequest) -> int:
    """Bytes of the largest memory limit that the container may have on the GPU."""
    most = raised(fraction.memory or fraction.percent, limit_factor(gpu))
    return min(most if fraction.memory else gpu.usable * most // WHOLE, largest_limit(gpu))


def compute_reason(node: NodeState, needs: PodNeeds) -> Reason | None:
    """The node's shortage of CPU, memory, ephemeral storage, pod slots or other resources."""
    return resources.shortage(node, needs.compute)


def gpu_reason(gpu: Gpu, usage: Usage, fraction: FractionRequest, limits: Limits) -> Reason | None:
    """
    Why one more pod cannot take this share of this GPU; None if it can.

    A GPU whose cores are all promised takes no pod without a request for cores, since nothing would keep that pod from
    using the cores of others.
    """
    if not gpu.healthy:
        return Reason(of_withheld(gpu))
    unwished = _unwished(gpu, fraction, limits)
    if unwished is not None:
        return Reason(unwished)
    wanted = fraction.memory_on(gpu.usable)
    limit = wanted + fraction.burst_on(gpu.usable)
    if limit > wanted and limit > allowed_limit(gpu, fraction):
        return Reason(Code.LIMIT_TOO_LARGE, limit, allowed_limit(gpu, fraction))
    if usage.exclusive:
        return Reason(Code.EXCLUSIVE)
    if fraction.exclusive and usage.sharers:
        return Reason(Code.BUSY)
    if usage.sharers >= limits.sharers(gpu):
        return Reason(Code.SHARERS, limits.sharers(gpu), 0)
    free = limits.capacity(gpu) - usage.memory
    if wanted > free:
        return Reason(Code.MEMORY, wanted, max(0, free))
    left = limits.in_all(gpu) - usage.memory - usage.burst
    if limit > wanted and limit > left:
        return Reason(Code.LIMITS_IN_ALL, limit, max(0, left))
    cores = fraction.cores or 1
    if usage.cores + cores > WHOLE:
        return Reason(Code.CORES, cores, max(0, WHOLE - usage.cores))
    if fraction.alone and usage.starting:
        return Reason(Code.NEIGHBOUR_STARTING)
    return None


def _unwished(gpu: Gpu, fraction: FractionRequest, limits: Limits) -> Code | None:
    """Why the container does not accept the GPU, even if it were free."""
    wishes = fraction.wishes
    if (wishes.use_uuids and gpu.uuid not in wishes.use_uuids) or gpu.uuid in wishes.avoid_uuids:
        return Code.UUID
    if wishes_for_kind(fraction) and not kind_accepted(gpu.model, gpu.memory, fraction):
        return Code.MODEL
    return Code.GPU_SELECTOR if wishes.selects and not is_selected(gpu, wishes, limits.selects) else None


def shortage(gpu: Gpu, usage: Usage, demand: Demand, limits: Limits) -> tuple[int, int, int, int]:
    """
    What must be released on the GPU before the demand fits, by the rules of `gpu_reason`: bytes, percent of cores,
    pods, and bytes of memory limits. A figure <= 0 needs no release. A pod that holds the whole GPU is not considered.
    """
    return (
        usage.memory + demand.memory - limits.capacity(gpu),
        usage.cores + (demand.cores or 1) - WHOLE,
        usage.sharers if demand.exclusive else usage.sharers + 1 - limits.sharers(gpu),
        usage.memory + usage.burst + demand.memory + demand.burst - limits.in_all(gpu) if demand.burst else 0,
    )


def free(gpu: Gpu, usage: Usage, limits: Limits) -> tuple[int, int]:
    """Bytes and percent of cores of the GPU that can still be allocated."""
    if usage.exclusive or not gpu.healthy:
        return 0, 0
    return max(0, limits.capacity(gpu) - usage.memory), max(0, WHOLE - usage.cores)


def overcommitment(gpu: Gpu, usage: Usage, limits: Limits) -> tuple[Reason, ...]:
    """The amounts that exceed the GPU's limits, as (allocated, limit). `EXCLUSIVE`: a whole-GPU pod is not alone."""
    if usage.memory <= limits.capacity(gpu) and usage.cores <= WHOLE and usage.sharers <= limits.sharers(gpu):
        return (Reason(Code.EXCLUSIVE, usage.sharers, 1),) if usage.exclusive and usage.sharers > 1 else ()
    found = (
        (Code.MEMORY, usage.memory, limits.capacity(gpu)),
        (Code.CORES, usage.cores, WHOLE),
        (Code.SHARERS, usage.sharers, limits.sharers(gpu)),
        (Code.EXCLUSIVE, usage.sharers if usage.exclusive else 0, 1),
    )
    return tuple(Reason(code, booked, most) for code, booked, most in found if booked > most)


def wishes_for_kind(fraction: FractionRequest) -> bool:
    """Whether the wishes depend on the kind of GPU."""
    wishes = fraction.wishes
    return bool(wishes.use_models or wishes.avoid_models or wishes.least_memory)


def kind_accepted(model: str, memory: int, fraction: FractionRequest) -> bool:
    """
    Whether the wishes accept a GPU of this model with this much memory in all.

    The model must contain one of the wanted words, and none of those to avoid, whatever their case.
    """
    lowered = model.lower()
    wishes = fraction.wishes
    if memory < wishes.least_memory:
        return False
    if wishes.use_models and not any(word.lower() in lowered for word in wishes.use_models):
        return False
    return not any(word.lower() in lowered for word in wishes.avoid_models)
