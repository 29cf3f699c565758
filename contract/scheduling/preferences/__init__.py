"""
A pod's preferences among nodes that are equally good for its share: kube-scheduler's scores, one module per plugin.

Each module has a function `scores`. It takes a pod, the cluster and some nodes, and returns a number from 0 to 100 for
each node; None if the plugin does not concern the pod. `PLUGINS` has the weights of kube-scheduler's default profile.
The nodes stand for those that pass its filters, over which it normalises scores. Its other scores are about resources,
which the engine scores, and images, which nothing here scores. Pure, and structured like the originals (`scoring.go` of
each plugin in 1.36).
"""

from __future__ import annotations

from collections.abc import Sequence

from contract.model import NodeState
from contract.scheduling.clusterfilters.objects import Cluster, PodRules
from contract.scheduling.needs import PodNeeds
from contract.scheduling.preferences import node_affinity, pod_affinity, taints, topology_spread

PLUGINS = (
    (taints.scores, 3),
    (node_affinity.scores, 2),
    (topology_spread.scores, 2),
    (pod_affinity.scores, 2),
)


def total(pod: PodRules, needs: PodNeeds, cluster: Cluster, nodes: Sequence[NodeState]) -> list[int]:
    """How much the pod prefers each of the nodes, in their order; more is better."""
    found = [0] * len(nodes)
    for plugin, weight in PLUGINS:
        scores = plugin(pod, needs, cluster, nodes)
        if scores is not None:
            found = [before + weight * score for before, score in zip(found, scores, strict=True)]
    return found
