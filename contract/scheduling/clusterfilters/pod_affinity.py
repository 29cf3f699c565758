"""
Affinity and anti-affinity between pods: kube-scheduler's InterPodAffinity.

Its three rules (pkg/scheduler/framework/plugins/interpodaffinity/filtering.go of 1.36): each required term of the pod's
affinity has a pod in the node's domain; no pod of a term of its anti-affinity is in the node's domain; and no pod there
has an anti-affinity that applies to this pod.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from contract.model import NodeState
from contract.reasons.nodes import Code, Reason
from contract.scheduling.clusterfilters.objects import Check, Cluster, PodKind, PodRules, PodTerm
from contract.scheduling.needs import PodNeeds

_AFFINITY = Reason(Code.POD_AFFINITY)
_ANTI_AFFINITY = Reason(Code.POD_ANTI_AFFINITY)

Domain = tuple[str, str]
"""A node label: its key and its value."""


def check(pod: PodRules, needs: PodNeeds, cluster: Cluster) -> Check | None:
    """The three rules for this pod; None if no term of any pod concerns it."""
    excluded = _by_key((*_excluding(pod, cluster), *(d for term in pod.anti_affinity for d in _holding(term, cluster))))
    if not pod.affinity:
        return _check_of_excluded(excluded) if excluded else None
    attracting = _attracting(pod, cluster)
    first_of_its_kind = not attracting and _means(pod.affinity, pod, cluster)

    def reason(node: NodeState) -> Reason | None:
        if not all(term.topology_key in node.labels for term in pod.affinity):
            return _AFFINITY
        present = all(attracting[_domain(term, node)] for term in pod.affinity)
        if not present and not first_of_its_kind:
            return _AFFINITY
        return apart(node)

    apart = _check_of_excluded(excluded)
    return reason


def _check_of_excluded(domains: Mapping[str, frozenset[str]]) -> Check:
    """The second and the third rule. A node without a key is in none of its domains."""

    def reason(node: NodeState) -> Reason | None:
        for key, values in domains.items():
            if node.labels.get(key) in values:
                return _ANTI_AFFINITY
        return None

    return reason


def _by_key(domains: Iterable[Domain]) -> dict[str, frozenset[str]]:
    found: dict[str, set[str]] = {}
    for key, value in domains:
        found.setdefault(key, set()).add(value)
    return {key: frozenset(values) for key, values in found.items()}


def _domain(term: PodTerm, node: NodeState) -> Domain:
    """The node's domain in a term whose key the node has."""
    return term.topology_key, node.labels[term.topology_key]


def _attracting(pod: PodRules, cluster: Cluster) -> Counter[Domain]:
    """The domains of the pods that match all terms of the pod's affinity at once, with their number."""
    found: Counter[Domain] = Counter()
    if pod.affinity:
        for on_nodes in _matching(pod.affinity, cluster):
            for node in _nodes(on_nodes, cluster):
                found.update(_domain(term, node) for term in pod.affinity if term.topology_key in node.labels)
    return found


def _holding(term: PodTerm, cluster: Cluster) -> frozenset[Domain]:
    """The domains with a pod to which the term applies."""
    return frozenset(
        _domain(term, node)
        for on_nodes in _matching((term,), cluster)
        for node in _nodes(on_nodes, cluster)
        if term.topology_key in node.labels
    )


def _excluding(pod: PodRules, cluster: Cluster) -> frozenset[Domain]:
    """The domains with a pod whose anti-affinity excludes this one."""
    return frozenset(
        _domain(term, node)
        for other, on_nodes in cluster.repelling.items()
        for term in other.anti_affinity
        if _means((term,), pod, cluster)
        for node in _nodes(on_nodes, cluster)
        if term.topology_key in node.labels
    )


def _matching(terms: tuple[PodTerm, ...], cluster: Cluster) -> Iterator[Mapping[str, int]]:
    """The nodes of the pods to which all of the terms apply."""
    for namespace, kinds in cluster.pods.items():
        of_namespace = cluster.namespaces.get(namespace, {})
        if all(term.selects_namespace(namespace, of_namespace) for term in terms):
            for kind, on_nodes in kinds.items():
                if all(term.selector.matches(kind.labels) for term in terms):
                    yield on_nodes


def _nodes(on_nodes: Mapping[str, int], cluster: Cluster) -> Iterator[NodeState]:
    return (cluster.nodes[name] for name in on_nodes if name in cluster.nodes)


def _means(terms: tuple[PodTerm, ...], pod: PodRules | PodKind, cluster: Cluster) -> bool:
    """Whether all of the terms, at least one, apply to the pod."""
    of_namespace = cluster.namespaces.get(pod.namespace, {})
    return bool(terms) and all(term.matches(pod.namespace, of_namespace, pod.labels) for term in terms)
