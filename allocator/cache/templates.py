"""
The empty node of a declared pool: a virtual node on which the engine places pods.

Before a node of the pool was seen, it is what the administrator declared (`contract.nodes.templates`). Afterwards it is
what such nodes have: learned amounts replace declared ones, because a node with less than was promised serves no pod
and was added for nothing. A single node does not represent its pool, though, because a node's report may be false.
Where several nodes were seen, most of them decide. Where only one or two were, what they have less than half of as
declared stays as declared.

A declared node is known less well: no level of isolation, so no pod that requires one is placed there; every way of
delivery; any amount of resources that nobody declares; and the reserve of the options, but not the driver's own.

Pure. Must not: know which pods wait.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from contract.model import FREE, WITHHELD, Compute, Gpu, NodeState, PoolSharing, Taint
from contract.nodes.capacity import Reserve
from contract.nodes.inventories import sharing_of
from contract.nodes.templates import NodeTemplate
from contract.options import Pool, PoolOptions, VgpuOptions
from contract.scheduling.nodefilters.resources import amount_of

_HOSTNAME = "kubernetes.io/hostname"
_PASSING_TAINTS = (
    "startup-taint.cluster-autoscaler.kubernetes.io/",
    "ignore-taint.cluster-autoscaler.kubernetes.io/",
    "status-taint.cluster-autoscaler.kubernetes.io/",
    "ToBeDeletedByClusterAutoscaler",
    "DeletionCandidateOfClusterAutoscaler",
    "node.kubernetes.io/",
    "node.cloudprovider.kubernetes.io/",
    "karpenter.sh/unregistered",
    "karpenter.sh/disrupted",
)
"""
Prefixes of the taints of a node that starts, is unhealthy or is about to be removed: Kubernetes' own and the
autoscalers'.
"""
_PODS = 110
"""A kubelet's default of `maxPods`."""
_NOT_SHARED = WITHHELD[1]
_FEW, _BELIEVED = 2, 2
"""Too few nodes are not believed to have less than one part in this many of what is declared."""
_ALIKE = 8
"""Amounts count as alike if they differ by at most one part in this many."""
H = TypeVar("H", bound=Hashable)
_Kind = tuple[tuple[str, int, int, bool, bool, int], ...]


def is_known(node: NodeState) -> bool:
    """
    Whether the node says what nodes of its pool have: its agent published GPUs of which one is shared, and its kubelet
    has published how many pods it takes.

    A node whose GPUs are all another system's may be one that was set up wrong: the pool would never be asked again.
    """
    return shares_gpus(node) and node.allocatable.pods > 0


def shares_gpus(node: NodeState) -> bool:
    """Whether the node's agent published GPUs, and not all of them are the vendor's device plugin's."""
    return any(gpu.withheld != _NOT_SHARED for gpu in node.gpus)


def empty_nodes(options: PoolOptions, seen: Iterable[NodeState], default_sharers: int) -> tuple[NodeState, ...]:
    """An empty node of each declared pool of which enough is known, in the document's order; see `empty_node`."""
    by_pool: dict[str, list[NodeState]] = {}
    for node in seen:
        by_pool.setdefault(options.of_node(node.labels)[0], []).append(node)
    found = (empty_node(pool, options.cluster, by_pool.get(pool.name, ()), default_sharers) for pool in options.pools)
    return tuple(node for node in found if node is not None)


def empty_node(pool: Pool, cluster: VgpuOptions, seen: Iterable[NodeState], default_sharers: int) -> NodeState | None:
    """
    An empty node of the pool, under the pool's name; None for a pool without `node`, or where too little is known.

    `cluster`: the options outside of pools. `seen`: nodes of which none is in an earlier pool, without pods but those
    that each node has (`Cache.idle`). `default_sharers`: pods on one GPU where the options do not say.
    """
    if pool.node is None:
        return None
    declared = _declared(pool.node, pool.options.over(cluster))
    alike = _commonest([node for node in seen if is_known(node) and pool.has(node.labels)], declared)
    made = _learned(dict(pool.node.labels), alike, declared) if alike else declared
    if not made.gpus or not any(gpu.usable for gpu in made.gpus):
        return None
    gpus = tuple(replace(gpu, sharing=_sharing(gpu.sharing, default_sharers)) for gpu in _named(pool.name, made.gpus))
    return replace(made, name=pool.name, gpus=gpus, usage=(FREE,) * len(gpus), ready=True, silent=False)


def _declared(node: NodeTemplate, options: VgpuOptions) -> NodeState:
    usable = Reserve(options.reserve or 0, options.reserve_percent or 0).usable(node.gpu_memory)
    sharing = sharing_of(dict(options.of_nodes()))
    return NodeState(
        "",
        tuple(Gpu(f"{i}", i, node.model, node.gpu_memory, usable, sharing=sharing) for i in range(node.gpus)),
        labels=dict(node.labels),
        taints=_lasting(node.taints),
        allocatable=Compute(node.cpu, node.memory, node.storage, _PODS, None),
    )


def _commonest(nodes: list[NodeState], declared: NodeState) -> list[NodeState]:
    """
    The nodes of the most frequent kind; among equally frequent kinds, the one whose memory is nearest to what is
    declared, or the one with more if nothing is: a broken GPU, or a lying node, must not close a pool.

    Kinds differ by their GPUs. One node whose GPU is broken, or of another size, does not represent the pool; nor do a
    few that have less than half of the declared memory.
    """
    numbers, promised = Counter(map(_kind, nodes)), sum(gpu.usable for gpu in declared.gpus)
    if not numbers:
        return []
    wanted = promised or max(map(_memory, numbers))
    chosen = min(numbers, key=lambda kind: (-numbers[kind], abs(_memory(kind) - wanted), kind))
    if numbers[chosen] <= _FEW and _memory(chosen) * _BELIEVED < promised:
        return []
    return sorted((node for node in nodes if _kind(node) == chosen), key=lambda node: node.name)


def _memory(kind: _Kind) -> int:
    return sum(gpu[2] for gpu in kind)


def _kind(node: NodeState) -> _Kind:
    """The key of a kind of nodes: model, memory and usable memory of each GPU, and its owner."""
    return tuple(
        (gpu.model, gpu.memory, gpu.usable, gpu.withheld == _NOT_SHARED, bool(gpu.parent), gpu.numa)
        for gpu in node.gpus
    )


def _learned(selected_by: dict[str, str], alike: list[NodeState], declared: NodeState) -> NodeState:
    """The common properties of most nodes of one kind, without those of a single node or of the moment."""
    labels = _of_most([item for item in node.labels.items() if not _of_one(*item, node)] for node in alike)
    return NodeState(
        "",
        tuple(_well(gpu) for gpu in alike[0].gpus),
        labels={**dict(labels), **selected_by},
        taints=tuple(_of_most(_lasting(node.taints) for node in alike)),
        allocatable=_room(alike, declared.allocatable),
        delivery=_commonest_of([node.delivery for node in alike]),
        isolation=_commonest_of([node.isolation for node in alike]),
        host_ports=frozenset(_of_most(node.host_ports for node in alike)),
    )


def _of_most(sets: Iterable[Iterable[H]]) -> list[H]:
    """The items of more than half of these, in the order in which they are first found."""
    each = [dict.fromkeys(items) for items in sets]
    return [
        item for item, number in Counter(item for items in each for item in items).items() if 2 * number > len(each)
    ]


def _commonest_of(found: list[H]) -> H:
    return Counter(found).most_common(1)[0][0]


def _of_one(key: str, text: str, node: NodeState) -> bool:
    """Whether a label identifies the node, like the host name."""
    return key == _HOSTNAME or text in (node.name, node.name.partition(".")[0])


def _lasting(taints: Iterable[Taint]) -> tuple[Taint, ...]:
    return tuple(taint for taint in taints if not taint.key.startswith(_PASSING_TAINTS))


def _room(alike: list[NodeState], declared: Compute) -> Compute:
    """The amounts that the nodes leave for pods."""
    left = [(node.allocatable, node.requested) for node in alike]
    return Compute(
        _least([has.cpu - taken.cpu for has, taken in left], declared.cpu),
        _least([has.memory - taken.memory for has, taken in left], declared.memory),
        _least([has.storage - taken.storage for has, taken in left], declared.storage),
        _least([has.pods - taken.pods for has, taken in left], 0),
        tuple(
            (name, _least([amount_of(has.scalars, name) - amount_of(taken.scalars, name) for has, taken in left], 0))
            for name in sorted(_of_most([name for name, _ in has.scalars or ()] for has, _ in left))
        ),
    )


def _least(amounts: list[int], declared: int) -> int:
    """
    The least of these amounts, one of each node, except for those far below the middle one.

    `declared`: what the middle one of few amounts must come near; else it is the answer itself. 0: nothing is declared.
    """
    middle = sorted(amounts)[len(amounts) // 2]
    if len(amounts) <= _FEW and middle * _BELIEVED < declared:
        return declared
    return max(0, min(amount for amount in amounts if amount >= middle - middle // _ALIKE))


def _well(gpu: Gpu) -> Gpu:
    """The GPU as it would be on a new node: healthy and not cordoned. One that the vendor's plugin has stays with
    it."""
    if gpu.healthy or gpu.withheld == _NOT_SHARED:
        return gpu
    return replace(gpu, healthy=True, reason="", withheld="")


def _named(pool: str, gpus: tuple[Gpu, ...]) -> Iterable[Gpu]:
    """The GPUs under UUIDs that no real GPU has: no pod can wish for one of a node that does not exist."""
    made: Mapping[str, str] = {gpu.uuid: f"{pool}-gpu-{i}" for i, gpu in enumerate(gpus)}
    for gpu in gpus:
        links = tuple((made[uuid], path) for uuid, path in gpu.links if uuid in made)
        parent = made.get(gpu.parent, gpu.parent and f"{pool}-gpu")
        yield replace(gpu, uuid=made[gpu.uuid], parent=parent, links=links, pci="")


def _sharing(sharing: PoolSharing, default_sharers: int) -> PoolSharing:
    return sharing if sharing.max_sharers else replace(sharing, max_sharers=default_sharers)
