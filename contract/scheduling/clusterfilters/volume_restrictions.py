"""
Volumes that two pods cannot use at once: kube-scheduler's VolumeRestrictions.

A claim that allows one pod only is refused everywhere while any pod has it. A disk that a pod's spec names itself
cannot be attached twice to one node for writing.
"""

from __future__ import annotations

from contract.model import NodeState
from contract.reasons.nodes import Code, Reason
from contract.scheduling.clusterfilters.objects import Check, Cluster, Disk, PodRules
from contract.scheduling.needs import PodNeeds

_NO_CLAIM = Reason(Code.CLAIM, what="that does not exist")
_ONE_POD = Reason(Code.VOLUME_IN_USE)
_DISK = Reason(Code.VOLUME_IN_USE)
_READ_WRITE_ONCE_POD = "ReadWriteOncePod"


def check(pod: PodRules, needs: PodNeeds, cluster: Cluster) -> Check | None:
    """The check of the volumes that the pod cannot share; None if there are none."""
    named = {each.claim for each in pod.volumes if not each.ephemeral}
    claims = {name: cluster.storage.claims.get((pod.namespace, name)) for name in named}
    if None in claims.values():
        return lambda node: _NO_CLAIM
    alone = {name for name, claim in claims.items() if claim is not None and _READ_WRITE_ONCE_POD in claim.modes}
    if not alone and not pod.disks:
        return None
    in_use = any(
        not each.ephemeral and each.claim in alone
        for kind, on_nodes in cluster.pods.get(pod.namespace, {}).items()
        if any(name in cluster.nodes for name in on_nodes)
        for each in kind.volumes
    )
    disks = _disks_in_use(cluster) if pod.disks else {}

    def reason(node: NodeState) -> Reason | None:
        if any(own.conflicts(disk) for disk in disks.get(node.name, ()) for own in pod.disks):
            return _DISK
        return _ONE_POD if in_use else None

    return reason


def _disks_in_use(cluster: Cluster) -> dict[str, list[Disk]]:
    """The disks that pods name themselves, by node."""
    found: dict[str, list[Disk]] = {}
    for kinds in cluster.pods.values():
        for kind, on_nodes in kinds.items():
            for name in on_nodes if kind.disks else ():
                found.setdefault(name, []).extend(kind.disks)
    return found
