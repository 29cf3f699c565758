"""
Volumes that carry the labels of a zone or region: kube-scheduler's VolumeZone.

Volumes had such labels before they had node affinity. A node without any of these labels is in no zone, and passes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from contract.model import NodeState
from contract.reasons.nodes import Code, Reason
from contract.scheduling.clusterfilters.objects import Check, Cluster, PodRules, Volume
from contract.scheduling.needs import PodNeeds

_ELSEWHERE = Reason(Code.VOLUME)
_NO_VOLUME = Reason(Code.CLAIM, what="without a volume")
_STABLE = {
    "failure-domain.beta.kubernetes.io/zone": "topology.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region": "topology.kubernetes.io/region",
}
_LABELS = (*_STABLE, *_STABLE.values())


def check(pod: PodRules, needs: PodNeeds, cluster: Cluster) -> Check | None:
    """The zones of the pod's volumes; None if none of them has a zone. Claims created for the pod do not count."""
    zones: list[tuple[str, frozenset[str]]] = []
    for each in pod.volumes:
        if each.ephemeral:
            continue
        claim = cluster.storage.claims.get((pod.namespace, each.claim))
        if claim is None:
            return lambda node: _NO_VOLUME
        if not claim.volume:
            storage_class = cluster.storage.classes.get(claim.storage_class)
            if storage_class is None or not storage_class.delayed:
                return lambda node: _NO_VOLUME
            continue
        volume = cluster.storage.volumes.get(claim.volume)
        if volume is None:
            return lambda node: _NO_VOLUME
        zones += _zones(volume)
    if not zones:
        return None

    def reason(node: NodeState) -> Reason | None:
        if not any(label in node.labels for label in _LABELS):
            return None
        return None if all(_value(node.labels, key) in values for key, values in zones) else _ELSEWHERE

    return reason


def _zones(volume: Volume) -> Iterator[tuple[str, frozenset[str]]]:
    for key in _LABELS:
        parts = [part.strip() for part in volume.labels[key].split("__")] if key in volume.labels else []
        if parts and all(parts):
            yield key, frozenset(parts)


def _value(labels: Mapping[str, str], key: str) -> str | None:
    """The node's value; if it lacks an old key, the value of the new one."""
    return labels.get(key, labels.get(_STABLE.get(key, "")))
