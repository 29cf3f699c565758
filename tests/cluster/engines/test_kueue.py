"""
Kueue's own program decides which pods may run, and gpufraction chooses the card: no share behind Kueue's gates, and
every share counts against the quota.
"""

from __future__ import annotations

from typing import Any

import pytest

from contract import names, pods
from contract.encoding import quantity
from playground import scenarios
from playground.cluster import Cluster
from playground.engines.kueue import ADMISSION_GATE, Kueue
from playground.waiting import wait_for
from runtime.kubernetes import paths
from tests.builders import PodBuilder, pod

pytestmark = [pytest.mark.engines, pytest.mark.timeout(300)]
JSON = dict[str, Any]
QUEUE = "kueue.x-k8s.io/queue-name"
MEMORY, CORES = str(names.GPU_MEMORY), str(names.GPU_CORES)
QUOTA = {"cpu": "20", "memory": "40Gi", MEMORY: "8Gi", CORES: "200", "nvidia.com/gpu": "64"}
V100 = {"gpu": "on"}


@pytest.fixture(scope="module", autouse=True)
def queues(beside: tuple[Cluster, Kueue]) -> None:
    """One queue of 8 GiB on the node v100, and two in a cohort."""
    beside[1].flavor("v100", V100)
    beside[1].queue("team", "v100", QUOTA)
    for name in ("lender", "borrower"):
        beside[1].queue(name, "v100", {**QUOTA, MEMORY: "4Gi"}, cohort="all")


def create(cluster: Cluster, made: PodBuilder, queue: str = "team") -> None:
    cluster.kube.create(paths.pods("default"), made.labelled(QUEUE, queue).manifest())


def found(cluster: Cluster) -> list[JSON]:
    return list(cluster.kube.list(paths.pods("default")).items)


def behind(pod: JSON) -> bool:
    return ADMISSION_GATE in pods.gates(pod)


def check_gates(cluster: Cluster) -> None:
    """No pod behind Kueue's gate has a share or a node."""
    for each in found(cluster):
        if behind(each):
            assert names.ALLOCATION not in pods.annotations_of(each)
            assert not each["spec"].get("nodeName")


ASKS = {
    "our own words": pod("p").asks(MEMORY, "3Gi"),
    "Aliyun's": pod("p").asks("aliyun.com/gpu-mem", 3),
    "HAMi's": pod("p").asks("nvidia.com/gpu", 1).asks("nvidia.com/gpumem", 3072),
}


@pytest.mark.parametrize("pin", ["auto", "nodeName", "affinity"])
@pytest.mark.parametrize("asks", ASKS.values(), ids=ASKS.keys())
def test_plain_pods_run_within_the_quota_and_wait_without_a_share_beyond_it(
    cluster: Cluster, asks: PodBuilder, pin: str
) -> None:
    for _ in range(3):
        create(cluster, asks.generated("p-").needs(cpu="10m", memory="16Mi").annotated(names.PLACEMENT, pin))
    ran = scenarios.settled(cluster.kube, 3, "default", running=2)
    check_gates(cluster)
    running = [each for each in ran if scenarios.is_running(each)]
    assert {each["spec"]["nodeName"] for each in running} == {"v100"}, "the flavor's selector counts"
    (waits,) = (each for each in found(cluster) if behind(each))
    wait_for(lambda: scenarios.waits(next(e for e in found(cluster) if behind(e))) == "ForeignGate", "it is not told")
    cluster.kube.delete(paths.pods("default", running[0]["metadata"]["name"]))
    wait_for(
        lambda: scenarios.is_running(cluster.kube.get(paths.pods("default", waits["metadata"]["name"]))),
        "the next one does not run when the quota is free",
    )


def test_a_deployment_runs_as_far_as_its_quota_goes_and_no_creation_fails(cluster: Cluster) -> None:
    template = pod("p").asks(MEMORY, "3Gi").needs(cpu="10m", memory="16Mi").manifest()
    labels = {"app": "many", QUEUE: "team"}
    deployments = paths.path("apps/v1", "deployments", "default")
    cluster.kube.create(
        deployments,
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "many", "labels": {QUEUE: "team"}},
            "spec": {
                "replicas": 3,
                "selector": {"matchLabels": {"app": "many"}},
                "template": {"metadata": {"labels": labels}, "spec": template["spec"]},
            },
        },
    )
    try:
        scenarios.settled(cluster.kube, 3, "default", running=2)
        check_gates(cluster)
        events = cluster.kube.list(paths.path("v1", "events", "default")).items
        assert [each["message"] for each in events if each["reason"] == "FailedCreate"] == []
    finally:
        cluster.kube.delete(f"{deployments}/many", {"propagationPolicy": "Foreground"})
        wait_for(lambda: not found(cluster), "the Deployment's pods stay")


def test_what_a_queue_reclaims_is_given_back_once(cluster: Cluster) -> None:
    """Two queues of 4 GiB in a cohort: one borrows what the other does not use, until the other one needs it."""
    asks = pod("p").asks(MEMORY, "4Gi").needs(cpu="10m", memory="16Mi")
    for _ in range(2):
        create(cluster, asks.generated("borrower-"), "borrower")
    scenarios.settled(cluster.kube, 2, "default", running=2)
    create(cluster, asks.generated("lender-"), "lender")

    def reclaimed() -> bool:
        running = [each["metadata"]["name"] for each in found(cluster) if scenarios.is_running(each)]
        return sorted(name.split("-")[0] for name in running) == ["borrower", "lender"]

    wait_for(reclaimed, lambda: f"not reclaimed: {scenarios.shown(found(cluster))}", 60)
    check_gates(cluster)

    def held() -> int:
        """Bytes of GPU memory of the pods that have a share and have not ended."""
        return sum(
            amount_of(container["resources"]["limits"][MEMORY])
            for each in found(cluster)
            if pods.allocation_id(each) and not pods.finished(each)
            for container in each["spec"]["containers"]
        )

    wait_for(lambda: held() == 8 << 30, lambda: f"{held()} bytes are held: {scenarios.shown(found(cluster))}")


JOBS = {
    "our own words, two GPUs": ({MEMORY: "2Gi", "gpufraction.io/gpu-count": "2"}, str(4 << 30)),
    "Aliyun's": ({"aliyun.com/gpu-mem": "3", "aliyun.com/gpu-count": "1"}, str(3 << 30)),
    "HAMi's, two GPUs": ({"nvidia.com/gpu": "2", "nvidia.com/gpumem": "1024"}, str(2 << 30)),
}


@pytest.mark.parametrize(("limits", "charged"), JOBS.values(), ids=JOBS.keys())
def test_a_job_is_charged_from_its_template_and_runs(
    beside: tuple[Cluster, Kueue], cluster: Cluster, limits: dict[str, str], charged: str
) -> None:
    made = pod("job").needs(cpu="10m", memory="16Mi")
    for name, amount in limits.items():
        made = made.asks(name, amount)
    template = made.manifest()
    spec = {**template["spec"], "restartPolicy": "Never"}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "job", "labels": {QUEUE: "team"}},
        "spec": {"template": {"metadata": {}, "spec": spec}},
    }
    jobs = paths.path("batch/v1", "jobs", "default")
    uid = cluster.kube.create(jobs, job)["metadata"]["uid"]
    try:
        (ran,) = scenarios.settled(cluster.kube, 1, "default", running=1)
        assert ran["spec"]["nodeName"] == "v100"
        (assigned,) = beside[1].workload_of(uid)["status"]["admission"]["podSetAssignments"]
        assert amount_of(assigned["resourceUsage"][MEMORY]) == int(charged)
    finally:
        cluster.kube.delete(f"{jobs}/job", {"propagationPolicy": "Background"})


def amount_of(text: str) -> int:
    return int(quantity.parse(text))
