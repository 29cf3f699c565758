"""
A profile's requirements for nodes in addition to the pod's affinity: `addedAffinity` of kube-scheduler's NodeAffinity.

The pod's own affinity is checked with the other filters of one node. As in the original, the added affinity does not
decide which nodes count for topology spread.
"""

from __future__ import annotations

from contract.model import NodeState
from contract.reasons.nodes import Code, Reason
from contract.scheduling import needs as scheduling
from contract.scheduling.clusterfilters.objects import Check, Cluster, PodRules
from contract.scheduling.needs import PodNeeds

_NOT_ADDED = Reason(Code.ADDED_AFFINITY)


def check(pod: PodRules, needs: PodNeeds, cluster: Cluster) -> Check | None:
    """The terms of the pod's profile; None if it has none."""
    terms = cluster.profile_of(pod).added_affinity
    if terms is None:
        return None

    def reason(node: NodeState) -> Reason | None:
        return None if scheduling.any_term(terms, node) else _NOT_ADDED

    return reason
