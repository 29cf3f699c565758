"""
The input of the filters: a pod that needs a node, and the pods, namespaces, claims and volumes of the cluster.

Frozen values of the few fields that decide. `read_...` makes each of an object's JSON, which the API server has
validated.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from sys import intern
from typing import Any, Literal

from contract import names
from contract.encoding import quantity, resourceclaims
from contract.model import NodeState
from contract.reasons.nodes import Reason
from contract.scheduling import needs as scheduling
from contract.scheduling.clusterfilters import csi_translation
from contract.scheduling.clusterfilters.csi_translation import InTree
from contract.scheduling.clusterfilters.selectors import Labels, LabelSelector, read_selector, with_label_keys
from contract.scheduling.gates import NEWEST, STORED, Gate, Gates
from contract.scheduling.needs import Term

JSON = Mapping[str, Any]
Policy = Literal["Honor", "Ignore"]
MOST_WEIGHT = 100
"""The largest weight of a preferred term (Kubernetes, NodeAffinity and PodAffinity)."""
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


Check = Callable[[NodeState], Reason | None]
"""Why a node is refused for the pod of the check."""


class FrozenLabels(dict[str, str]):
    """Immutable labels, so that they can be part of a key."""

    __slots__ = ("_hash",)
    _hash: int
    """Computed once, because pods are often looked up by their labels."""

    def __hash__(self) -> int:  # type: ignore[override]
        if not hasattr(self, "_hash"):
            self._hash = hash(frozenset(self.items()))
        return self._hash


NO_LABELS = FrozenLabels()


# -- pods ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PodTerm:
    """A required term of affinity or anti-affinity between pods, with the namespaces of its owner resolved."""

    topology_key: str
    selector: LabelSelector
    namespaces: frozenset[str]
    namespace_selector: LabelSelector

    def matches(self, namespace: str, namespace_labels: Labels, labels: Labels) -> bool:
        """Whether the term applies to a pod of that namespace with these labels."""
        return self.selects_namespace(namespace, namespace_labels) and self.selector.matches(labels)

    def selects_namespace(self, namespace: str, labels: Labels) -> bool:
        """Whether the term applies to any pods of a namespace with these labels."""
        return namespace in self.namespaces or self.namespace_selector.matches(labels)


@dataclass(frozen=True, slots=True)
class SpreadConstraint:
    """A topology spread constraint that must hold (`DoNotSchedule`) or is preferred (`ScheduleAnyway`)."""

    topology_key: str
    selector: LabelSelector
    max_skew: int
    min_domains: int = 1
    node_affinity: Policy = "Honor"
    node_taints: Policy = "Ignore"


NodeWish = tuple[int, Term]
"""A preferred term about nodes, and its weight."""
PodWish = tuple[int, PodTerm]
"""A preferred term about other pods, and its weight, which is below 0 for anti-affinity."""
PodWishes = tuple[PodWish, ...]
HARD_AFFINITY = 1
"""The weight of a required term of a pod's affinity for the pods to which it applies (`hardPodAffinityWeight`)."""


@dataclass(frozen=True, slots=True)
class Preferences:
    """The preferences of a pod, which are not requirements."""

    nodes: tuple[NodeWish, ...] = ()
    pods: PodWishes = ()
    spread: tuple[SpreadConstraint, ...] = ()


NO_PREFERENCES = Preferences()


@dataclass(frozen=True, slots=True)
class Profile:
    """
    Arguments of a profile of kube-scheduler, which the administrator provides. The constraints have no selectors: each
    pod's Services and controller provide them.
    """

    added_affinity: tuple[Term, ...] | None = None
    """The requirements of every pod of the profile for nodes, in addition to its own affinity; None for none."""
    added_wishes: tuple[NodeWish, ...] = ()
    spread: tuple[SpreadConstraint, ...] = ()
    """Constraints that must hold for pods without constraints of their own."""
    preferred_spread: tuple[SpreadConstraint, ...] = ()

    @property
    def spreads(self) -> bool:
        """Whether there are any constraints."""
        return bool(self.spread or self.preferred_spread)


DEFAULT_SCHEDULER = "default-scheduler"
"""The profile of pods that name none."""
NO_PROFILE = Profile()
Controller = tuple[str, str]
"""The plural and the name of a pod's controller."""
_CONTROLLERS = {
    ("v1", "ReplicationController"): "replicationcontrollers",
    ("apps/v1", "ReplicaSet"): "replicasets",
    ("apps/v1", "StatefulSet"): "statefulsets",
}
"""The controllers whose selector defines which pods belong together, by version and kind."""


@dataclass(frozen=True, slots=True)
class PodVolume:
    """A volume of a pod by a claim of its namespace. `ephemeral`: the claim is created for this pod."""

    claim: str
    ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class Disk:
    """A disk that the pod's spec names itself. Two pods of one node share it only if both only read it."""

    kind: Literal["gcePersistentDisk", "awsElasticBlockStore", "iscsi", "rbd"]
    names: tuple[str, ...]
    """The fields that identify the disk."""
    hosts: frozenset[str] = frozenset()
    """Ceph monitors: two names of one disk share at least one; empty for other kinds."""
    read_only: bool = False

    def conflicts(self, other: Disk) -> bool:
        """Whether both are the same disk, and two pods cannot share it."""
        if (self.kind, self.names) != (other.kind, other.names):
            return False
        if self.hosts or other.hosts:
            return not self.hosts.isdisjoint(other.hosts) and not (self.read_only and other.read_only)
        return self.kind == "awsElasticBlockStore" or not (self.read_only and other.read_only)


@dataclass(frozen=True, slots=True)
class PodClaim:
    """
    A ResourceClaim of another driver that a pod names. `template`: it is created for this pod; its name is empty until
    then.
    """

    name: str
    template: bool = False


CsiVolume = tuple[str, str]
"""Driver and handle."""


@dataclass(frozen=True, slots=True)
class PodRules:
    """
    The fields that filters and preferences read of a pod that needs a node, from its spec without our pin. Hashable, so
    that equal pods of a controller are checked once.
    """

    namespace: str = ""
    labels: FrozenLabels = NO_LABELS
    affinity: tuple[PodTerm, ...] = ()
    anti_affinity: tuple[PodTerm, ...] = ()
    spread: tuple[SpreadConstraint, ...] = ()
    volumes: tuple[PodVolume, ...] = ()
    disks: tuple[Disk, ...] = ()
    uid: str = ""
    """Set only if a claim is created for this pod, because the claim must belong to it."""
    prefers: Preferences = NO_PREFERENCES
    profile: str = DEFAULT_SCHEDULER
    """The `schedulerName`."""
    controller: Controller | None = None
    """None if its selector does not count for a default constraint."""
    inline: tuple[CsiVolume, ...] = ()
    """Disks of cloud providers that the pod's spec names itself."""
    claims: tuple[PodClaim, ...] = ()

    @property
    def constrained(self) -> bool:
        """Whether the pod itself has any field that the filters check."""
        return bool(
            self.affinity
            or self.anti_affinity
            or self.spread
            or self.volumes
            or self.disks
            or self.inline
            or self.claims
        )

    def placed(self, *, terminating: bool = False) -> PodKind:
        """The pod as other pods' rules see it once it is on a node."""
        wishes = (*((HARD_AFFINITY, term) for term in self.affinity), *self.prefers.pods)
        return PodKind(
            self.namespace,
            self.labels,
            terminating,
            self.anti_affinity,
            self.volumes,
            self.disks,
            self.uid if any(volume.ephemeral for volume in self.volumes) else "",
            wishes,
            self.inline,
        )


NO_RULES = PodRules()


@dataclass(frozen=True, slots=True)
class PodKind:
    """
    The fields that the filters read of an unfinished pod on a node. Hashable: equal pods are counted by node.

    A terminating pod counts for everything except spreading.
    """

    namespace: str
    labels: FrozenLabels = NO_LABELS
    terminating: bool = False
    anti_affinity: tuple[PodTerm, ...] = ()
    volumes: tuple[PodVolume, ...] = ()
    disks: tuple[Disk, ...] = ()
    uid: str = ""
    """As in `PodRules`."""
    wishes: PodWishes = ()
    """Its preferences for pods that come to its domain, including its required affinity."""
    inline: tuple[CsiVolume, ...] = ()


def read_rules(pod: JSON, gates: Gates = STORED) -> PodRules:
    """Read a pod, placed or not. `gates`: kube-scheduler's feature gates that are on."""
    metadata, spec = pod.get("metadata") or {}, pod.get("spec") or {}
    namespace, labels = metadata.get("namespace", ""), FrozenLabels(metadata.get("labels") or {})
    affinity = spec.get("affinity") or {}
    volumes = tuple(_volumes(metadata.get("name", ""), spec))
    claims = tuple(_pod_claims(pod)) if spec.get("resourceClaims") else ()
    own = bool(claims) or any(volume.ephemeral for volume in volumes)
    return PodRules(
        namespace=namespace,
        labels=labels,
        affinity=tuple(_terms(affinity.get("podAffinity"), namespace, labels, gates)),
        anti_affinity=tuple(_terms(affinity.get("podAntiAffinity"), namespace, labels, gates)),
        spread=tuple(read_spread(spec.get("topologySpreadConstraints"), "DoNotSchedule", labels)),
        volumes=volumes,
        disks=tuple(_disks(spec)),
        uid=metadata.get("uid", "") if own else "",
        prefers=_preferences(spec, affinity, namespace, labels, gates),
        profile=intern(spec.get("schedulerName") or DEFAULT_SCHEDULER),
        controller=_controller(metadata),
        inline=tuple(filter(None, map(csi_translation.of_inline, spec.get("volumes") or ()))),
        claims=claims,
    )


def _pod_claims(pod: JSON) -> Iterator[PodClaim]:
    """The claims of other drivers that a pod names, except those that are not needed."""
    made = {
        each.get("name"): each.get("resourceClaimName") or ""
        for each in (pod.get("status") or {}).get("resourceClaimStatuses") or ()
    }
    for entry in (pod.get("spec") or {}).get("resourceClaims") or ():
        name, given = entry.get("name"), entry.get("resourceClaimName")
        if name == names.POD_CLAIM or resourceclaims.is_ours(given):
            continue
        if given:
            yield PodClaim(given)
        elif name not in made or made[name]:
            yield PodClaim(made.get(name, ""), template=True)


def _terms(affinity: JSON | None, namespace: str, labels: Labels, gates: Gates) -> Iterator[PodTerm]:
    for item in (affinity or {}).get(_REQUIRED) or ():
        yield _term(item, namespace, labels, gates)


def _term(item: JSON, namespace: str, labels: Labels, gates: Gates) -> PodTerm:
    named, by_labels = item.get("namespaces") or (), item.get("namespaceSelector")
    selector = read_selector(item.get("labelSelector"))
    if Gate.MATCH_LABEL_KEYS_IN_POD_AFFINITY in gates:
        # The API server refuses a key of matchLabelKeys that the selector also contains. So such a key was merged when
        # the pod was created, and what the pod's label says now does not matter to kube-scheduler.
        named_there = {key for key, _, _ in selector.expressions}
        same = (key for key in item.get("matchLabelKeys") or () if key not in named_there)
        selector = with_label_keys(selector, labels, same, item.get("mismatchLabelKeys") or ())
    return PodTerm(
        topology_key=item.get("topologyKey", ""),
        selector=selector,
        namespaces=frozenset(named) if named or by_labels is not None else frozenset((namespace,)),
        namespace_selector=read_selector(by_labels),
    )


def _preferences(spec: JSON, affinity: JSON, namespace: str, labels: Labels, gates: Gates) -> Preferences:
    wishes = (
        (sign * _weight(item), _term(item.get("podAffinityTerm") or {}, namespace, labels, gates))
        for kind, sign in (("podAffinity", 1), ("podAntiAffinity", -1))
        for item in (affinity.get(kind) or {}).get(_PREFERRED) or ()
    )
    found = Preferences(
        nodes=read_node_wishes((affinity.get("nodeAffinity") or {}).get(_PREFERRED)),
        pods=tuple(wishes),
        spread=tuple(read_spread(spec.get("topologySpreadConstraints"), "ScheduleAnyway", labels)),
    )
    return NO_PREFERENCES if found == NO_PREFERENCES else found


def read_node_wishes(items: Iterable[JSON] | None) -> tuple[NodeWish, ...]:
    """Preferred terms about nodes."""
    return tuple((_weight(item), scheduling.node_term(item.get("preference") or {})) for item in items or ())


def _weight(item: JSON) -> int:
    """A term's weight. A webhook sees it before the API server has checked it."""
    return min(max(int(item.get("weight") or 0), 0), MOST_WEIGHT)


def read_spread(items: Iterable[JSON] | None, when: str, labels: Labels) -> Iterator[SpreadConstraint]:
    """Those of the constraints that have this `whenUnsatisfiable`, for a pod with these labels."""
    for item in items or ():
        if item.get("whenUnsatisfiable") == when:
            yield SpreadConstraint(
                topology_key=item.get("topologyKey", ""),
                selector=with_label_keys(
                    read_selector(item.get("labelSelector")), labels, item.get("matchLabelKeys") or ()
                ),
                max_skew=int(item.get("maxSkew", 1)),
                min_domains=int(item.get("minDomains") or 1),
                node_affinity=item.get("nodeAffinityPolicy") or "Honor",
                node_taints=item.get("nodeTaintsPolicy") or "Ignore",
            )


def _controller(metadata: JSON) -> Controller | None:
    owner = next((each for each in metadata.get("ownerReferences") or () if each.get("controller")), None)
    plural = _CONTROLLERS.get((owner.get("apiVersion", ""), owner.get("kind", ""))) if owner is not None else None
    return (plural, owner.get("name", "")) if owner is not None and plural is not None else None


def _volumes(pod: str, spec: JSON) -> Iterator[PodVolume]:
    for volume in spec.get("volumes") or ():
        claim = volume.get("persistentVolumeClaim")
        if claim is not None:
            yield PodVolume(claim.get("claimName", ""))
        elif volume.get("ephemeral") is not None:
            yield PodVolume(f"{pod}-{volume.get('name', '')}", ephemeral=True)


def _disks(spec: JSON) -> Iterator[Disk]:
    for volume in spec.get("volumes") or ():
        google, amazon = volume.get("gcePersistentDisk"), volume.get("awsElasticBlockStore")
        iscsi, ceph = volume.get("iscsi"), volume.get("rbd")
        if google is not None:
            yield Disk("gcePersistentDisk", (google.get("pdName", ""),), read_only=bool(google.get("readOnly")))
        if amazon is not None:
            yield Disk("awsElasticBlockStore", (amazon.get("volumeID", ""),))
        if iscsi is not None:
            yield Disk("iscsi", (iscsi.get("iqn", ""),), read_only=bool(iscsi.get("readOnly")))
        if ceph is not None:
            monitors = frozenset(ceph.get("monitors") or ())
            image = ceph.get("pool") or "rbd", ceph.get("image", "")
            yield Disk("rbd", image, monitors, read_only=bool(ceph.get("readOnly")))


# -- volumes ------------------------------------------------------------------------------------------------------

_CLASS = "volume.beta.kubernetes.io/storage-class"
_BOUND = "pv.kubernetes.io/bind-completed"
_SELECTED_NODE = "volume.kubernetes.io/selected-node"


@dataclass(frozen=True, slots=True)
class VolumeClaim:
    """A PersistentVolumeClaim."""

    namespace: str
    name: str
    uid: str = ""
    volume: str = ""
    """The volume that it names; see `bound`."""
    bound: bool = False
    """Whether the volume is certainly bound to it. Only then the claim has the annotation and the volume's name."""
    storage_class: str = ""
    size: int | None = None
    """Bytes; None if it requests none."""
    modes: frozenset[str] = frozenset()
    volume_mode: str = "Filesystem"
    attributes_class: str = ""
    selector: LabelSelector | None = None
    selected_node: str | None = None
    """The node for which a volume is being created."""
    lost: bool = False
    deleting: bool = False
    controller: str = ""
    """The uid of the pod for which the claim was created, if there is one."""


@dataclass(frozen=True, slots=True)
class Volume:
    """A PersistentVolume."""

    name: str
    labels: Labels = field(default_factory=dict)
    affinity: tuple[Term, ...] | None = None
    """The nodes that reach it; None for all."""
    claim: tuple[str, str, str] | None = None
    """Namespace, name and uid (which may be empty) of its claim."""
    storage_class: str = ""
    size: int = 0
    modes: frozenset[str] = frozenset()
    volume_mode: str = "Filesystem"
    attributes_class: str = ""
    available: bool = False
    deleting: bool = False
    driver: str = ""
    """The CSI driver; empty for other kinds."""
    handle: str = ""
    in_tree: InTree | None = None
    """Its form as a CSI volume, if it is a disk of a cloud provider."""

    def is_for(self, claim: VolumeClaim) -> bool:
        """Whether it was created for this claim."""
        if self.claim is None or self.claim[:2] != (claim.namespace, claim.name):
            return False
        return self.claim[2] in ("", claim.uid)


@dataclass(frozen=True, slots=True)
class StorageClass:
    """A StorageClass. `topologies`: where it creates volumes, any of these terms; None for everywhere."""

    name: str
    provisioner: str = ""
    delayed: bool = False
    topologies: tuple[tuple[tuple[str, tuple[str, ...]], ...], ...] | None = None


@dataclass(frozen=True, slots=True)
class Capacity:
    """A CSIStorageCapacity: the largest volume of a class that can be created for nodes with these labels."""

    storage_class: str
    nodes: LabelSelector
    most: int | None = None


@dataclass(frozen=True, slots=True)
class CsiNode:
    """A CSINode: the number of volumes of each driver that can be attached, and the plugins whose disks CSI drivers
    handle.
    """

    limits: Mapping[str, int] = field(default_factory=dict)
    migrated: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class StorageObjects:
    """Claims, volumes and related objects."""

    claims: Mapping[tuple[str, str], VolumeClaim] = field(default_factory=dict)
    volumes: Mapping[str, Volume] = field(default_factory=dict)
    classes: Mapping[str, StorageClass] = field(default_factory=dict)
    csi_nodes: Mapping[str, CsiNode] = field(default_factory=dict)
    """By node."""
    attached: Mapping[str, frozenset[tuple[str, str]]] = field(default_factory=dict)
    """Driver and handle of the volumes that VolumeAttachments name, by node."""
    capacity_tracked: frozenset[str] = frozenset()
    """CSI drivers that publish capacities."""
    capacities: tuple[Capacity, ...] = ()


NO_STORAGE = StorageObjects()


@dataclass(frozen=True, slots=True)
class DeviceClaim:
    """A ResourceClaim."""

    namespace: str
    name: str
    controller: str = ""
    """The uid of the pod for which it was created, if there is one."""
    deleting: bool = False
    allocated: bool = False
    nodes: tuple[Term, ...] | None = None
    """The nodes that reach its devices; None for all."""
    failed: bool = False
    """A device reports that it cannot be bound."""
    classes: frozenset[str] = frozenset()
    """The DeviceClasses that it names."""
    holder: str = ""
    """The uid of the first pod for which it is reserved, of a claim of ours."""
    consumers: int = 0
    """The number of pods for which it is reserved, of a claim of ours."""
    uid: str = ""
    single: bool = False
    """Whether it has one request: then every pod that uses the claim has all of its cards in one container."""

    @property
    def shares(self) -> bool:
        """Whether it is of our class, so that the allocator allocates it."""
        return names.SHARE_CLASS in self.classes


@dataclass(frozen=True, slots=True)
class DeviceObjects:
    """ResourceClaims and DeviceClasses, the latter with the extended resource of each, or none."""

    claims: Mapping[tuple[str, str], DeviceClaim] = field(default_factory=dict)
    classes: Mapping[str, str] = field(default_factory=dict)


NO_DEVICES = DeviceObjects()


@dataclass(frozen=True, slots=True)
class Cluster:
    """All input of the filters, at one moment."""

    nodes: Mapping[str, NodeState] = field(default_factory=dict)
    """All nodes, including those without GPUs."""
    pods: Mapping[str, Mapping[PodKind, Mapping[str, int]]] = field(default_factory=dict)
    """The number of pods of each kind on each node, by namespace."""
    repelling: Mapping[PodKind, Mapping[str, int]] = field(default_factory=dict)
    """Of these the kinds that have anti-affinity."""
    holding: Mapping[str, Collection[PodKind]] | None = None
    """The kinds with volumes on each node; None if they are not tracked and must be computed."""
    wishing: Mapping[str, Mapping[PodWishes, Mapping[str, int]]] = field(default_factory=dict)
    """
    The number of pods on each node with these preferences, by the namespace of the pods to which these refer; those of
    `EVERYWHERE` select namespaces by labels.
    """
    namespaces: Mapping[str, Labels] = field(default_factory=dict)
    """The labels of each namespace."""
    storage: StorageObjects = NO_STORAGE
    devices: DeviceObjects = NO_DEVICES
    gates: Gates = NEWEST
    profiles: Mapping[str, Profile] = field(default_factory=dict)
    """By `schedulerName`."""

    def profile_of(self, pod: PodRules) -> Profile:
        """The pod's profile."""
        return self.profiles.get(pod.profile, NO_PROFILE)


EVERYWHERE = ""


def namespaces_of(wishes: PodWishes) -> frozenset[str]:
    """The namespaces of the pods to which some of the preferences refer, or `EVERYWHERE` alone."""
    if any(not term.namespace_selector.absent for _, term in wishes):
        return frozenset((EVERYWHERE,))
    return frozenset(namespace for _, term in wishes for namespace in term.namespaces)


def read_claim(claim: JSON) -> VolumeClaim:
    """Read a PersistentVolumeClaim."""
    metadata, spec, status = (claim.get(part) or {} for part in ("metadata", "spec", "status"))
    annotations, volume = metadata.get("annotations") or {}, spec.get("volumeName") or ""
    requests = (spec.get("resources") or {}).get("requests") or {}
    return VolumeClaim(
        namespace=metadata.get("namespace", ""),
        name=metadata.get("name", ""),
        uid=metadata.get("uid", ""),
        volume=volume,
        bound=bool(volume) and _BOUND in annotations,
        storage_class=annotations.get(_CLASS, spec.get("storageClassName") or ""),
        size=quantity.rounded_up(requests["storage"]) if "storage" in requests else None,
        modes=frozenset(spec.get("accessModes") or ()),
        volume_mode=spec.get("volumeMode") or "Filesystem",
        attributes_class=spec.get("volumeAttributesClassName") or "",
        selector=read_selector(spec["selector"]) if spec.get("selector") is not None else None,
        selected_node=annotations.get(_SELECTED_NODE),
        lost=status.get("phase") == "Lost",
        deleting=bool(metadata.get("deletionTimestamp")),
        controller=_controller_uid(metadata),
    )


def read_volume(volume: JSON) -> Volume:
    """Read a PersistentVolume."""
    metadata, spec, status = (volume.get(part) or {} for part in ("metadata", "spec", "status"))
    reference, required = spec.get("claimRef"), (spec.get("nodeAffinity") or {}).get("required")
    csi, labels = spec.get("csi") or {}, metadata.get("labels") or {}
    affinity = scheduling.node_terms(required) if required is not None else None
    return Volume(
        name=metadata.get("name", ""),
        labels=labels,
        affinity=affinity,
        claim=tuple(str(reference.get(key) or "") for key in ("namespace", "name", "uid")) if reference else None,  # type: ignore[arg-type]
        storage_class=(metadata.get("annotations") or {}).get(_CLASS, spec.get("storageClassName") or ""),
        size=quantity.rounded_up((spec.get("capacity") or {}).get("storage", 0)),
        modes=frozenset(spec.get("accessModes") or ()),
        volume_mode=spec.get("volumeMode") or "Filesystem",
        attributes_class=spec.get("volumeAttributesClassName") or "",
        available=status.get("phase") == "Available",
        deleting=bool(metadata.get("deletionTimestamp")),
        driver=csi.get("driver", ""),
        handle=csi.get("volumeHandle", ""),
        in_tree=csi_translation.of_volume(spec, labels, affinity),
    )


def read_class(storage_class: JSON) -> StorageClass:
    """Read a StorageClass."""
    topologies = storage_class.get("allowedTopologies")
    return StorageClass(
        name=(storage_class.get("metadata") or {}).get("name", ""),
        provisioner=storage_class.get("provisioner", ""),
        delayed=storage_class.get("volumeBindingMode") == "WaitForFirstConsumer",
        topologies=tuple(map(_topology, topologies)) if topologies else None,
    )


def _topology(term: JSON) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return tuple((e.get("key", ""), tuple(e.get("values") or ())) for e in term.get("matchLabelExpressions") or ())


def read_capacity(capacity: JSON) -> Capacity:
    """Read a CSIStorageCapacity."""
    most = capacity.get("maximumVolumeSize", capacity.get("capacity"))
    return Capacity(
        storage_class=capacity.get("storageClassName", ""),
        nodes=read_selector(capacity.get("nodeTopology")),
        most=quantity.rounded_up(most) if most is not None else None,
    )


_MIGRATED = "storage.alpha.kubernetes.io/migrated-plugins"


def read_csi_node(csi_node: JSON) -> CsiNode:
    """Read a CSINode."""
    drivers = (csi_node.get("spec") or {}).get("drivers") or ()
    counts = ((each.get("name", ""), (each.get("allocatable") or {}).get("count")) for each in drivers)
    migrated = ((csi_node.get("metadata") or {}).get("annotations") or {}).get(_MIGRATED) or ""
    return CsiNode(
        {name: int(count) for name, count in counts if count is not None},
        frozenset(migrated.split(",")) & csi_translation.DRIVERS.keys(),
    )


# -- devices ------------------------------------------------------------------------------------------------------

_CLASS_PREFIX = "deviceclass.resource.kubernetes.io/"


def read_device_claim(claim: JSON) -> DeviceClaim:
    """Read a ResourceClaim."""
    metadata, spec, status = (claim.get(part) or {} for part in ("metadata", "spec", "status"))
    allocation = status.get("allocation")
    selector = (allocation or {}).get("nodeSelector")
    classes, reserved = frozenset(_classes(spec)), status.get("reservedFor")
    ours = names.SHARE_CLASS in classes
    return DeviceClaim(
        namespace=metadata.get("namespace", ""),
        name=metadata.get("name", ""),
        controller=_controller_uid(metadata),
        deleting=bool(metadata.get("deletionTimestamp")),
        allocated=allocation is not None,
        nodes=scheduling.node_terms(selector) if selector is not None else None,
        failed=allocation is not None and _has_failed(allocation, status),
        classes=classes,
        holder=str(reserved[0].get("uid", "")) if reserved and ours else "",
        consumers=len(reserved) if reserved and ours else 0,
        uid=str(metadata.get("uid", "")) if ours else "",
        single=ours and len((spec.get("devices") or {}).get("requests") or ()) == 1,
    )


def _controller_uid(metadata: JSON) -> str:
    """The uid of an object's controller; empty without one."""
    return next((str(o.get("uid", "")) for o in metadata.get("ownerReferences") or () if o.get("controller")), "")


def _classes(spec: JSON) -> Iterator[str]:
    for request in (spec.get("devices") or {}).get("requests") or ():
        for each in (request.get("exactly"), *(request.get("firstAvailable") or ())):
            if each:
                yield str(each.get("deviceClassName", ""))


def _has_failed(allocation: JSON, status: JSON) -> bool:
    """Whether a condition of one of the claim's devices says that it cannot be bound."""
    failures = {
        _device(each): frozenset(each.get("bindingFailureConditions") or ())
        for each in (allocation.get("devices") or {}).get("results") or ()
        if each.get("bindingConditions")
    }
    return any(
        condition.get("status") == "True" and condition.get("type") in failures.get(_device(device), ())
        for device in status.get("devices") or ()
        for condition in device.get("conditions") or ()
    )


def _device(result: JSON) -> tuple[str, str, str]:
    return result.get("driver", ""), result.get("pool", ""), result.get("device", "")


def read_device_class(device_class: JSON) -> str:
    """The extended resource for which a DeviceClass stands; empty if there is none."""
    return str((device_class.get("spec") or {}).get("extendedResourceName") or "")


def extended_resources(devices: DeviceObjects) -> frozenset[str]:
    """
    Extended resources for which DeviceClasses stand; each also has one under its own name. No node has any of our
    class, because the class has no ResourceSlices from which kube-scheduler would take them.
    """
    classes = {name: resource for name, resource in devices.classes.items() if name != names.SHARE_CLASS}
    return frozenset((*(f"{_CLASS_PREFIX}{name}" for name in classes), *filter(None, classes.values())))
