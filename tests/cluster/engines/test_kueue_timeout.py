"""
`waitForPodsReady`: what Kueue does with an admitted pod that waits in our queue for longer than the timeout.

Kueue evicts the workload. The pod in our queue held no share, so no share is leaked or returned twice. Kueue admits a
Job again after its backoff, and the Job runs when there is room.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from contract import names, pods
from playground import scenarios
from playground.cluster import Cluster
from playground.engines import kueue
from playground.engines.kueue import KUEUE, Kueue
from playground.waiting import wait_for
from runtime.kubernetes import paths
from tests.builders import pod
from tests.cluster.engines.programs import folder_of

pytestmark = [pytest.mark.engines, pytest.mark.timeout(300)]
JSON = dict[str, Any]
QUEUE = "kueue.x-k8s.io/queue-name"
MEMORY = str(names.GPU_MEMORY)
TIMEOUT = 8
CONFIGURATION = {
    "waitForPodsReady": {
        "timeout": f"{TIMEOUT}s",
        "requeuingStrategy": {"backoffBaseSeconds": 1, "backoffMaxSeconds": 2},
    }
}
V100 = {"gpu": "on"}


@pytest.fixture(scope="module")
def beside(us: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, Kueue]]:
    """gpufraction, and Kueue with a short timeout and a larger quota than the node has."""
    directory = tmp_path_factory.mktemp("kueue") / "run"
    with kueue.running(us, folder_of(KUEUE.assets()), directory, CONFIGURATION) as found:
        found.flavor("timeout-v100", V100)
        found.queue("timeout", "timeout-v100", {"cpu": "20", "memory": "40Gi", MEMORY: "100Gi"})
        yield us, found


@pytest.fixture
def full(cluster: Cluster) -> JSON:
    """A pod outside the quota holds all of the node's two GPUs."""
    made = pod("full").asks(MEMORY, "32Gi").asks("gpufraction.io/gpu-count", 2).spec(nodeSelector=V100)
    cluster.kube.create(paths.pods("default"), made.manifest())
    scenarios.settled(cluster.kube, 1, running=1)
    return made.manifest()


def others(cluster: Cluster) -> list[JSON]:
    return [each for each in scenarios.all_pods(cluster.kube) if each["metadata"]["name"] != "full"]


def evictions(beside: tuple[Cluster, Kueue]) -> list[str]:
    """Why workloads were evicted, for the existing ones."""
    conditions = [each for found in beside[1].workloads() for each in found["status"].get("conditions") or ()]
    return [each["reason"] for each in conditions if each["type"] == "Evicted"]


def test_a_job_that_waits_too_long_is_evicted_and_runs_when_a_gpu_is_free(
    beside: tuple[Cluster, Kueue], cluster: Cluster, full: JSON
) -> None:
    spec = {**pod("p").asks(MEMORY, "8Gi").needs(cpu="10m", memory="16Mi").manifest()["spec"], "restartPolicy": "Never"}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "late", "labels": {QUEUE: "timeout"}}}
    cluster.kube.create(paths.path("batch/v1", "jobs", "default"), {**job, "spec": {"template": {"spec": spec}}})
    wait_for(
        lambda: any(scenarios.waits(each) == "Memory" for each in others(cluster)),
        lambda: f"it does not wait for us: {scenarios.shown(others(cluster))}",
    )
    wait_for(lambda: "PodsReadyTimeout" in evictions(beside), lambda: f"not evicted: {beside[1].workloads()}", 60)
    cluster.kube.delete(paths.pods("default", "full"))
    wait_for(
        lambda: any(scenarios.is_running(each) for each in others(cluster)),
        lambda: f"it does not run: {scenarios.shown(others(cluster))}",
        90,
    )


def test_a_plain_pod_that_waits_for_us_too_long_is_deleted_and_leaves_nothing(
    beside: tuple[Cluster, Kueue], cluster: Cluster, full: JSON
) -> None:
    made = pod("late").asks(MEMORY, "8Gi").needs(cpu="10m", memory="16Mi").labelled(QUEUE, "timeout")
    cluster.kube.create(paths.pods("default"), made.manifest())
    wait_for(lambda: [scenarios.waits(each) for each in others(cluster)] == ["Memory"], "it does not wait for us")
    wait_for(lambda: not others(cluster), lambda: f"it is not evicted: {scenarios.shown(others(cluster))}", 60)
    wait_for(beside[1].holds_nothing, lambda: f"quota is held: {beside[1].charged()}", 30)


def test_the_share_of_a_pod_that_does_not_become_ready_returns_once(
    beside: tuple[Cluster, Kueue], cluster: Cluster
) -> None:
    """It has a share of the whole GPUs, and no scheduler binds it. The next pod can have all of them."""
    made = pod("late").asks(MEMORY, "32Gi").asks("gpufraction.io/gpu-count", 2).needs(cpu="10m", memory="16Mi")
    queued = made.labelled(QUEUE, "timeout")
    cluster.kube.create(paths.pods("default"), queued.spec(schedulerName="nobody").manifest())
    wait_for(lambda: any(names.ALLOCATION in pods.annotations_of(each) for each in others(cluster)), "it has no share")
    wait_for(lambda: not others(cluster), lambda: f"it is not evicted: {scenarios.shown(others(cluster))}", 60)
    cluster.kube.create(paths.pods("default"), queued.manifest())
    scenarios.settled(cluster.kube, 1, running=1)


def test_within_the_timeout_nothing_is_evicted(beside: tuple[Cluster, Kueue], cluster: Cluster, full: JSON) -> None:
    made = pod("late").asks(MEMORY, "8Gi").needs(cpu="10m", memory="16Mi").labelled(QUEUE, "timeout")
    cluster.kube.create(paths.pods("default"), made.manifest())
    wait_for(lambda: [scenarios.waits(each) for each in others(cluster)] == ["Memory"], "it does not wait for us")
    cluster.kube.delete(paths.pods("default", "full"))
    wait_for(lambda: any(scenarios.is_running(each) for each in others(cluster)), "it does not run", TIMEOUT)
    assert evictions(beside) == []
