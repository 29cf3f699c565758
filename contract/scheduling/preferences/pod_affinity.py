"""
Preferred affinity and anti-affinity between pods, in both directions: kube-scheduler's InterPodAffinity.

Each term of the pod counts its weight for each pod to which it applies, in that pod's domain. Each preferred term of a
pod on a node that applies to this one counts there too, and so does its required affinity, with the weight 1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from contract.model import NodeState
from contract.scheduling.clusterfilters.objects import EVERYWHERE, Cluster, PodKind, PodRules, PodTerm
from contract.scheduling.needs import PodNeeds
from contract.scheduling.preferences.normalised import MOST

MOST_COMPARED = 100_000
"""The most pairs of a term and a kind of pod, or of another pod's preferences and this pod, that are checked for each
direction: a fraction of a second. Other tenants choose their number; pairs beyond the bound do not count.
"""

_Weights = Mapping[str, Counter[str]]
"""By topology key and domain."""


def scores(
    pod: PodRules, needs: PodNeeds, cluster: Cluster, nodes: Sequence[NodeState], most_compared: int = MOST_COMPARED
) -> list[int] | None:
    """100 for the node whose domains weigh most, 0 for the one whose domains weigh least; None if none has a weight."""
    weights = _weights(pod, cluster, most_compared)
    if not weights:
        return None
    found = [sum(by[node.labels[key]] for key, by in weights.items() if key in node.labels) for node in nodes]
    least, most = min(found), max(found)
    # In the original's floating point, so that rounding is the same.
    return [int(MOST * ((score - least) / (most - least))) if most > least else 0 for score in found]


def _weights(pod: PodRules, cluster: Cluster, most: int) -> _Weights:
    found: dict[str, Counter[str]] = {}
    for term, weight, on_nodes in (*_own(pod, cluster, most), *_of_others(pod, cluster, most)):
        for name, number in on_nodes.items():
            node = cluster.nodes.get(name)
            if node is not None and term.topology_key in node.labels:
                found.setdefault(term.topology_key, Counter())[node.labels[term.topology_key]] += weight * number
    return found


_Weighed = tuple[PodTerm, int, Mapping[str, int]]
"""A term, its weight, and the number of pods that count on each node."""


def _own(pod: PodRules, cluster: Cluster, most: int) -> Iterator[_Weighed]:
    """The pod's preferences about existing pods."""
    for weight, term, kind, on_nodes in islice(_pairs(pod, cluster), most):
        if term.selector.matches(kind.labels):
            yield term, weight, on_nodes


def _pairs(pod: PodRules, cluster: Cluster) -> Iterator[tuple[int, PodTerm, PodKind, Mapping[str, int]]]:
    for weight, term in pod.prefers.pods:
        for namespace, kinds in cluster.pods.items():
            if term.selects_namespace(namespace, cluster.namespaces.get(namespace, {})):
                for kind, on_nodes in kinds.items():
                    yield weight, term, kind, on_nodes


def _of_others(pod: PodRules, cluster: Cluster, most: int) -> Iterator[_Weighed]:
    """The existing pods' preferences about the pod."""
    of_namespace = cluster.namespaces.get(pod.namespace, {})
    for weight, term, on_nodes in islice(_wishes(pod, cluster), most):
        if term.matches(pod.namespace, of_namespace, pod.labels):
            yield term, weight, on_nodes


def _wishes(pod: PodRules, cluster: Cluster) -> Iterator[tuple[int, PodTerm, Mapping[str, int]]]:
    for group in (pod.namespace, EVERYWHERE):
        for wishes, on_nodes in cluster.wishing.get(group, {}).items():
            for weight, term in wishes:
                yield weight, term, on_nodes
