"""Preferred node affinity, the pod's and the profile's: kube-scheduler's NodeAffinity."""

from __future__ import annotations

from collections.abc import Sequence

from contract.model import NodeState
from contract.scheduling.clusterfilters.objects import Cluster, PodRules
from contract.scheduling.needs import PodNeeds, term_holds
from contract.scheduling.preferences import normalised


def scores(pod: PodRules, needs: PodNeeds, cluster: Cluster, nodes: Sequence[NodeState]) -> list[int] | None:
    """The sum of the weights of the terms that hold on each node; None without terms."""
    wishes = (*pod.prefers.nodes, *cluster.profile_of(pod).added_wishes)
    if not wishes:
        return None
    return normalised.by_largest([sum(weight for weight, term in wishes if term_holds(term, node)) for node in nodes])
