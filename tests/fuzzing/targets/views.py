"""What the plugin and its page compute from a cluster's objects alone: the commands' rows, the views."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from contract import names
from kubectl_gpufraction.cluster import state
from kubectl_gpufraction.cluster.state import ClusterView
from kubectl_gpufraction.commands import pods, waiting
from kubectl_gpufraction.ui import usage
from kubectl_gpufraction.ui.pages import Picture, Selection
from tests.builders import node
from tests.fuzzing.judge import NotJson, Target, bounded, document, length
from tests.fuzzing.targets.annotations import ALLOCATIONS
from tests.unit.allocator.one_gpu import running, worker
from tests.unit.allocator.one_gpu import waiting as gated

JSON = dict[str, Any]
_KINDS = ("gpunodes", "nodes", "pods", "elasticgpus")
_NOW = datetime(2026, 1, 5, 9, tzinfo=UTC)


def _seeds() -> tuple[bytes, ...]:
    card = node("t4").gpus(2)
    gated_pod = gated(worker("waits"))
    gated_pod["status"] = {
        "conditions": [
            {
                "type": str(names.ALLOCATED_CONDITION),
                "status": "False",
                "reason": "NoRoom",
                "message": "waiting: full",
                "lastTransitionTime": "2026-01-05T08:00:00Z",
            }
        ]
    }
    held = running(worker("held", mib=1024), ALLOCATIONS[0])
    return (json.dumps({"gpunodes": [card.gpunode()], "nodes": [card.json()], "pods": [gated_pod, held]}).encode(),)


def _views(data: bytes) -> None:
    found = document(data)
    if not isinstance(found, dict) or not all(_are_objects(found.get(kind, [])) for kind in _KINDS):
        raise NotJson
    listed = [state.trimmed(pod) for pod in found.get("pods", [])]
    view = ClusterView.of(
        found.get("gpunodes", []), found.get("nodes", []), listed, found.get("elasticgpus", []), weights={}
    )
    rows = [*pods.rows(view, None), *waiting.rows(view, None)]
    picture, wanted = Picture(view, _NOW, ""), Selection("a b", 0, 50)
    shown = [
        picture.head(),
        *(each(wanted) for each in (picture.gpus, picture.queue, picture.pods, picture.namespaces)),
    ]
    bounded(length([rows, shown]), len(data), "what is shown", times=32, more=64 << 10)


def _use(data: bytes) -> None:
    found = document(data)
    if not isinstance(found, dict):
        raise NotJson
    shown = usage.figures(dict.fromkeys(usage.FIGURES, found), 7_200)
    bounded(length(shown), len(data), "what is shown", times=32, more=64 << 10)


_ANSWER = {"data": {"result": [{"metric": {"node": "n1", "gpu": "GPU-1"}, "values": [[7_200, "0.5"], [7_080, "NaN"]]}]}}


def _are_objects(items: object) -> bool:
    if not isinstance(items, list):
        return False
    if not all(isinstance(item, dict) and isinstance(item.get("metadata"), dict) for item in items):
        return False
    known = [str(item["metadata"].get("name")) for item in items]
    return len(set(known)) == len(known)  # as the API server has them


TARGETS = (
    Target(
        "views",
        _views,
        ("kubectl_gpufraction.cluster.state:pod_of", "kubectl_gpufraction.cluster.state:claims_of"),
        _seeds,
        (NotJson,),
        form="typed",
        modules=("kubectl_gpufraction.ui.pages", "kubectl_gpufraction.commands.pods"),
        weight=2,
    ),
    Target(
        "page-use",
        _use,
        ("kubectl_gpufraction.ui.usage:figures",),
        lambda: (json.dumps(_ANSWER).encode(),),
        (NotJson,),
        modules=("kubectl_gpufraction.ui.usage",),
    ),
)
