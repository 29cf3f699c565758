"""
Three cards: a gang of three workers waits for the third card and starts together. Then two engines share a card and
start one after the other.
"""

from __future__ import annotations

from typing import Any

from contract import names
from contract.encoding import moments
from contract.reasons.nodes import Code
from playground.cluster import Cluster
from playground.machinery.kubelet.podrun import START_SECONDS
from playground.shapes import gpu_node
from playground.tenants.scenes import Scene, Seen, create, running, team, told
from playground.waiting import wait_for
from runtime.kubernetes import paths

JSON = dict[str, Any]
TEAM = "team-a"
WHOLE, PART = {"gpufraction.io/gpu-memory": "15000Mi"}, {"gpufraction.io/gpu-memory": "4Gi"}
WORKERS, ENGINES = ("worker-0", "worker-1", "worker-2"), ("engine-0", "engine-1")
GANG: dict[str, str] = {names.GANG: "train", names.GANG_MINIMUM: str(len(WORKERS))}
ALONE: dict[str, str] = {names.START: names.ALONE, START_SECONDS: "5"}
"""An engine that is ready after 5 seconds."""


def _show(cluster: Cluster) -> Seen:
    team(cluster, TEAM)
    kube = cluster.kube
    create(cluster, TEAM, "notebook", WHOLE)
    wait_for(lambda: running(cluster, TEAM) == {"notebook"}, "the notebook does not run")
    made = [create(cluster, TEAM, name, WHOLE, annotations=GANG) for name in WORKERS]
    lines = [f"a worker is told: {told(cluster, made[-1], 'members fit')}"]
    before = len(running(cluster, TEAM) & set(WORKERS))
    kube.delete(paths.pods(TEAM, "notebook"))
    wait_for(lambda: running(cluster, TEAM) == set(WORKERS), "the workers do not run")
    kube.delete(paths.pods(TEAM, WORKERS[0]))
    wait_for(lambda: running(cluster, TEAM) == set(WORKERS[1:]), "the first worker stays")
    create(cluster, TEAM, ENGINES[0], PART, annotations=ALONE)
    second = create(cluster, TEAM, ENGINES[1], PART, annotations=ALONE)
    lines.append(f"the second engine is told: {told(cluster, second, Code.NEIGHBOUR_STARTING.row.text)}")
    wait_for(lambda: set(ENGINES) <= running(cluster, TEAM), "the engines do not run")
    first, second = (kube.get(paths.pods(TEAM, name)) for name in ENGINES)
    return Seen(
        _line(0, len(WORKERS), alone=True),
        _line(before, len(WORKERS), alone=_started(second) >= _ready(first)),
        tuple(lines),
    )


def _ready(pod: JSON) -> float:
    """When the pod became Ready, in seconds since 1970."""
    found = {each["type"]: each for each in pod["status"]["conditions"]}["Ready"]
    return moments.seconds(found["lastTransitionTime"]) or 0.0


def _started(pod: JSON) -> float:
    """When the pod's container started."""
    (status,) = pod["status"]["containerStatuses"]
    return moments.seconds(status["state"]["running"]["startedAt"]) or 0.0


def _line(before: int, after: int, *, alone: bool) -> str:
    engines = "after the first is ready" if alone else "while the first starts"
    return (
        f"{before} of the workers run while two cards are free, {after} once the third is; the second engine starts "
        f"{engines}"
    )


TOGETHER = Scene(
    "Gangs and engines: three workers need a card that a notebook holds; two engines start on one card",
    _show,
    nodes=(gpu_node("three", "3 x Tesla T4 15109MiB"),),
)
