"""The ConfigMap with which administrators of Aliyun gpushare exclude cards is followed while everything runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from contract.nodes import excluded
from playground import scenarios
from playground.cluster import Cluster
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import KubeNotFound
from tests.builders import PodBuilder, pod
from tests.cluster.acceptance.looking import plugin

pytestmark = pytest.mark.system
NAME = "unhealthy-gpu-t4"
Keep = Callable[[str], None]


@pytest.fixture
def keep_out(cluster: Cluster) -> Iterator[Keep]:
    """Writes the T4 node's list."""

    def write(gpus: str) -> None:
        cluster.kube.patch_merge(paths.configmaps(excluded.NAMESPACE, NAME), {"data": {"gpus": gpus}})

    made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": NAME}, "data": {"gpus": ""}}
    cluster.kube.create(paths.configmaps(excluded.NAMESPACE), made)
    yield write
    scenarios.clear(cluster.kube)
    cluster.kube.delete(paths.configmaps(excluded.NAMESPACE, NAME))
    wait_for(lambda: taken(cluster) != "", "the T4 node takes no pods any more")


def t4(name: str) -> PodBuilder:
    return pod(name).asks("aliyun.com/gpu-mem", 1).spec(nodeSelector={"gpushare": "true"})


def taken(cluster: Cluster) -> str:
    """The card that a pod would get now, by its annotation; empty if no card accepts it."""
    dry = cluster.kube.create(paths.pods("default"), t4("dry").manifest(), {"dryRun": "All"})
    return str(dry["metadata"]["annotations"].get("ALIYUN_COM_GPU_MEM_IDX", ""))


def becomes(cluster: Cluster, wanted: str) -> None:
    wait_for(lambda: taken(cluster) == wanted, lambda: f"card {taken(cluster)!r} is taken, not {wanted!r}")


def test_cards_are_kept_out_and_let_in_again(cluster: Cluster, keep_out: Keep) -> None:
    cluster.kube.create(paths.pods("default"), t4("there").manifest())
    scenarios.settled(cluster.kube, 1, running=1)
    becomes(cluster, "0")
    keep_out("0")
    becomes(cluster, "1")
    assert [scenarios.is_running(each) for each in scenarios.all_pods(cluster.kube)] == [True]

    rows = json.loads(plugin(cluster, "nodes", "-o", "json"))["items"]
    assert [(row["gpu"], row["health"], row["reason"]) for row in rows if row["node"] == "t4"] == [
        (0, "Cordoned", f"named in the ConfigMap {excluded.NAMESPACE}/{NAME}"),
        (1, "Healthy", ""),
    ]

    keep_out("0, 1")
    becomes(cluster, "")
    cluster.kube.create(paths.pods("default"), t4("late").manifest())
    found = scenarios.settled(cluster.kube, 2, running=1)
    assert [scenarios.waits(each) for each in found if not scenarios.is_running(each)] != []
    keep_out("1")
    scenarios.settled(cluster.kube, 2, running=2)

    keep_out("card 1")
    wait_for(lambda: "found 'card 1'" in message(cluster), lambda: f"it is said: {message(cluster)!r}")
    becomes(cluster, "")


def message(cluster: Cluster) -> str:
    """The Events about the list."""
    try:
        events = cluster.kube.list(paths.events(excluded.NAMESPACE)).items
    except KubeNotFound:
        return ""
    return "; ".join(e["message"] for e in events if e["involvedObject"].get("name") == NAME)
