"""
The cluster's GPUs and pods as the objects describe them: JSON lists in, frozen values out.

The allocator's rules apply: a request counts only if it agrees with the accounting resources, an allocation only if it
gives what was requested. Texts are made fit to be shown when they are read, and a partly unreadable object counts as
absent, so that it does not hide the rows of the others. Must not: call the API.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, TypeVar

from contract import names, pods
from contract.encoding import codec, moments
from contract.encoding.plain import MESSAGE, NAME, plain
from contract.encoding.reading import Malformed
from contract.model import WHOLE, Allocation, Gpu, GpuShare, Inventory, PodRequest
from contract.nodes import attributes
from contract.nodes.excluded import KeptOut
from contract.nodes.heartbeat import shown_silent_after
from contract.nodes.idle import idle_from_object
from contract.nodes.inventories import inventory_from_object
from contract.reasons.pods import PodEventReason, PodReason
from contract.scheduling import fairness
from contract.scheduling.demand import Demand, demands, of_claim
from contract.scheduling.fairness import NOTHING, Held, QueuePlace, Shares
from contract.scheduling.filters import DEFAULT_LIMITS
from contract.scheduling.needs import queue_order
from kubectl_gpufraction.cluster.timelimits import NOBODY, Creator, creator_of
from kubectl_gpufraction.cluster.unserved import UnservedPod, asks_in_vain, unserved_pod

JSON = dict[str, Any]
T = TypeVar("T")


TERMINATING = "Terminating"
"""The code of a pod that was deleted while it waited."""
MISSING = "Missing"
"""The health of a GPU with shares that no agent reports any more."""
_MISSING = "its node's agent no longer reports it"
_MOST_MISSING = 64
"""GPUs of one node that are listed as missing."""
_DELETED = "it was deleted while it waited, so it gets no share; a finalizer keeps it"


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod with a request for a share. `allocation`: None while it waits."""

    namespace: str
    name: str
    node: str
    phase: str
    created: float
    """Seconds since 1970; 0 where it is unknown."""
    priority: int
    request: PodRequest
    allocation: Allocation | None
    code: str = ""
    """The reason of its condition, in one word, and the sentence."""
    reason: str = ""
    since: str = ""
    """Since when it waits for that reason, RFC 3339."""
    unbound: str = ""
    """Why kube-scheduler has not bound it although it has its share, or empty."""
    uid: str = ""
    creator: Creator = NOBODY
    deleted: bool = False
    """It was deleted while it waited, and a finalizer keeps it: it is not in the queue."""

    @property
    def waits(self) -> bool:
        """Whether it is in the queue."""
        return self.allocation is None and not self.deleted

    @property
    def status(self) -> str:
        """Its state, in one word."""
        return self.phase if self.allocation is not None else TERMINATING if self.deleted else "Waiting"

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"

    @property
    def order(self) -> tuple[int, float]:
        """
        Its sort key in the queue, before `own_order`. The order of pods created in the same second is known to the
        allocator only.
        """
        return queue_order(self.priority, self.created)

    @property
    def place(self) -> QueuePlace:
        """The input of the queue's order."""
        return QueuePlace(self.priority, self.namespace, self.created, self.request.priority > 0)

    @property
    def competes(self) -> bool:
        """Whether it waits for room on GPUs: not for a claim, and not for another system's gate."""
        return self.waits and not self.request.claim and self.code != PodReason.FOREIGN_GATE

    def shares(self) -> Mapping[str, Demand]:
        """Its usage by GPU UUID. Init containers run one after the other, so their largest share counts."""
        return {} if self.allocation is None else demands(self.request, self.allocation)


@dataclass(frozen=True, slots=True)
class ListedClaim:
    """An ElasticGPUClaim with a share, used by pods or not. `share`: the name of its ElasticGPU."""

    namespace: str
    name: str
    share: str
    allocation: Allocation

    @property
    def key(self) -> str:
        """`claim/namespace/name`, which differs from a pod's key."""
        return f"claim/{self.namespace}/{self.name}"


def legible(read: Callable[[JSON], T | None], objects: Iterable[JSON]) -> Iterator[T]:
    """The result of reading each object; objects without a result, and damaged ones, are left out."""
    for each in objects:
        try:
            found = read(each)
        except Exception:  # on any error: only its owner is affected
            continue
        if found is not None:
            yield found


def claims_of(elasticgpus: Iterable[JSON]) -> tuple[ListedClaim, ...]:
    """The claims that have a share, by name, from the list of ElasticGPUs."""
    return tuple(sorted(legible(_claim, elasticgpus), key=lambda claim: claim.key))


def _claim(elasticgpu: JSON) -> ListedClaim:
    metadata, reference = elasticgpu.get("metadata") or {}, (elasticgpu.get("spec") or {}).get("claimRef") or {}
    allocation = codec.allocation_from_text((metadata.get("annotations") or {}).get(names.ALLOCATION))
    return ListedClaim(
        _word(reference.get("namespace")), _word(reference.get("name")), _word(metadata.get("name")), allocation
    )


def _word(value: object, most: int = NAME) -> str:
    """A field as text that can be shown; empty where it is absent."""
    return plain(str(value), most) if value is not None else ""


@dataclass(frozen=True, slots=True)
class Node:
    """A node with GPUs, and the Node object alongside its inventory."""

    inventory: Inventory
    address: str = "unknown"
    seen: str = ""
    """When its agent last wrote the inventory, RFC 3339; empty if unknown."""
    cordoned: bool = False
    ready: bool = True
    isolation: str = "-"
    """The enforced levels that its agent reports; `-` for none."""
    refused: str = ""
    """Why the administrator's options are refused there; empty if they are not."""
    silent_after: float = 0.0
    """Seconds after `seen` from which its agent is silent."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """The labels of the Node object."""
    idle: Mapping[str, float] = field(default_factory=dict)
    """Since when its agent has seen pods compute nothing, in seconds since 1970, by the pods' uids."""
    reported: bool = True
    """Whether it has a readable GPUNode; otherwise its GPUs are known only from shares."""

    @property
    def name(self) -> str:
        """The node's name."""
        return self.inventory.node


GPU_UNHEALTHY, GPU_GONE = str(PodEventReason.UNHEALTHY), str(PodEventReason.GPU_GONE)


@dataclass(frozen=True, slots=True)
class CardTrouble:
    """A pod's card that is unhealthy or gone. `code`: as in the pod's Events. `why`: as the agent reports it."""

    code: str
    index: int
    uuid: str
    node: str
    why: str = ""

    def __str__(self) -> str:
        if self.code == GPU_GONE:
            return f"GPU {self.index} of {self.node} is gone ({self.uuid})"
        return f"GPU {self.index} of {self.node} is unhealthy ({self.why or 'no reason given'})"


@dataclass(frozen=True, slots=True)
class BareNode:
    """A node without a GPUNode. `created`: in seconds since 1970."""

    labels: Mapping[str, str]
    created: float


@dataclass(frozen=True, slots=True)
class Places:
    """The first and last possible place of a pod in the queue; pods created in the same second share their places."""

    first: int
    last: int

    def __str__(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"

    @property
    def shown(self) -> int | str:
        """A number if it is a single place."""
        return self.first if self.first == self.last else str(self)


@dataclass(frozen=True, slots=True)
class NamespaceShare:
    """The holdings of a namespace in the fair order: its dominant share in percent of the cluster, and its weight."""

    namespace: str
    percent: float
    weight: int
    misread: str = ""
    """The sentence about a weight that cannot be read, or empty."""


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The cluster, sorted: nodes and pods by name, GPUs by index."""

    nodes: tuple[Node, ...]
    pods: tuple[Pod, ...]
    claims: tuple[ListedClaim, ...] = ()
    whole: bool = True
    """Whether this is the whole cluster; else only the pods of the one namespace that the user may list."""
    bare: Mapping[str, BareNode] = field(default_factory=dict)
    """The nodes without a GPUNode, by name."""
    weights: Mapping[str, str] | None = None
    """The weights on namespaces' labels where the queue is fair; None where it is in the order of age."""
    unserved: tuple[UnservedPod, ...] = ()
    """The pods that ask for a share in vain, by name."""
    _by_gpu: Mapping[str, tuple[tuple[Pod | ListedClaim, Demand], ...]] = field(init=False, repr=False, compare=False)
    """The holders by UUID, sorted out once: a large cluster has thousands of GPUs and ten times the pods."""
    _held: Mapping[str, Held] = field(init=False, repr=False, compare=False)
    """The amounts that each namespace holds, if the queue is fair."""
    _rivals: Mapping[int, tuple[tuple[int, str], ...]] = field(init=False, repr=False, compare=False)
    """By priority the two namespaces with waiting pods that hold least for their weight, where the queue is fair."""

    def __post_init__(self) -> None:
        found: dict[str, list[tuple[Pod | ListedClaim, Demand]]] = {}
        for claim in self.claims:
            for uuid, share in of_claim(claim.allocation).items():
                found.setdefault(uuid, []).append((claim, share))
        for pod in self._booked():
            for uuid, share in pod.shares().items():
                found.setdefault(uuid, []).append((pod, share))
        object.__setattr__(self, "_by_gpu", {uuid: tuple(holders) for uuid, holders in found.items()})
        self._compare_namespaces()

    def _compare_namespaces(self) -> None:
        """Add up what each namespace holds, once, where the queue is fair."""
        held: dict[str, Held] = {}
        rivals: dict[int, list[tuple[int, str]]] = {}
        object.__setattr__(self, "_held", held)
        if self.weights is not None:
            for namespace, _, _, taken in self.booked():
                held[namespace] = held.get(namespace, NOTHING).plus(fairness.held_of(taken.values()))
            shares = self._shares()
            for priority, namespace in {(pod.priority, pod.namespace) for pod in self.pods if pod.competes}:
                share = shares.of(namespace, held.get(namespace, NOTHING))
                rivals.setdefault(priority, []).append((share, namespace))
        object.__setattr__(self, "_rivals", {each: tuple(sorted(found)[:2]) for each, found in rivals.items()})

    @classmethod
    def of(
        cls,
        gpunodes: Iterable[JSON],
        nodes: Iterable[JSON],
        all_pods: Iterable[JSON],
        elasticgpus: Iterable[JSON] = (),
        kept_out: Mapping[str, KeptOut] = MappingProxyType({}),
        *,
        whole: bool = True,
        weights: Mapping[str, str] | None = None,
    ) -> ClusterView:
        """
        Read the four lists, and the excluded cards by node. Objects that cannot be read count as absent, as in the
        allocator.
        """
        by_name = dict(legible(lambda node: (str((node.get("metadata") or {}).get("name", "")), node), nodes))
        found = tuple(legible(lambda gpunode: _node(gpunode, by_name, kept_out), gpunodes))
        inventories = {node.name for node in found}
        listed = tuple(all_pods)
        read = legible(lambda pod: None if pods.finished(pod) else pod_of(pod), listed)
        missed = legible(unserved_pod, listed)
        return cls(
            tuple(sorted(found, key=lambda node: node.name)),
            tuple(sorted(read, key=lambda pod: (pod.namespace, pod.name))),
            claims_of(elasticgpus),
            whole,
            {name: bare for name, node in by_name.items() if (bare := _bare(node, inventories)) is not None},
            weights,
            tuple(sorted(missed, key=lambda pod: (pod.namespace, pod.name))),
        )

    def waiting(self) -> tuple[Pod, ...]:
        """
        The waiting pods in the order of the queue; those created in the same second by name. In the fair order each one
        counts as placed in its turn.
        """
        by_age = sorted((pod for pod in self.pods if pod.waits), key=lambda pod: (pod.order, pod.key))
        in_line = tuple(fairness.own_order(by_age, lambda pod: pod.place))
        if self.weights is None:
            return in_line
        total = self._total()
        card = total.memory * WHOLE // max(total.cores, 1)
        found = fairness.if_placed(
            in_line,
            lambda pod: pod.place,
            lambda pod: fairness.requested(pod.request, card),
            self._shares(),
            self._held,
        )
        return tuple(found)

    def places(self) -> dict[str, Places]:
        """The place of each waiting pod, by `namespace/name`."""
        found: dict[object, list[int]] = {}
        waiting = self.waiting()
        group = self.groups()
        for place, pod in enumerate(waiting, 1):
            found.setdefault(group(pod), []).append(place)
        return {pod.key: Places(min(places), max(places)) for pod in waiting for places in (found[group(pod)],)}

    def groups(self) -> Callable[[Pod], object]:
        """
        A key that is equal for waiting pods whose relative order only the allocator knows: they were created in one
        second, or wait for pods that were.
        """
        created = fairness.counts_as_created(pod.place for pod in self.pods if pod.allocation is None)
        if self.weights is None:
            return lambda pod: (pod.priority, created(pod.place))
        return lambda pod: (pod.order, pod.place.preferred, pod.namespace)

    def ahead(self, pod: Pod) -> tuple[NamespaceShare, NamespaceShare] | None:
        """
        In the fair order, the namespace with a waiting pod of equal priority that holds least, and the pod's own, if
        the former holds less for its weight; else None.
        """
        if self.weights is None or not pod.competes:
            return None
        mine = self._shares().of(pod.namespace, self._held.get(pod.namespace, NOTHING))
        least = next((each for each in self._rivals[pod.priority] if each[1] != pod.namespace), None)
        return None if least is None or least[0] >= mine else (self._share_of(least[1]), self._share_of(pod.namespace))

    def _share_of(self, namespace: str) -> NamespaceShare:
        shares, label = self._shares(), (self.weights or {}).get(namespace)
        odd = label is not None and fairness.weight_of(label) is None
        return NamespaceShare(
            namespace,
            shares.percent(self._held.get(namespace, NOTHING)),
            shares.weight(namespace),
            fairness.misread(namespace, label or "") if odd else "",
        )

    def _total(self) -> Held:
        gpus = [gpu for node in self.nodes for gpu in node.inventory.gpus]
        return Held(sum(map(DEFAULT_LIMITS.capacity, gpus)), WHOLE * len(gpus))

    def _shares(self) -> Shares:
        return Shares(
            self._total(), {name: fairness.weight_of(text) or 1 for name, text in (self.weights or {}).items()}
        )

    def holders(self, gpu: Gpu) -> tuple[tuple[Pod | ListedClaim, Demand], ...]:
        """The holders of shares of a GPU. A claim's share belongs to the claim, for any number of pods."""
        return self._by_gpu.get(gpu.uuid, ())

    def trouble(self, pod: Pod) -> tuple[CardTrouble, ...]:
        """
        The faults of the cards of a pod that has a share. A card that an administrator excludes counts as working;
        and while a node's driver does not answer, its cards do not count as gone.
        """
        node = next((each for each in self.nodes if pod.allocation is not None and each.name == pod.node), None)
        if node is None or pod.allocation is None:
            return ()
        cards = {gpu.uuid: gpu for gpu in node.inventory.gpus}
        found = dict[str, CardTrouble]()
        for share in (share for each in pod.allocation.containers for share in each.shares):
            card = cards.get(share.uuid)
            if card is None and not node.inventory.problem:
                found[share.uuid] = CardTrouble(GPU_GONE, share.index, share.uuid, node.name)
            elif card is not None and not card.healthy and not card.withheld:
                found[share.uuid] = CardTrouble(GPU_UNHEALTHY, card.index, share.uuid, node.name, card.reason)
        return tuple(found.values())

    def held_for(self, reserved: Mapping[str, Iterable[str]]) -> dict[str, tuple[Pod, ...]]:
        """The waiting pods for which nodes are reserved, by node. `reserved`: their uids."""
        waits = {pod.uid: pod for pod in self.pods if pod.waits and pod.uid}
        found = {node: tuple(waits[uid] for uid in uids if uid in waits) for node, uids in reserved.items()}
        return {node: pods for node, pods in found.items() if pods}

    def cards(self, last: Mapping[str, Mapping[str, Gpu]] = MappingProxyType({})) -> list[tuple[Node, tuple[Gpu, ...]]]:
        """
        Every node with its GPUs, by name: those that its agent reports, and after them those that it no longer reports,
        although pods or claims have shares of them.

        last: what is known of GPUs that are no longer reported, by node and UUID; these are listed without shares too.
        """
        missing, nodes = self._missing(last), {node.name: node for node in self.nodes}
        lost = {name: Node(Inventory(name, ()), ready=False, reported=False) for name in missing.keys() - nodes.keys()}
        return [
            (node, node.inventory.gpus + tuple(missing.get(name, ()))) for name, node in sorted((nodes | lost).items())
        ]

    def _missing(self, last: Mapping[str, Mapping[str, Gpu]]) -> Mapping[str, list[Gpu]]:
        """The GPUs that no agent reports, by node, by index; none for a user who sees no reports."""
        if not self.whole:
            return {}
        known = {gpu.uuid for node in self.nodes for gpu in node.inventory.gpus}
        found = {
            node: {uuid: missing_gpu(gpu) for uuid, gpu in gpus.items() if uuid not in known}
            for node, gpus in last.items()
        }
        for _, _, allocation, _ in self.booked():
            for share in (share for each in allocation.containers for share in each.shares):
                if share.uuid not in known:
                    found.setdefault(_word(allocation.node), {}).setdefault(share.uuid, missing_gpu(share))
        return {
            node: sorted(gpus.values(), key=lambda gpu: (gpu.index, gpu.uuid))[:_MOST_MISSING]
            for node, gpus in found.items()
            if gpus
        }

    def booked(self) -> Iterator[tuple[str, str, Allocation, Mapping[str, Demand]]]:
        """Every share once: the holder's namespace and name, the allocation, and what it uses of each GPU."""
        for claim in self.claims:
            yield claim.namespace, f"claim/{claim.name}", claim.allocation, of_claim(claim.allocation)
        for pod in self._booked():
            if pod.allocation is not None:
                yield pod.namespace, pod.name, pod.allocation, pod.shares()

    def _booked(self) -> Iterator[Pod]:
        """
        Pods with a share of their own, and the first user of each ResourceClaim, and of each ElasticGPUClaim whose
        ElasticGPU is not visible.
        """
        counted = {Allocation("", "", (), claim.share).group for claim in self.claims}
        for pod in self.pods:
            group = pod.allocation.group if pod.allocation is not None else ""
            if group not in counted:
                yield pod
            if group:
                counted.add(group)


def missing_gpu(last: Gpu | GpuShare) -> Gpu:
    """The GPU as known from its last report, or a share of it: it takes no pods."""
    model, memory = (last.model, last.memory) if isinstance(last, Gpu) else ("", last.gpu_memory)
    return Gpu(last.uuid, last.index, _word(model), memory, memory, healthy=False, reason=_MISSING, withheld=MISSING)


def address_of(node: Mapping[str, Any]) -> str:
    """The node's first internal address, or `unknown`."""
    addresses = (node.get("status") or {}).get("addresses") or []
    return next((_word(each.get("address")) for each in addresses if each.get("type") == "InternalIP"), "unknown")


def inventory_of(gpunode: JSON, kept_out: Mapping[str, KeptOut]) -> Inventory | None:
    """The inventory without the excluded cards; None if it cannot be read."""
    try:
        inventory = inventory_from_object(gpunode)
    except Malformed:
        return None
    found = kept_out.get(inventory.node)
    return replace(inventory, gpus=found.without(inventory.gpus)) if found is not None else inventory


def _node(gpunode: JSON, nodes: Mapping[str, JSON], kept_out: Mapping[str, KeptOut]) -> Node | None:
    inventory = inventory_of(gpunode, kept_out)
    if inventory is None:
        return None
    node = nodes.get(inventory.node)
    if node is None:
        return Node(inventory, ready=False)
    here = attributes.facts(node)
    published = gpunode.get("status") or {}
    isolation = published.get("isolation")
    return Node(
        inventory,
        address_of(node),
        _word(published.get("observedAt")),
        here.cordoned,
        here.ready,
        _word(",".join(map(str, isolation))) if isinstance(isolation, list) and isolation else "-",
        _word(_condition(published, "OptionsRefused").get("message"), MESSAGE),
        shown_silent_after(gpunode),
        labels=here.labels,
        idle=idle_from_object(gpunode).shares,
    )


def _bare(node: JSON, inventories: Collection[str]) -> BareNode | None:
    """The node, if it has no inventory and labels that can be read."""
    metadata = node.get("metadata") or {}
    labels = metadata.get("labels")
    if metadata.get("name") in inventories or not isinstance(labels, dict):
        return None
    return BareNode(labels, moments.created(node))


def trimmed(pod: JSON) -> JSON:
    """What `pod_of` reads of a pod. Of a large cluster's pods, most of which ask for no share, all would be held."""
    metadata = pod.get("metadata") or {}
    if names.REQUEST not in (metadata.get("annotations") or {}) and not any(legible(asks_in_vain, [pod])):
        return {"metadata": {key: metadata[key] for key in ("namespace", "name") if key in metadata}}
    lean = {key: value for key, value in metadata.items() if key != "managedFields"}
    spec = {key: value for key, value in (pod.get("spec") or {}).items() if key not in ("volumes", "affinity")}
    return {**pod, "metadata": lean, "spec": spec}


def pod_of(pod: JSON) -> Pod | None:
    """The pod if it waits for a share or has one; else None."""
    request = pods.admitted(pod)
    if request is None:
        return None
    waits = names.GATE in pods.gates(pod)
    allocation = None if waits else pods.allocation_of(pod, request)
    if allocation is None and not waits:
        return None
    metadata, status = pod["metadata"], pod.get("status") or {}
    deleted = waits and bool(metadata.get("deletionTimestamp"))
    allocated = _condition(status, names.ALLOCATED_CONDITION)
    if deleted:
        since = {"lastTransitionTime": metadata["deletionTimestamp"]}
        allocated = {"reason": TERMINATING, "message": _kept_by(metadata), **since}
    bound = _condition(status, "PodScheduled")
    return Pod(
        namespace=_word(metadata.get("namespace")),
        name=_word(metadata.get("name")),
        node=allocation.node if allocation else "",
        phase=_word(status.get("phase", "Pending")),
        created=moments.created(pod),
        priority=pods.priority(pod),
        request=request,
        allocation=allocation,
        code=_word(allocated.get("reason")) if waits else "",
        reason=_word(allocated.get("message"), MESSAGE).removeprefix("waiting: ") if waits else "",
        since=_word(allocated.get("lastTransitionTime")) if waits else "",
        unbound=_word(bound.get("message") or bound.get("reason"), MESSAGE)
        if bound.get("status") == "False" and not waits
        else "",
        uid=_word(metadata.get("uid")),
        creator=next(legible(creator_of, [pod]), NOBODY) if waits else NOBODY,
        deleted=deleted,
    )


def node_of(raw: JSON, pod: Pod | None) -> str:
    """
    The node on which a pod counts, as for the allocator: that of its share, the one that it is bound to, or the one on
    which kube-scheduler makes room for it. `pod`: as `pod_of` reads it.
    """
    bound = (raw.get("spec") or {}).get("nodeName")
    return (pod.node if pod is not None else "") or str(bound or pods.nominated(raw))


def _kept_by(metadata: JSON) -> str:
    """Why such a pod gets no share, with the finalizers that keep it."""
    kept = ", ".join(str(each) for each in (metadata.get("finalizers") or ())[:_MOST_FINALIZERS])
    return f"{_DELETED}: {kept}" if kept else _DELETED


_MOST_FINALIZERS = 3


def _condition(status: JSON, kind: str) -> JSON:
    return next((each for each in status.get("conditions") or [] if each.get("type") == kind), {})
