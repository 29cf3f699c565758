"""
Hard topology spread constraints: kube-scheduler's PodTopologySpread.

It reads the pod's spec without our pin. With the pin and `nodeAffinityPolicy: Honor`, the default, only the pinned node
would count, and each node would pass (pkg/scheduler/framework/plugins/podtopologyspread of 1.36).
"""

from __future__ import annotations

from collections.abc import Callable, Set

from contract.model import NodeState
from contract.reasons.nodes import Code, Reason
from contract.scheduling import needs as scheduling
from contract.scheduling.clusterfilters.objects import Check, Cluster, PodKind, PodRules, SpreadConstraint
from contract.scheduling.needs import PodNeeds

_NO_LABEL = Reason(Code.TOPOLOGY_LABEL)
_SKEW = Reason(Code.TOPOLOGY_SPREAD)


def check(pod: PodRules, needs: PodNeeds, cluster: Cluster) -> Check | None:
    """The pod's constraints; None if none of them must hold."""
    if not pod.spread:
        return None
    keys = frozenset(constraint.topology_key for constraint in pod.spread)
    full = [(constraint.topology_key, _full(constraint, keys, pod, needs, cluster)) for constraint in pod.spread]

    def reason(node: NodeState) -> Reason | None:
        for key, domains in full:
            value = node.labels.get(key)
            if value is None:
                return _NO_LABEL
            if value in domains:
                return _SKEW
        return None

    return reason


def _full(
    constraint: SpreadConstraint, keys: Set[str], pod: PodRules, needs: PodNeeds, cluster: Cluster
) -> frozenset[str]:
    """The domains that must not get another pod. A domain without a node that counts has no pods that count."""
    counts = _domain_counts(constraint, keys, pod.namespace, needs, cluster)
    least = 0 if len(counts) < constraint.min_domains else min(counts.values(), default=0)
    room = constraint.max_skew + least - constraint.selector.matches(pod.labels)
    return frozenset(domain for domain, number in counts.items() if number > room)


def _domain_counts(
    constraint: SpreadConstraint, keys: Set[str], namespace: str, needs: PodNeeds, cluster: Cluster
) -> dict[str, int]:
    """
    The matching pods in each domain of nodes that count, including domains without any. `keys`: the topology keys of
    all constraints of the pod, because a node that lacks one of them does not count.
    """
    key, counts = constraint.topology_key, counting(constraint, needs)
    labels = (node.labels for node in cluster.nodes.values() if counts is None or counts(node))
    found = dict.fromkeys((having[key] for having in labels if having.keys() >= keys), 0)
    for kind, on_nodes in cluster.pods.get(namespace, {}).items():
        if counts_pod(constraint, kind):
            for name, number in on_nodes.items():
                node = cluster.nodes.get(name)
                if node is not None and node.labels.keys() >= keys and (counts is None or counts(node)):
                    found[node.labels[key]] += number
    return found


def counts_pod(constraint: SpreadConstraint, kind: PodKind) -> bool:
    """Whether pods of the kind count: a selector that selects everything counts none, as in the original."""
    if kind.terminating or not constraint.selector.expressions:
        return False
    return constraint.selector.matches(kind.labels)


def counting(constraint: SpreadConstraint, needs: PodNeeds) -> Callable[[NodeState], bool] | None:
    """Whether a node counts by the constraint's policies; None if every node counts."""
    selected = scheduling.selecting(needs) if constraint.node_affinity == "Honor" else None
    if constraint.node_taints != "Honor":
        return selected

    def counts(node: NodeState) -> bool:
        if selected is not None and not selected(node):
            return False
        return scheduling.untolerated(node, needs.tolerations) is None

    return counts
