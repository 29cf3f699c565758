"""An invented reason why a node does not fit, and the filter that finds it."""

from __future__ import annotations

from contract.model import NodeState
from contract.reasons.base import Cure, ReasonKind, Row, either
from contract.reasons.nodes import NodeCode, Reason
from contract.scheduling.clusterfilters.objects import Check, Cluster, PodRules
from contract.scheduling.needs import PodNeeds

DAMP, DRY = "damp", "dry"


class DampCode(NodeCode):
    """This has the highest priority: it is reported if a node has several reasons."""

    TOO_DAMP = "TooDamp", Row(ReasonKind.NODE, "too damp", "Dry the node.", either(Cure.NODE, Cure.LABELS)), int, 100


def check(pod: PodRules, needs: PodNeeds, cluster: Cluster) -> Check | None:
    """Keep pods with the label `dry` away from nodes with the label `damp`."""
    if DRY not in pod.labels:
        return None

    def reason(node: NodeState) -> Reason | None:
        return Reason(DampCode.TOO_DAMP) if DAMP in node.labels else None

    return reason
