"""
Hard topology spread constraints: kube-scheduler's PodTopologySpread.

It is judged by the pod's spec without our pin: by `nodeAffinityPolicy: Honor`, which is the default, only the pinned
node would count, and each node would pass (pkg/scheduler/framework/plugins/podtopologyspread of 1.36).
"""

from __future__ import annotations

from collections import Counter

from contract.model import NodeState
from contract.reasons.nodes import Code, Reason
from contract.scheduling import needs as scheduling
from contract.scheduling.clusterfilters.objects import Check, Cluster, PodKind, PodRules, SpreadConstraint
from contract.scheduling.needs import PodNeeds

_NO_LABEL = Reason(Code.TOPOLOGY_LABEL)
_SKEW = Reason(Code.TOPOLOGY_SPREAD)


def check(pod: PodRules, needs: PodNeeds, cluster: Cluster) -> Check | None:
    """The pod's constraints; None where it has none that must hold."""
    if not pod.spread:
        return None
    judged = [(constraint, counts, _least(constraint, counts)) for constraint, counts in _counts(pod, needs, cluster)]

    def reason(node: NodeState) -> Reason | None:
        for constraint, counts, least in judged:
            value = node.labels.get(constraint.topology_key)
            if value is None:
                return _NO_LABEL
            own = constraint.selector.matches(pod.labels)
            if counts[value] + own - least > constraint.max_skew:
                return _SKEW
        return None

    return reason


def _counts(pod: PodRules, needs: PodNeeds, cluster: Cluster) -> list[tuple[SpreadConstraint, Counter[str]]]:
    """Per constraint the matching pods in each domain that counts, with those that have none."""
    found: list[Counter[str]] = [Counter() for _ in pod.spread]
    counted: list[dict[str, str]] = [{} for _ in pod.spread]  # the domain of each node that counts
    for node in cluster.nodes.values():
        if all(constraint.topology_key in node.labels for constraint in pod.spread):
            for at, constraint in enumerate(pod.spread):
                if counts_node(constraint, needs, node):
                    counted[at][node.name] = node.labels[constraint.topology_key]
                    found[at][node.labels[constraint.topology_key]] += 0
    for kind, on_nodes in cluster.pods.get(pod.namespace, {}).items():
        for at, constraint in enumerate(pod.spread):
            if counts_pod(constraint, kind):
                for node_name, number in on_nodes.items():
                    if node_name in counted[at]:
                        found[at][counted[at][node_name]] += number
    return list(zip(pod.spread, found, strict=True))


def counts_pod(constraint: SpreadConstraint, kind: PodKind) -> bool:
    """Whether pods of the kind count: a selector that selects everything counts none, as in the original."""
    if kind.terminating or not constraint.selector.expressions:
        return False
    return constraint.selector.matches(kind.labels)


def counts_node(constraint: SpreadConstraint, needs: PodNeeds, node: NodeState) -> bool:
    """Whether the node counts by the constraint's policies."""
    if constraint.node_affinity == "Honor" and not scheduling.selects(needs, node):
        return False
    return constraint.node_taints != "Honor" or scheduling.untolerated(node, needs.tolerations) is None


def _least(constraint: SpreadConstraint, counts: Counter[str]) -> int:
    """The fewest pods of any domain; 0 while there are fewer domains than the constraint wants."""
    return 0 if len(counts) < constraint.min_domains else min(counts.values(), default=0)
