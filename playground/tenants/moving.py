"""Two cards are partly in use, and a new pod needs a whole card: the smaller pod moves if its team has agreed."""

from __future__ import annotations

from typing import Any

from contract import names
from playground import scenarios
from playground.cluster import Cluster
from playground.shapes import gpu_node
from playground.tenants.scenes import Scene, Seen, create, running, team, told
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube

JSON = dict[str, Any]
NODES = (gpu_node("one", "1 x Tesla T4 15109MiB"), gpu_node("two", "1 x Tesla T4 15109MiB", address="10.0.0.12"))
FLAGS = ("--defragmentation-evictions-per-hour=2", "--defragmentation-interval=1s")
LABELS: dict[str, str] = {names.DEFRAGMENT: "allowed"}
WHOLE, FILLS = {"gpufraction.io/gpu-memory": "15000Mi"}, {"gpufraction.io/gpu-memory": "10000Mi"}


def deploy(kube: Kube, namespace: str, name: str, memory: str) -> None:
    """Create a Deployment of one pod with this share of a card."""
    container = {
        "name": "main",
        "image": "ubuntu:22.04",
        "resources": {"limits": {"gpufraction.io/gpu-memory": memory}},
    }
    template = {
        "metadata": {"labels": {"app": name}},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 0},
    }
    spec = {"replicas": 1, "selector": {"matchLabels": {"app": name}}, "template": template}
    made = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}
    kube.create(paths.deployments(namespace), made)


def nodes_of(kube: Kube, namespace: str) -> dict[str, str]:
    """The node of each running pod, by its app or its name."""
    return {
        pod["metadata"].get("labels", {}).get("app", pod["metadata"]["name"]): str(pod["spec"]["nodeName"])
        for pod in scenarios.all_pods(kube, namespace)
        if scenarios.is_running(pod)
    }


def moves(kube: Kube, namespace: str) -> list[str]:
    """The Events of the moved pods. Each appears soon after the eviction."""
    return [
        str(each["message"]) for each in kube.list(paths.events(namespace)).items if each["reason"] == "GPUShareMoved"
    ]


def fragment(cluster: Cluster, namespace: str) -> None:
    """A pod of 6 GiB on one card, and one of 4 GiB on the other."""
    kube = cluster.kube
    create(cluster, namespace, "fills", FILLS)
    wait_for(lambda: "fills" in nodes_of(kube, namespace), "the first pod does not run")
    deploy(kube, namespace, "six", "6Gi")
    wait_for(lambda: "six" in nodes_of(kube, namespace), "the pod of 6 GiB does not run")
    deploy(kube, namespace, "four", "4Gi")
    wait_for(lambda: "four" in nodes_of(kube, namespace), "the pod of 4 GiB does not run")
    kube.delete(paths.pods(namespace, "fills"))
    wait_for(lambda: set(nodes_of(kube, namespace)) == {"six", "four"}, "the first pod stays")
    found = nodes_of(kube, namespace)
    assert found["six"] != found["four"], found


def _show(cluster: Cluster) -> Seen:
    team(cluster, "team-a", LABELS)
    team(cluster, "team-b")
    fragment(cluster, "team-a")
    lines = [f"team-b is told: {told(cluster, create(cluster, 'team-b', 'whole', WHOLE))}"]
    wait_for(lambda: running(cluster, "team-b"), "the pod of a whole card does not run")
    wait_for(lambda: len(nodes_of(cluster.kube, "team-a")) == 2, "not both pods of team-a run")
    moved = wait_for(lambda: moves(cluster.kube, "team-a"), "no Event says that a pod moved")
    lines += [f"team-a is told: {each}" for each in moved]
    return Seen(
        _line(1, 2, 1),
        _line(len(lines) - 1, len(nodes_of(cluster.kube, "team-a")), len(running(cluster, "team-b"))),
        tuple(lines),
    )


def _line(moved: int, small: int, whole: int) -> str:
    return f"{moved} pod is moved; then {small} small pods of team-a and {whole} of a whole card of team-b run"


MOVING = Scene(
    "Defragmentation: 6 GiB and 4 GiB on two cards, and a pod that needs a whole one",
    _show,
    settings={"allocator": FLAGS},
    nodes=NODES,
    components=("allocator-eviction",),
)
