"""
Preferred topology spread (`ScheduleAnyway`): kube-scheduler's PodTopologySpread.

A domain's score is the number of matching pods, with a larger weight if there are many domains, because each then has
few pods. A node that lacks the label of some constraint is the worst.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from contract.model import NodeState
from contract.scheduling.clusterfilters import topology_spread
from contract.scheduling.clusterfilters.objects import Cluster, PodRules, SpreadConstraint
from contract.scheduling.needs import PodNeeds
from contract.scheduling.preferences.normalised import MOST

_HOST = "kubernetes.io/hostname"


def scores(pod: PodRules, needs: PodNeeds, cluster: Cluster, nodes: Sequence[NodeState]) -> list[int] | None:
    """100 for the domains with the fewest pods, or for all if there are none; None without such constraints."""
    constraints = pod.prefers.spread
    if not constraints:
        return None
    labelled = [node for node in nodes if _has_all(node, constraints)]
    judged = [(each, _counts(each, pod, needs, cluster, labelled), _weight(each, labelled)) for each in constraints]
    found = {node.name: _score(node, judged) for node in labelled}
    least, most = min(found.values(), default=0), max(found.values(), default=0)
    return [
        0 if node.name not in found else MOST if most == 0 else MOST * (most + least - found[node.name]) // most
        for node in nodes
    ]


_Judged = tuple[SpreadConstraint, Mapping[str, int], float]


def _has_all(node: NodeState, constraints: Sequence[SpreadConstraint]) -> bool:
    return all(constraint.topology_key in node.labels for constraint in constraints)


def _weight(constraint: SpreadConstraint, labelled: Sequence[NodeState]) -> float:
    """The weight of a pod: larger in a topology of many domains."""
    key = constraint.topology_key
    domains = len(labelled) if key == _HOST else len({node.labels[key] for node in labelled})
    return math.log(domains + 2)


def _counts(
    constraint: SpreadConstraint, pod: PodRules, needs: PodNeeds, cluster: Cluster, labelled: Sequence[NodeState]
) -> Mapping[str, int]:
    """The matching pods by domain; by node if each node is a domain, and then regardless of the policies."""
    by_node = _by_node(constraint, pod, cluster)
    if constraint.topology_key == _HOST:
        return by_node
    domains = {node.labels[constraint.topology_key] for node in labelled}
    found, counts = Counter[str](), topology_spread.counting(constraint, needs)
    for name, number in by_node.items():
        node = cluster.nodes.get(name)
        if node is None or not _has_all(node, pod.prefers.spread):
            continue
        domain = node.labels[constraint.topology_key]
        if domain in domains and (counts is None or counts(node)):
            found[domain] += number
    return found


def _by_node(constraint: SpreadConstraint, pod: PodRules, cluster: Cluster) -> Counter[str]:
    found: Counter[str] = Counter()
    for kind, on_nodes in cluster.pods.get(pod.namespace, {}).items():
        if topology_spread.counts_pod(constraint, kind):
            found.update(on_nodes)
    return found


def _score(node: NodeState, judged: Sequence[_Judged]) -> int:
    score = 0.0
    for constraint, counts, weight in judged:
        domain = node.name if constraint.topology_key == _HOST else node.labels[constraint.topology_key]
        score += counts.get(domain, 0) * weight + (constraint.max_skew - 1)
    return _rounded(score)


def _rounded(score: float) -> int:
    """To the nearest whole number, halves up."""
    whole = math.floor(score)
    return whole + (score - whole >= 0.5)
