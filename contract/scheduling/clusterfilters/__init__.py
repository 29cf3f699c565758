"""
The filters of kube-scheduler that look beyond one node: volumes, claims, affinity between pods, topology spread.

Each module implements one plugin of kube-scheduler's default profile in a function `check`. It takes a pod and the
cluster, and returns a function that refuses nodes; None if the plugin does not concern the pod. `FILTERS` lists them in
about the order in which kube-scheduler runs them; the first refusal is the reason. Pure, and structured like the
original; tests compare the fast filters with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from contract.model import NodeState
from contract.reasons.nodes import Reason
from contract.scheduling.clusterfilters import (
    added_affinity,
    pod_affinity,
    resource_claims,
    topology_spread,
    volume_binding,
    volume_limits,
    volume_restrictions,
    volume_zone,
)
from contract.scheduling.clusterfilters.objects import Check, Cluster, PodRules
from contract.scheduling.needs import PodNeeds

Filter = Callable[[PodRules, PodNeeds, Cluster], Check | None]
FILTERS: tuple[Filter, ...] = (
    added_affinity.check,
    volume_restrictions.check,
    volume_binding.check,
    volume_zone.check,
    # kube-scheduler counts volumes first. That takes longest, and nodes that do not reach a volume need no count.
    volume_limits.check,
    topology_spread.check,
    pod_affinity.check,
    resource_claims.check,
)


def checks(pod: PodRules, needs: PodNeeds, cluster: Cluster, filters: Iterable[Filter] = FILTERS) -> tuple[Check, ...]:
    """The checks to run on each node for this pod; empty if no rule about other pods or volumes concerns it."""
    return tuple(found for found in (each(pod, needs, cluster) for each in filters) if found is not None)


def refused(
    pod: PodRules,
    needs: PodNeeds,
    cluster: Cluster,
    nodes: Iterable[NodeState],
    filters: Iterable[Filter] = FILTERS,
) -> Mapping[str, Reason]:
    """The nodes that some filter refuses, each with the first reason."""
    applicable, found = checks(pod, needs, cluster, filters), dict[str, Reason]()
    for node in nodes if applicable else ():
        for check in applicable:  # a generator would take longer than most checks, of which there are thousands
            reason = check(node)
            if reason is not None:
                found[node.name] = reason
                break
    return found
