"""
Nodes that are requested while pods wait: a pool with zero nodes, placeholder pods, and an autoscaler that serves them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from contract import names, pods
from playground.api.kinds.values import JSON
from tests.simulation.feature import Feature, Goal, Invariant, Violation
from tests.simulation.run import Run

WITHIN_BOUND = "no pool grows beyond its bound"
POOL, MOST = "grown", 2
"""The pool and how many nodes it may have."""
_LABEL = {"example.com/pool": POOL}
_CARDS = "2 x Tesla T4 15109MiB"
_TEMPLATE = {"gpus": 2, "model": "Tesla T4", "gpuMemory": "15109Mi", "cpu": 30, "memory": "250Gi", "max": MOST}
OPTIONS = json.dumps({"pools": [{"name": POOL, "nodeSelector": {"matchLabels": _LABEL}, "node": _TEMPLATE}]})
_LOOKS, _TAKES = 1.0, 3.0
"""Seconds between two looks of the autoscaler, and until a machine exists."""


def _declared(run: Run) -> bool:
    return bool(run.plan.shape.get("options") == OPTIONS)


def _placeholders(run: Run) -> Iterator[JSON]:
    for pod in run.world.api.store.scan("pods", names.NAMESPACE):
        if names.POOL in (pod["metadata"].get("labels") or {}) and not pod["metadata"].get("deletionTimestamp"):
            yield pod


def _grown(run: Run) -> list[str]:
    """The pool's nodes."""
    nodes = run.world.api.store.scan("nodes")
    return [
        node["metadata"]["name"] for node in nodes if _LABEL.items() <= (node["metadata"].get("labels") or {}).items()
    ]


def _prepare(run: Run) -> None:
    if _declared(run):
        run.kernel.spawn(run.world.manager, lambda: _autoscale(run), "autoscaler")


def _autoscale(run: Run) -> None:
    """Add a node if a placeholder waits for one, as Karpenter does."""
    while run.phase != "done":
        run.sleep(_LOOKS)
        if len(_grown(run)) < MOST and any(not pod["spec"].get("nodeName") for pod in _placeholders(run)):
            run.sleep(_TAKES)
            name = f"{POOL}-{len(run.world.agents)}"
            run.tell("autoscaler", f"adds node {name}")
            run.world.grow(name, _CARDS, _LABEL)


def _asked_within(run: Run) -> Callable[[Any], Violation | None]:
    """No pool is asked for more nodes than it may have."""

    def holds(change: Any) -> Violation | None:
        if change.resource != "pods" or change.type != "ADDED" or not _declared(run):
            return None
        if names.POOL not in (change.object["metadata"].get("labels") or {}):
            return None
        asked = [pods.key(pod) for pod in _placeholders(run) if not pod["spec"].get("nodeName")]
        there = _grown(run)
        return (
            f"{asked} ask for nodes, {there} are there, and {MOST} may be" if len(asked) + len(there) > MOST else None
        )

    return holds


def _none_left(run: Run) -> list[Violation]:
    return [f"placeholder {pods.key(pod)} is left over" for pod in _placeholders(run)]


FEATURE = Feature(
    "provisioning",
    invariants=(Invariant(WITHIN_BOUND, _asked_within),),
    goals=(Goal("no request for nodes is left over", _none_left),),
    knobs={
        "allocator": (
            ("--provisioning-after=1s",),
            ("--provisioning-after=5s", "--provisioning-patience=30s"),
        )
    },
    components=("node-provisioning", "node-placeholders"),
    options=(OPTIONS,),
    prepare=_prepare,
)
