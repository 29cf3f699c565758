"""Taints of the effect PreferNoSchedule that the pod does not tolerate, the fewer the better: TaintToleration."""

from __future__ import annotations

from collections.abc import Sequence

from contract.model import NodeState
from contract.scheduling.clusterfilters.objects import Cluster, PodRules
from contract.scheduling.needs import PodNeeds
from contract.scheduling.preferences import normalised

SOFT = "PreferNoSchedule"


def scores(pod: PodRules, needs: PodNeeds, cluster: Cluster, nodes: Sequence[NodeState]) -> list[int] | None:
    """100 for nodes without such a taint; None if no node has any."""
    if not any(taint.effect == SOFT for node in nodes for taint in node.taints):
        return None
    return normalised.by_largest([_untolerated(needs, node) for node in nodes], reverse=True)


def _untolerated(needs: PodNeeds, node: NodeState) -> int:
    soft = (taint for taint in node.taints if taint.effect == SOFT)
    return sum(not any(each.tolerates(taint) for each in needs.tolerations) for taint in soft)
