"""
Claims, volumes, devices and what belongs to them, as filters read them.

They are watched only once a pod that requests a share needs them; such a pod waits until all of them were listed. Pure;
not thread-safe: one owner calls it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from allocator.neighbours.followed import Followed, FollowedKind
from contract import kinds
from contract.model import NodeState
from contract.reasons.base import Cure
from contract.reasons.nodes import Reason
from contract.scheduling.clusterfilters import objects, volume_binding
from contract.scheduling.clusterfilters.objects import (
    Cluster,
    DeviceObjects,
    PodRules,
    StorageObjects,
    Volume,
    VolumeClaim,
)
from contract.scheduling.clusterfilters.volume_binding import VolumePlan

JSON = Mapping[str, Any]
_CORE, _STORAGE, _DEVICES = "v1", "storage.k8s.io/v1", "resource.k8s.io/v1"


@dataclass(frozen=True, slots=True)
class Attachment:
    """A VolumeAttachment: a volume that is attached to a node, or is about to be."""

    driver: str
    node: str
    volume: str


def _attachment(document: JSON) -> Attachment:
    spec = document.get("spec") or {}
    volume = (spec.get("source") or {}).get("persistentVolumeName") or ""
    return Attachment(spec.get("attacher", ""), spec.get("nodeName", ""), volume)


def _publishes_capacity(driver: JSON) -> bool:
    return bool((driver.get("spec") or {}).get("storageCapacity"))


KINDS = {
    kind.plural: kind
    for kind in (
        FollowedKind(_CORE, kinds.PERSISTENTVOLUMECLAIMS, objects.read_claim, Cure.VOLUME_CLAIM),
        FollowedKind(_CORE, kinds.PERSISTENTVOLUMES, objects.read_volume, Cure.VOLUME),
        FollowedKind(_STORAGE, kinds.STORAGECLASSES, objects.read_class, Cure.CLASS),
        FollowedKind(_STORAGE, kinds.CSINODES, objects.read_csi_node, Cure.CSI_NODE),
        FollowedKind(_STORAGE, kinds.CSIDRIVERS, _publishes_capacity, Cure.CSI_DRIVER),
        FollowedKind(_STORAGE, kinds.CSISTORAGECAPACITIES, objects.read_capacity, Cure.CAPACITY),
        FollowedKind(_STORAGE, kinds.VOLUMEATTACHMENTS, _attachment, Cure.ATTACHMENT),
    )
}
"""Every kind that the filters of volumes read, by its plural."""
DEVICE_KINDS = {
    kind.plural: kind
    for kind in (
        FollowedKind(_DEVICES, kinds.DEVICE_CLAIMS, objects.read_device_claim, Cure.DEVICE_CLAIM),
        FollowedKind(_DEVICES, kinds.DEVICECLASSES, objects.read_device_class, Cure.DEVICE_CLASS),
    )
}
"""Every kind that the filter of ResourceClaims reads, by its plural; each is followed by itself."""


class Storage(Followed):
    """What was read of each kind. Wanted once a pod that requests a share has a claim."""

    def __init__(self, cures: set[Cure]) -> None:
        super().__init__(KINDS, cures)
        self._objects = StorageObjects()
        self._made_at = 0

    # -- what filters read ----------------------------------------------------------------------------------------

    def objects(self) -> StorageObjects:
        """What filters read, made again once something has changed."""
        if self._made_at != self.changes:
            self._objects = self._made()
            self._made_at = self.changes
        return self._objects

    def _made(self) -> StorageObjects:
        volumes = self._by_name("persistentvolumes")
        drivers = self._found["csidrivers"].items()
        return StorageObjects(
            claims=dict(self._found["persistentvolumeclaims"]),
            volumes=volumes,
            classes=self._by_name("storageclasses"),
            csi_nodes=self._by_name("csinodes"),
            attached=_attached(self._found["volumeattachments"].values(), volumes),
            capacity_tracked=frozenset(name for (_, name), publishes in drivers if publishes),
            capacities=tuple(self._found["csistoragecapacities"].values()),
        )

    def _by_name(self, plural: str) -> dict[str, Any]:
        return {name: found for (_, name), found in self._found[plural].items()}


def _attached(
    attachments: Iterable[Attachment], volumes: Mapping[str, Volume]
) -> dict[str, frozenset[tuple[str, str]]]:
    """Driver and handle of the CSI volumes that are attached, by node."""
    found: dict[str, set[tuple[str, str]]] = {}
    for each in attachments:
        volume = volumes.get(each.volume)
        if each.driver and volume is not None and volume.driver:
            found.setdefault(each.node, set()).add((each.driver, volume.handle))
    return {node: frozenset(attached) for node, attached in found.items()}


class Devices:
    """
    ResourceClaims, wanted once a pod that requests a share names one of another driver; and DeviceClasses, also once
    one requests an extended resource.
    """

    def __init__(self, cures: set[Cure]) -> None:
        self.claims, self.classes = (Followed({plural: kind}, cures) for plural, kind in DEVICE_KINDS.items())
        self._objects = DeviceObjects()
        self._made_at = 0

    @property
    def changes(self) -> int:
        """How often something has changed."""
        return self.claims.changes + self.classes.changes

    def of_kind(self, plural: str) -> Followed:
        """Where objects of this kind are kept."""
        return self.claims if plural == kinds.DEVICE_CLAIMS.plural else self.classes

    def objects(self) -> DeviceObjects:
        """What filters read, made again once something has changed."""
        if self._made_at != self.changes:
            claims, classes = (self.of_kind(plural).found(plural) for plural in DEVICE_KINDS)
            self._objects = DeviceObjects(claims, {name: found for (_, name), found in classes.items()})
            self._made_at = self.changes
        return self._objects


# -- what is assumed ----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Assumed:
    rules: PodRules
    node: str
    plan: VolumePlan | None = None
    """None until claims and volumes are known."""


class AssumedVolumes:
    """
    Volumes that pods are about to get: what was decided for a claim counts for later decisions.

    A pod that is placed and has a claim without a volume is bound by kube-scheduler a moment later, and only then its
    claim shows the volume, or the node for which one is made. Until then the volume counts as the claim's, as it does
    for kube-scheduler itself. What the claim shows takes precedence over what was assumed. Pods are known by the id of
    the allocation with which they were given their node. Not thread-safe: one owner calls it.
    """

    def __init__(self, cures: set[Cure]) -> None:
        """`cures`: what has changed is added to it."""
        self._assumed: dict[str, _Assumed] = {}
        self._cures = cures
        self.changes = 0
        """How often an assumption was made or dropped."""

    def put(self, key: str, rules: PodRules, node: str) -> None:
        """A pod was given a node and is not bound yet. Putting it again changes nothing."""
        if rules.volumes and key not in self._assumed:
            self._assumed[key] = _Assumed(rules, node)
            self._changed()

    def drop(self, key: str) -> None:
        """The pod is bound, or will not be."""
        if self._assumed and self._assumed.pop(key, None) is not None:
            self._changed()

    def _changed(self) -> None:
        self.changes += 1
        self._cures.add(Cure.VOLUME)

    def over(self, storage: StorageObjects, nodes: Mapping[str, NodeState]) -> StorageObjects:
        """Claims and volumes as they will be once all that is assumed is done."""
        for each in self._assumed.values():
            node = nodes.get(each.node)
            if node is not None:
                storage = _with(each, node, storage)
        return storage


def _with(assumed: _Assumed, node: NodeState, storage: StorageObjects) -> StorageObjects:
    unbound = volume_binding.unbound_claims(assumed.rules, Cluster(storage=storage))
    if not unbound:
        return storage
    if assumed.plan is None or not _is_possible(assumed.plan, storage):
        planned = volume_binding.plan(unbound, node, Cluster(storage=storage))
        if isinstance(planned, Reason):
            return storage  # the pod will not be bound there; nothing is taken meanwhile
        assumed.plan = planned
    volumes, claims = dict(storage.volumes), dict(storage.claims)
    for claim in unbound:
        key = claim.namespace, claim.name
        taken = assumed.plan.taken.get(key)
        if claim.volume:
            continue  # the claim itself shows what it has
        if taken is not None and volumes[taken].claim is None:
            volumes[taken] = _given(volumes[taken], claim)
        elif key in assumed.plan.made and claim.selected_node is None:
            claims[key] = replace(claim, selected_node=node.name)
    return replace(storage, volumes=volumes, claims=claims)


def _is_possible(plan: VolumePlan, storage: StorageObjects) -> bool:
    """Whether the volumes of the plan exist and belong to no other claim."""
    found = ((storage.volumes.get(name), storage.claims.get(claim)) for claim, name in plan.taken.items())
    return all(
        volume is not None and (volume.claim is None or (claim is not None and volume.is_for(claim)))
        for volume, claim in found
    )


def _given(volume: Volume, claim: VolumeClaim) -> Volume:
    return replace(volume, claim=(claim.namespace, claim.name, claim.uid))
