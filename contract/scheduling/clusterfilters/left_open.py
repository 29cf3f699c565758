"""
The checks that remain for kube-scheduler about a pod on a node that all filters accept.

No filter checks a pod that has `spec.nodeName`, so a pod may be bound that way only if no check remains. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from contract.model import NodeState
from contract.scheduling.clusterfilters import pod_affinity, resource_claims, volume_binding, volume_limits
from contract.scheduling.clusterfilters.objects import Cluster, PodRules
from contract.scheduling.needs import PodNeeds
from contract.scheduling.nodefilters.resources import BY_CLAIM, amount_of

_ALONE = "ReadWriteOncePod"


class OpenRule(StrEnum):
    """A rule that only kube-scheduler can check for the pod."""

    CLAIM = "a ResourceClaim that is not allocated"
    EXTENDED_RESOURCE = "an extended resource of a DeviceClass"


@dataclass(frozen=True, slots=True)
class LeftOpen:
    """`NOTHING` if the answer is complete and stays correct."""

    unevaluated: frozenset[OpenRule] = frozenset()
    """The rules that were not checked."""
    binding: bool = False
    """The binding of the pod requires work: a volume is bound or created, or devices are allocated."""
    changing: bool = False
    """A pod that kube-scheduler binds at the same time may make the node unsuitable."""


NOTHING = LeftOpen()


def left_open(pod: PodRules, needs: PodNeeds, cluster: Cluster, node: NodeState) -> LeftOpen:
    """The checks that remain for the pod on this node."""
    unevaluated = frozenset(_unevaluated(pod, needs, cluster, node))
    return LeftOpen(
        unevaluated=unevaluated,
        binding=bool(unevaluated or volume_binding.unbound_claims(pod, cluster)),
        changing=_may_change(pod, needs, cluster, node),
    )


def _unevaluated(pod: PodRules, needs: PodNeeds, cluster: Cluster, node: NodeState) -> set[OpenRule]:
    found = set()
    if resource_claims.unallocated(pod, cluster):
        found.add(OpenRule.CLAIM)
    if any(amount_of(node.allocatable.scalars, name) == BY_CLAIM for name, _ in needs.compute.scalars or ()):
        found.add(OpenRule.EXTENDED_RESOURCE)
    return found


def _may_change(pod: PodRules, needs: PodNeeds, cluster: Cluster, node: NodeState) -> bool:
    """Whether other pods matter: by affinity, spread, an exclusive disk or claim, or the node's volumes."""
    if pod.affinity or pod.anti_affinity or pod.spread or pod.disks:
        return True
    claims = (cluster.storage.claims.get((pod.namespace, each.claim)) for each in pod.volumes)
    if any(claim is not None and _ALONE in claim.modes for claim in claims):
        return True
    limited = volume_limits.limits_of(node.name, cluster)
    if limited and any(driver in limited for driver, _ in volume_limits.csi_volumes(pod, cluster)):
        return True
    return pod_affinity.check(pod, needs, cluster) is not None
