"""Pods that a program creates for its own objects, on a node with two cards: workers, and what happens to them."""

from __future__ import annotations

import io
from typing import Any

from contract import names, pods
from contract.reasons.pods import PodEventReason, PodReason
from kubectl_gpufraction.__main__ import main
from playground import scenarios
from playground.cluster import Cluster
from playground.waiting import wait_for
from runtime.kubernetes import paths
from tests.builders import PodBuilder, pod
from tests.cluster.system import invariants

JSON = dict[str, Any]
BOTH_WAIT = [PodReason.GANG_DOES_NOT_FIT] * 2
"""The reasons of a gang of two that does not fit."""


def worker(name: str) -> PodBuilder:
    """A pod that takes a card of the node t4, which has two."""
    made = pod(name).asks(names.GPU_MEMORY, "10000Mi")
    return made.spec(nodeSelector={"gpushare": "true"}, terminationGracePeriodSeconds=0)


def template(made: PodBuilder, **spec: Any) -> JSON:
    """The pod as the template of a set."""
    whole = made.manifest()
    annotations = whole["metadata"].get("annotations") or {}
    return {"metadata": {"annotations": annotations}, "spec": {**whole["spec"], **spec}}


def there(cluster: Cluster) -> list[JSON]:
    """All pods."""
    return scenarios.all_pods(cluster.kube)


def owned(found: JSON) -> bool:
    """Whether a program created the pod."""
    return bool(found["metadata"].get("ownerReferences"))


def shown(cluster: Cluster) -> dict[str, str]:
    """What each pod waits for, or its phase, by name."""
    return {each["metadata"]["name"]: scenarios.waits(each) or each["status"]["phase"] for each in there(cluster)}


def members(cluster: Cluster) -> list[JSON]:
    """The pods that the program has created."""
    return [each for each in there(cluster) if owned(each)]


def reasons(cluster: Cluster) -> list[str]:
    """What each of the program's pods waits for; empty for a pod that does not wait."""
    return sorted(scenarios.waits(each) for each in members(cluster))


def running(cluster: Cluster) -> int:
    """How many of the program's pods run."""
    return sum(map(scenarios.is_running, members(cluster)))


def booked(cluster: Cluster) -> list[str]:
    """The program's pods that have a share."""
    return [each["metadata"]["name"] for each in members(cluster) if names.ALLOCATION in pods.annotations_of(each)]


def events_of(cluster: Cluster, path: str) -> list[str]:
    """What the Events of the object at this path say about waiting pods, as `kubectl describe` shows them."""
    uid = cluster.kube.get(path)["metadata"]["uid"]
    about = [e for e in cluster.kube.list(paths.events("default")).items if e["involvedObject"].get("uid") == uid]
    return [each["message"] for each in about if each["reason"] == PodEventReason.WAITING]


def explained(cluster: Cluster, name: str = "") -> str:
    """What `kubectl gpufraction explain` prints about a pod, by default about the only pod that waits."""
    if not name:
        (name,) = (each["metadata"]["name"] for each in there(cluster) if scenarios.waits(each))
    out = io.StringIO()
    main(["explain", name, "--kubeconfig", str(cluster.kubeconfig)], out=out, environment={})
    return out.getvalue()


def occupy(cluster: Cluster, name: str = "first") -> None:
    """Another user's pod takes one of the two cards."""
    cluster.kube.create(paths.pods("default"), worker(name).manifest())
    wait_for(lambda: shown(cluster).get(name) == "Running", lambda: f"{shown(cluster)}")


def leave(cluster: Cluster, name: str = "first") -> None:
    """Delete that pod."""
    cluster.kube.delete(paths.pods("default", name))


def cleared(cluster: Cluster, *kinds: str) -> None:
    """
    Delete the objects of these kinds, by their paths, with everything that they own, and then everything else. The
    invariants hold before and after. A kind that was never applied has no objects.
    """
    invariants.check(cluster)
    for path in kinds:
        if _serves(cluster, path):
            for each in cluster.kube.list(path).items:
                cluster.kube.delete(f"{path}/{each['metadata']['name']}", {"propagationPolicy": "Background"})
    wait_for(lambda: not members(cluster), lambda: f"{shown(cluster)} are still there", 60)
    scenarios.clear(cluster.kube)
    invariants.check(cluster)


def _serves(cluster: Cluster, path: str) -> bool:
    """Whether the kind of the path was ever applied here."""
    return path.split("/")[2] in {each["name"] for each in cluster.kube.get("/apis")["groups"]}
