"""
Claims and their present or possible volumes: kube-scheduler's VolumeBinding.

A bound claim ties the pod to the nodes that reach its volume. A claim that waits for its first consumer takes an
existing volume, or has one created for the node. As in the original, volumes are chosen greedily, the smallest claim
first (pkg/scheduler/framework/plugins/volumebinding of 1.36), and each claim is compared with the capacity by itself. A
bound disk of a cloud provider counts as the CSI volume that replaces it, on nodes whose CSINode lists its plugin.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from contract.model import NodeState
from contract.reasons.nodes import Code, Reason
from contract.scheduling import needs as scheduling
from contract.scheduling.clusterfilters.objects import (
    Check,
    Cluster,
    PodRules,
    PodVolume,
    StorageClass,
    Volume,
    VolumeClaim,
)
from contract.scheduling.needs import PodNeeds

_UNBOUND = Reason(Code.CLAIM, what="that is not bound yet")
_NO_VOLUME = Reason(Code.CLAIM, what="whose volume does not exist")
_ELSEWHERE = Reason(Code.VOLUME)
_NOT_MADE = Reason(Code.NO_VOLUME)
_NO_ROOM = Reason(Code.STORAGE_CAPACITY)
_NO_PROVISIONER = ("", "kubernetes.io/no-provisioner")
Reaches = Callable[[NodeState], bool]


def check(pod: PodRules, needs: PodNeeds, cluster: Cluster) -> Check | None:
    """The requirements of the pod's claims for a node; None for a pod without claims."""
    if not pod.volumes:
        return None
    claims: list[VolumeClaim] = []
    for volume in pod.volumes:
        claim = cluster.storage.claims.get((pod.namespace, volume.claim))
        wrong = unusable(claim, volume, pod)
        if claim is None or wrong is not None:
            return lambda node: wrong
        claims.append(claim)
    unbound = [claim for claim in claims if not claim.bound]
    if any(claim.volume or not _delayed(claim, cluster) for claim in unbound):
        return lambda node: _UNBOUND
    volumes = [cluster.storage.volumes.get(claim.volume) for claim in claims if claim.bound]
    reached = [None if volume is None else _reaching(volume, cluster) for volume in volumes]

    def reason(node: NodeState) -> Reason | None:
        for reaches in reached:
            if reaches is None:
                return _NO_VOLUME
            if not reaches(node):
                return _ELSEWHERE
        if not unbound:
            return None
        planned = plan(unbound, node, cluster)
        return planned if isinstance(planned, Reason) else None

    return reason


def unusable(claim: VolumeClaim | None, volume: PodVolume, pod: PodRules) -> Reason | None:
    """Why the pod cannot use the claim of its volume on any node; None if it can."""
    if claim is None:
        return Reason(Code.CLAIM, what="that does not exist")
    if claim.lost:
        return Reason(Code.CLAIM, what="that has lost its volume")
    if claim.deleting:
        return Reason(Code.CLAIM, what="that is being deleted")
    if volume.ephemeral and claim.controller != pod.uid:
        return Reason(Code.CLAIM, what="that belongs to another pod")
    return None


def unbound_claims(pod: PodRules, cluster: Cluster) -> list[VolumeClaim]:
    """The pod's claims for which a volume is bound or created once the pod has a node."""
    found = (cluster.storage.claims.get((pod.namespace, each.claim)) for each in pod.volumes)
    return [claim for claim in found if claim is not None and not claim.bound]


def _reaching(volume: Volume, cluster: Cluster) -> Reaches:
    """Whether a node reaches a volume that is bound."""
    plain, disk = _anywhere if volume.affinity is None else scheduling.terms_holding(volume.affinity), volume.in_tree
    if disk is None:
        return plain
    as_csi = _anywhere if disk.affinity is None else scheduling.terms_holding(disk.affinity)

    def reaches(node: NodeState) -> bool:
        csi_node = cluster.storage.csi_nodes.get(node.name)
        if csi_node is None or disk.plugin not in csi_node.migrated:
            return plain(node)
        return disk.handle is not None and as_csi(node)

    return reaches


def _anywhere(_: NodeState) -> bool:
    return True


def _delayed(claim: VolumeClaim, cluster: Cluster) -> bool:
    storage_class = cluster.storage.classes.get(claim.storage_class)
    return storage_class is not None and storage_class.delayed


def _reaches(node: NodeState, volume: Volume) -> bool:
    return volume.affinity is None or scheduling.any_term(volume.affinity, node)


@dataclass(frozen=True, slots=True)
class VolumePlan:
    """The plan for claims without a volume on a node, by the claim's namespace and name."""

    taken: Mapping[tuple[str, str], str]
    """The volume that each takes."""
    made: frozenset[tuple[str, str]]
    """Claims for which a volume is created."""


def plan(claims: list[VolumeClaim], node: NodeState, cluster: Cluster) -> VolumePlan | Reason:
    """The volumes that the claims take on the node, and the claims that get a new one; or why that is impossible."""
    if any(claim.selected_node is not None and claim.selected_node != node.name for claim in claims):
        return _NOT_MADE
    making = [claim for claim in claims if claim.selected_node is not None]
    taken: dict[tuple[str, str], str] = {}
    for claim in sorted((c for c in claims if c.selected_node is None), key=lambda c: c.size or 0):
        volume = _matching(claim, node, cluster, taken.values())
        if volume is None:
            making.append(claim)
        else:
            taken[claim.namespace, claim.name] = volume.name
    for claim in making:
        storage_class = cluster.storage.classes.get(claim.storage_class)
        reason = _NOT_MADE if storage_class is None else _reason_of_making(claim, storage_class, node, cluster)
        if reason is not None:
            return reason
    return VolumePlan(taken, frozenset((claim.namespace, claim.name) for claim in making))


def _matching(claim: VolumeClaim, node: NodeState, cluster: Cluster, chosen: Collection[str]) -> Volume | None:
    """The volume that the claim takes on this node: the one that was created for it, else the smallest that fits."""
    smallest: Volume | None = None
    for volume in cluster.storage.volumes.values():
        if volume.name in chosen or volume.storage_class != claim.storage_class or not _holds(volume, claim):
            continue
        if volume.is_for(claim):
            return volume if _reaches(node, volume) else None
        if volume.claim is None and _is_free_for(volume, claim) and _reaches(node, volume):
            smallest = volume if smallest is None or volume.size < smallest.size else smallest
    return smallest


def _holds(volume: Volume, claim: VolumeClaim) -> bool:
    return (
        volume.size >= (claim.size or 0)
        and volume.volume_mode == claim.volume_mode
        and volume.attributes_class == claim.attributes_class
        and not volume.deleting
    )


def _is_free_for(volume: Volume, claim: VolumeClaim) -> bool:
    if not volume.available or not claim.modes <= volume.modes:
        return False
    return claim.selector is None or claim.selector.matches(volume.labels)


def _reason_of_making(
    claim: VolumeClaim, storage_class: StorageClass, node: NodeState, cluster: Cluster
) -> Reason | None:
    if storage_class.provisioner in _NO_PROVISIONER:
        return _NOT_MADE
    if storage_class.topologies is not None and not any(
        term and all(node.labels.get(key) in values for key, values in term) for term in storage_class.topologies
    ):
        return _NOT_MADE
    if claim.size is None or storage_class.provisioner not in cluster.storage.capacity_tracked:
        return None
    enough = any(
        each.storage_class == storage_class.name
        and each.most is not None
        and each.most >= claim.size
        and each.nodes.matches(node.labels)
        for each in cluster.storage.capacities
    )
    return None if enough else _NO_ROOM
