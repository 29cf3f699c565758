"""
The number of volumes that can be attached to a node: kube-scheduler's NodeVolumeLimits.

CSI volumes are counted by driver and handle, those of unbound claims as volumes to create. As in the original, a volume
that is attached to the node and that no pod there uses counts twice for a new pod that uses it. Disks of cloud
providers count as the CSI volumes that replace them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from contract.model import NodeState
from contract.reasons.nodes import Code, Reason
from contract.scheduling.clusterfilters.csi_translation import DRIVERS
from contract.scheduling.clusterfilters.objects import Check, Cluster, CsiVolume, PodKind, PodRules
from contract.scheduling.needs import PodNeeds

_NO_CLAIM = Reason(Code.CLAIM, what="that does not exist")
_FOREIGN = Reason(Code.CLAIM, what="that belongs to another pod")
_LIMIT = Reason(Code.VOLUME_LIMIT)


def check(pod: PodRules, needs: PodNeeds, cluster: Cluster) -> Check | None:
    """The volumes that the pod adds; None if none of them counts."""
    if not pod.volumes and not pod.inline:
        return None
    for each in pod.volumes:
        claim = cluster.storage.claims.get((pod.namespace, each.claim))
        if claim is None:
            return lambda node: _NO_CLAIM
        if each.ephemeral and claim.controller != pod.uid:
            return lambda node: _FOREIGN
    brought = frozenset(csi_volumes(pod, cluster))
    if not brought:
        return None
    drivers = {driver for driver, _ in brought}
    by_node = cluster.holding if cluster.holding is not None else _holding(cluster)

    def reason(node: NodeState) -> Reason | None:
        limits, there = limits_of(node.name, cluster), by_node.get(node.name, ())
        if not limits:
            return None
        most, own = len(brought) + len(cluster.storage.attached.get(node.name, ())), False
        for other in there:  # thousands, so the counts below are made only for nodes that may be full
            most += len(other.volumes) + len(other.inline)
            own |= other.uid != ""
        if own and any(_is_foreign(other, cluster) for other in there):
            return _FOREIGN
        if all(most <= limits.get(driver, most) for driver in drivers):
            return None
        used = frozenset(volume for o in there for volume in csi_volumes(o, cluster))
        attached = Counter(driver for driver, _ in used | cluster.storage.attached.get(node.name, frozenset()))
        new = Counter(driver for driver, _ in brought - used)
        over = any(attached[driver] + count > limits[driver] for driver, count in new.items() if driver in limits)
        return _LIMIT if over else None

    return reason


def _holding(cluster: Cluster) -> dict[str, list[PodKind]]:
    """The kinds with volumes, by node."""
    found: dict[str, list[PodKind]] = {}
    for kinds in cluster.pods.values():
        for kind, on_nodes in kinds.items():
            for name in on_nodes if kind.volumes or kind.inline else ():
                found.setdefault(name, []).append(kind)
    return found


def limits_of(node: str, cluster: Cluster) -> Mapping[str, int]:
    """The number of volumes of each driver that can be attached to the node; drivers without a limit are not listed."""
    found = cluster.storage.csi_nodes.get(node)
    return found.limits if found is not None else {}


def _is_foreign(pod: PodKind, cluster: Cluster) -> bool:
    """Whether a claim has the name of the one created for the pod, but a different owner."""
    made = (cluster.storage.claims.get((pod.namespace, each.claim)) for each in pod.volumes if each.ephemeral)
    return any(claim is not None and claim.controller != pod.uid for claim in made)


def csi_volumes(pod: PodRules | PodKind, cluster: Cluster) -> Iterator[CsiVolume]:
    """The volumes of a pod that count against a limit."""
    yield from pod.inline
    for each in pod.volumes:
        claim = cluster.storage.claims.get((pod.namespace, each.claim))
        if claim is None:
            continue
        volume = cluster.storage.volumes.get(claim.volume) if claim.volume else None
        if volume is not None:
            disk = volume.in_tree
            driver, handle = (disk.driver, disk.handle) if disk is not None else (volume.driver, volume.handle)
            if driver and handle:
                yield driver, handle
            continue
        storage_class = cluster.storage.classes.get(claim.storage_class)
        if storage_class is not None:
            driver = DRIVERS.get(storage_class.provisioner, storage_class.provisioner)
            if driver:
                yield driver, f"to be made for {claim.namespace}/{claim.name}"
