"""
The constraints of other pods and volumes on a pod, by the allocator's own filters, if the user may read their input.

The filters are `contract.scheduling.clusterfilters`; each is evaluated only if all of its input was read, and is
otherwise named with the reason. Pure: JSON in, frozen values out. Must not: call the API.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from contract import names, pods
from contract.model import NodeState
from contract.nodes import attributes
from contract.reasons.nodes import Reason
from contract.scheduling import clusterfilters, default_spread
from contract.scheduling import needs as scheduling
from contract.scheduling.clusterfilters import neighbourhood, objects, volume_binding
from contract.scheduling.clusterfilters.neighbourhood import Neighbourhood, NeighbourSnapshot
from contract.scheduling.clusterfilters.objects import Cluster, PodKind, PodRules, Profile, StorageObjects
from contract.scheduling.clusterfilters.selectors import LabelSelector
from contract.scheduling.needs import PodNeeds
from kubectl_gpufraction.cluster.options import WHERE
from kubectl_gpufraction.cluster.state import legible, node_of, pod_of, trimmed

JSON = dict[str, Any]
NODES, GPU_NODES, PODS, NAMESPACES = "nodes", "gpunodes", "pods of all namespaces", "namespaces"
CLAIMS, ALL_CLAIMS = "persistentvolumeclaims", "persistentvolumeclaims of all namespaces"
VOLUMES, CLASSES, CSI_NODES = "persistentvolumes", "storageclasses", "csinodes"
DRIVERS, CAPACITIES, ATTACHMENTS = "csidrivers", "csistoragecapacities", "volumeattachments"
OPTIONS = WHERE
FORBIDDEN = "forbidden"
_EVERYWHERE = (NODES, GPU_NODES)
"""The objects that every filter needs, because the result is about nodes with GPUs."""


@dataclass(frozen=True, slots=True)
class FilterReads:
    """
    A filter by kube-scheduler's name for it, and what it reads. `always`: rules of other pods concern every pod.
    `default`: a pod without constraints of its own gets those of its profile.
    """

    name: str
    kinds: tuple[str, ...]
    always: bool = False
    default: bool = False


_READS: Mapping[str, FilterReads] = {
    "added_affinity": FilterReads("AddedAffinity", (OPTIONS,)),
    "volume_restrictions": FilterReads("VolumeRestrictions", (PODS, CLAIMS)),
    "volume_limits": FilterReads(
        "NodeVolumeLimits", (PODS, CLAIMS, ALL_CLAIMS, VOLUMES, CLASSES, CSI_NODES, ATTACHMENTS)
    ),
    "volume_binding": FilterReads("VolumeBinding", (CLAIMS, VOLUMES, CLASSES, CSI_NODES, DRIVERS, CAPACITIES)),
    "volume_zone": FilterReads("VolumeZone", (CLAIMS, VOLUMES, CLASSES)),
    "topology_spread": FilterReads("PodTopologySpread", (PODS,), default=True),
    "pod_affinity": FilterReads("InterPodAffinity", (PODS, NAMESPACES), always=True),
}
"""By the filter's module. A filter without a row is never evaluated here."""
_OTHERS: Mapping[str, str] = {"resource_claims": "DynamicResources"}
"""The names of filters that are in no row; a filter that is not here either has its module's name."""
_NOT_HERE = "this command does not evaluate it"
_NO_CONTROLLER = "default constraints count by the selector of the pod's controller, which does not exist yet"
Profiles = Mapping[str, Profile]
"""Of kube-scheduler, by `schedulerName`."""
Check = Callable[[PodRules, PodNeeds, Cluster], Callable[[NodeState], Reason | None] | None]


def _module(check: Check) -> str:
    return check.__module__.rpartition(".")[2]


def name_of(check: Check) -> str:
    """The filter's name."""
    module = _module(check)
    if module in _READS:
        return _READS[module].name
    return _OTHERS.get(module, "".join(word.capitalize() for word in module.split("_")))


@dataclass(frozen=True, slots=True)
class PendingPod:
    """The parts of a waiting pod that the filters read. `exists`: it was created, so its controller is known."""

    rules: PodRules
    needs: PodNeeds
    exists: bool = True


@dataclass(frozen=True, slots=True)
class PlacedPod:
    """A pod on a node, or that counts there already."""

    key: str
    kind: PodKind
    node: str


class NeighbourReader:
    """Takes in pods and nodes as they are listed, so that no list is read twice. Not thread-safe."""

    def __init__(self) -> None:
        self.pending: dict[str, PendingPod] = {}
        """By `namespace/name`, the pods with our gate."""
        self.placed: dict[str, PlacedPod] = {}
        """By `namespace/name`, the pods on nodes."""
        self.nodes: dict[str, NodeState] = {}
        """By name; with labels and taints alone."""
        self._kinds: dict[PodKind, PodKind] = {}

    def pod(self, pod: JSON) -> JSON:
        """Take in a pod, and trim it to what `ClusterView` reads. One that cannot be read counts as absent."""
        try:
            self._see(pod)
        except Exception:  # on any error: only its owner is affected
            return trimmed(pod)
        return trimmed(pod)

    def _see(self, pod: JSON) -> None:
        if pods.finished(pod):
            return
        key, node = pods.key(pod), node_of(pod, pod_of(pod))
        if node:
            terminating = bool((pod.get("metadata") or {}).get("deletionTimestamp"))
            kind = objects.read_rules(pod).placed(terminating=terminating)
            self.placed[key] = PlacedPod(key, self._kinds.setdefault(kind, kind), node)
        elif names.GATE in pods.gates(pod):
            self.pending[key] = pending(pod)

    def see_nodes(self, nodes: Iterable[JSON]) -> None:
        """Take in the nodes."""
        for node in nodes:
            facts = attributes.facts(node)
            self.nodes[facts.name] = NodeState(facts.name, labels=facts.labels, taints=facts.taints)


def pending(pod: JSON) -> PendingPod:
    """The parts of a pod without a node that filters read, without any pin of ours."""
    found = pod_of(pod)
    needs = scheduling.needs_for(pod, found.request if found is not None else None)
    return PendingPod(objects.read_rules(pod), scheduling.unpinned(needs))


def kinds_for(pending: Iterable[PendingPod], profiles: Profiles | None) -> tuple[str, ...]:
    """
    The objects that must be read to judge these pods, besides nodes and pods. `profiles`: None where they are not
    known.
    """
    found = dict.fromkeys(
        kind
        for pod in pending
        for check in clusterfilters.FILTERS
        if _module(check) in _READS and _concerns(check, pod, profiles)
        for kind in _kinds(check, pod, profiles)
    )
    return tuple(found)


def _kinds(check: Check, pod: PendingPod, profiles: Profiles | None) -> tuple[str, ...]:
    """The input of the filter for the pod; the options are read only if they can concern it."""
    reads = _READS[_module(check)]
    if not reads.default or default_spread.has_own(pod.rules):
        return reads.kinds
    return (
        *reads.kinds,
        OPTIONS,
        *(default_spread.SELECTING if pod.exists and _gets_defaults(reads, pod, profiles) else ()),
    )


def _gets_defaults(reads: FilterReads, pod: PendingPod, profiles: Profiles | None) -> bool:
    """Whether the filter judges the pod by constraints of its profile."""
    return reads.default and bool(default_spread.profile_for(pod.rules, profiles or {}).spread)


def _concerns(check: Check, pod: PendingPod, profiles: Profiles | None) -> bool:
    """Whether the filter may concern the pod."""
    reads = _READS.get(_module(check))
    if reads is not None:
        unknown = profiles is None and OPTIONS in _kinds(check, pod, profiles)
        if reads.always or unknown or _gets_defaults(reads, pod, profiles):
            return True
    return check(pod.rules, pod.needs, Cluster(profiles=profiles or {})) is not None


@dataclass(frozen=True, slots=True)
class Unevaluated:
    """A filter that concerns the pod but could not be evaluated, with the reason."""

    filter: str
    why: str


@dataclass(frozen=True, slots=True)
class NodeRefusal:
    """A node on which the pod cannot be, and the filter that refuses it."""

    node: str
    filter: str
    reason: Reason


@dataclass(frozen=True, slots=True)
class NeighbourVerdict:
    """The filters' verdict on a pod now, node by node."""

    nodes: int
    refused: tuple[NodeRefusal, ...] = ()
    in_the_way: tuple[PlacedPod, ...] = ()
    """Pods that it must not be alongside, or whose anti-affinity excludes it."""
    claims: tuple[tuple[str, str], ...] = ()
    """Its own claims that keep it from every node, and what is wrong with each."""
    unevaluated: tuple[Unevaluated, ...] = ()


NO_VERDICT = NeighbourVerdict(0)
"""No verdict on a pod, as on one that does not wait."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """
    Everything that was read. `unread`: why a kind of objects was not, `FORBIDDEN` or in words, by its name here.
    `selectors`: of Services and controllers, by kind, namespace and name. `profiles`: None where they are not known.
    """

    reader: NeighbourReader
    namespaces: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    storage: StorageObjects = field(default_factory=StorageObjects)
    unread: Mapping[str, str] = field(default_factory=dict)
    profiles: Profiles | None = field(default_factory=dict)
    selectors: Mapping[tuple[str, str, str], LabelSelector] = field(default_factory=dict)

    def there(self) -> Neighbourhood:
        """A copy of it that pods can be put on."""
        nodes, profiles = tuple(self.reader.nodes.values()), self.profiles or {}
        found = Neighbourhood(NeighbourSnapshot(nodes, (), self.namespaces, self.storage, profiles=profiles))
        for pod in self.reader.placed.values():
            found.add(pod.kind, pod.node)
        return found

    def unevaluated(self, pod: PendingPod) -> tuple[Unevaluated, ...]:
        """The filters that concern the pod and cannot be evaluated."""
        found = []
        for check in clusterfilters.FILTERS:
            why = self._why_not(check, pod)
            if why and _concerns(check, pod, self.profiles):
                found.append(Unevaluated(name_of(check), why))
        return tuple(found)

    def refused(self, pod: PendingPod, there: Neighbourhood, nodes: Sequence[NodeState]) -> Iterator[NodeRefusal]:
        """Those of the nodes that a filter refuses that can be evaluated, each with the first such filter."""
        rules, cluster = self._with_defaults(pod.rules), there.cluster(pod.rules)
        evaluated = (each for each in clusterfilters.FILTERS if not self._why_not(each, pod))
        made = [(name_of(each), each(rules, pod.needs, cluster)) for each in evaluated]
        for node in nodes:
            for name, check in made:
                reason = check(node) if check is not None else None
                if reason is not None:
                    yield NodeRefusal(node.name, name, reason)
                    break

    def judge(self, pod: PendingPod, gpu_nodes: Iterable[str]) -> NeighbourVerdict:
        """The filters' verdict on the pod on the nodes with GPUs."""
        nodes = [self.reader.nodes[name] for name in gpu_nodes if name in self.reader.nodes]
        unevaluated = self.unevaluated(pod)
        return NeighbourVerdict(
            len(nodes),
            tuple(self.refused(pod, self.there(), nodes)) if nodes else (),
            tuple(self._in_the_way(pod)),
            tuple(self._wrong_claims(pod)),
            unevaluated,
        )

    def _with_defaults(self, rules: PodRules) -> PodRules:
        """The rules with the default constraints of the pod's profile, where they apply."""
        services = (
            each
            for (kind, namespace, _), each in self.selectors.items()
            if kind == default_spread.SERVICES and namespace == rules.namespace
        )
        kind, name = rules.controller or ("", "")
        own = self.selectors.get((kind, rules.namespace, name), default_spread.NO_SELECTOR)
        selector = default_spread.selector_of(rules.labels, services, rules.controller, own)
        return default_spread.with_defaults(rules, default_spread.profile_for(rules, self.profiles or {}), selector)

    def _why_not(self, check: Check, pod: PendingPod) -> str:
        """Why a filter is not evaluated for the pod; empty where it is."""
        reads = _READS.get(_module(check))
        if reads is None:
            return _NOT_HERE
        kinds = (*_EVERYWHERE, *_kinds(check, pod, self.profiles))
        why = {kind: self.unread[kind] for kind in kinds if kind in self.unread}
        forbidden = ", ".join(kind for kind, each in why.items() if each == FORBIDDEN)
        others = [each for each in why.values() if each != FORBIDDEN]
        if not pod.exists and _gets_defaults(reads, pod, self.profiles):
            others.append(_NO_CONTROLLER)
        return "; ".join([*([f"you may not list {forbidden}"] if forbidden else []), *others])

    def _in_the_way(self, pod: PendingPod) -> Iterator[PlacedPod]:
        if PODS in self.unread or NAMESPACES in self.unread:
            return
        apart = replace(pod.rules, affinity=(), spread=(), volumes=(), disks=())
        for other in self.reader.placed.values():
            if neighbourhood.hinders(other.kind, apart, self.namespaces):
                yield other

    def _wrong_claims(self, pod: PendingPod) -> Iterator[tuple[str, str]]:
        if CLAIMS in self.unread:
            return
        for volume in pod.rules.volumes:
            claim = self.storage.claims.get((pod.rules.namespace, volume.claim))
            wrong = volume_binding.unusable(claim, volume, pod.rules)
            if wrong is not None:
                yield volume.claim, wrong.what


def selectors_of(found: Mapping[str, Iterable[JSON]]) -> dict[tuple[str, str, str], LabelSelector]:
    """The selectors of Services and controllers, by kind, namespace and name, from the lists of each kind."""
    return {
        (kind, str((each.get("metadata") or {}).get("namespace", "")), _name(each)): selector
        for kind, (_, read) in default_spread.SELECTING.items()
        for each in found.get(kind, ())
        for selector in legible(read, (each,))
    }


def storage_of(found: Mapping[str, Iterable[JSON]]) -> StorageObjects:
    """The parts of claims and volumes that filters read, from the lists of each kind by its plural."""
    claims = list(legible(objects.read_claim, found.get(CLAIMS, ())))
    volumes = {each.name: each for each in legible(objects.read_volume, found.get(VOLUMES, ()))}
    classes = {each.name: each for each in legible(objects.read_class, found.get(CLASSES, ()))}
    attached: dict[str, set[tuple[str, str]]] = {}
    for each in found.get(ATTACHMENTS, ()):
        spec = each.get("spec") or {}
        volume = volumes.get((spec.get("source") or {}).get("persistentVolumeName") or "")
        if volume is not None and volume.driver and spec.get("attacher"):
            attached.setdefault(str(spec.get("nodeName")), set()).add((str(spec["attacher"]), volume.handle))
    drivers = ((_name(each), each.get("spec") or {}) for each in found.get(DRIVERS, ()))
    return StorageObjects(
        claims={(claim.namespace, claim.name): claim for claim in claims},
        volumes=volumes,
        classes=classes,
        csi_nodes={_name(each): objects.read_csi_node(each) for each in found.get(CSI_NODES, ())},
        attached={node: frozenset(each) for node, each in attached.items()},
        capacity_tracked=frozenset(name for name, spec in drivers if spec.get("storageCapacity")),
        capacities=tuple(legible(objects.read_capacity, found.get(CAPACITIES, ()))),
    )


def _name(document: JSON) -> str:
    return str((document.get("metadata") or {}).get("name", ""))
