"""Two idle notebooks: one consents to eviction in favour of a waiting pod, and the other does not."""

from __future__ import annotations

import json

from contract import names
from playground import scenarios
from playground.cluster import DEFAULT_COMPONENTS, Cluster
from playground.shapes import gpu_node
from playground.tenants.scenes import Scene, Seen, create, plugin, running, team, told
from playground.waiting import wait_for
from runtime.kubernetes import paths

_HALF = {"gpufraction.io/gpu-memory": "7000Mi"}
"""Two such pods fill the card."""
_CARD = "gpus.json"
_NOBODY_COMPUTES = json.dumps({"gpus": "1 x Tesla T4 15109MiB", "cards": {"0": {"computing": {}}}})


def _show(cluster: Cluster) -> Seen:
    team(cluster, "team-a")
    team(cluster, "team-b")
    create(cluster, "team-a", "agrees", _HALF, annotations={names.IDLE_AFTER: "2s"})
    create(cluster, "team-a", "silent", _HALF)
    wait_for(lambda: running(cluster, "team-a") == {"agrees", "silent"}, "the notebooks do not run")
    uid = cluster.kube.get(paths.pods("team-a", "agrees"))["metadata"]["uid"]
    wait_for(lambda: len(_idle(cluster)) == 2, "the agent does not say that the notebooks are idle")
    listed = plugin(cluster, "idle", "-n", "team-a")
    reason = told(cluster, create(cluster, "team-b", "train", _HALF), "idle pod")
    wait_for(lambda: running(cluster, "team-b") == {"train"}, "train does not run")
    found = cluster.kube.list(paths.events("team-a")).items
    warned = [each["message"] for each in found if each["involvedObject"].get("uid") == uid and _warns(each["reason"])]
    left = sorted(each["metadata"]["name"] for each in scenarios.all_pods(cluster.kube, "team-a"))
    return Seen(
        "train runs in place of agrees, which was warned 1 time; silent stays",
        f"train runs in place of agrees, which was warned {len(warned)} time; {', '.join(left)} stays",
        (*listed.rstrip().splitlines(), f"train is told: {reason}", *(f"agrees is told: {each}" for each in warned)),
    )


def _warns(reason: str) -> bool:
    return reason == "GPUShareIdle"


def _idle(cluster: Cluster) -> list[object]:
    return list(cluster.kube.get(paths.gpunodes("t4"))["status"].get("idle") or [])


IDLE = Scene(
    "Idle shares give way: of two idle notebooks one agreed to it, and a pod waits",
    _show,
    settings={
        "allocator": ("--idle-evict", "--idle-grace", "3s"),
        "nodeagent": ("--idle-least", "1s", "--heartbeat", "10s"),
    },
    nodes=(gpu_node("t4", f"@{_CARD}"),),
    components=(*DEFAULT_COMPONENTS, "allocator-eviction", "node-access"),
    files={_CARD: _NOBODY_COMPUTES},
)
