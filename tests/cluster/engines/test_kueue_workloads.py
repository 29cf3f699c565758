"""
Groups, priorities and topologies of Kueue's own program: no share behind its gates, and each share is returned once.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from contract import names, pods
from playground import scenarios
from playground.cluster import Cluster
from playground.engines.kueue import ADMISSION_GATE, Kueue
from playground.programs import installing
from playground.waiting import wait_for
from runtime.kubernetes import paths
from tests.builders import PodBuilder, pod

pytestmark = [pytest.mark.engines, pytest.mark.timeout(300)]
JSON = dict[str, Any]
QUEUE = "kueue.x-k8s.io/queue-name"
MEMORY, CORES = str(names.GPU_MEMORY), str(names.GPU_CORES)
QUOTA = {"cpu": "20", "memory": "40Gi", MEMORY: "8Gi", CORES: "200", "nvidia.com/gpu": "64"}
V100 = {"gpu": "on"}
RACK = "example.com/rack"
REQUIRED = "kueue.x-k8s.io/podset-required-topology"
HIGH = "queued-high"


@pytest.fixture(scope="module", autouse=True)
def queues(beside: tuple[Cluster, Kueue]) -> None:
    """A queue whose workloads preempt by priority, and two queues with a topology: of racks, and of hosts."""
    cluster, kueue = beside
    for node, rack in (("t4", "r1"), ("v100", "r1"), ("a10", "r2")):
        cluster.kube.patch_merge(paths.path("v1", "nodes", None, node), {"metadata": {"labels": {RACK: rack}}})
    kueue.flavor("workloads-v100", V100)
    kueue.queue("workloads", "workloads-v100", QUOTA, preemption={"withinClusterQueue": "LowerPriority"})
    for name, levels in (("racks", [RACK]), ("hosts", [RACK, "kubernetes.io/hostname"])):
        topology = {"levels": [{"nodeLabel": label} for label in levels]}
        kueue.create("topologies", "Topology", name, topology)
        kueue.flavor(name, {"gpushare": "true"} if name == "hosts" else {RACK: "r1"}, topology=name)
        kueue.queue(name, name, {**QUOTA, MEMORY: "64Gi"})
    priorities = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": HIGH}}
    installing.apply(cluster.kube, {**priorities, "value": 1000})


def create(cluster: Cluster, made: PodBuilder, queue: str = "workloads") -> JSON:
    return cluster.kube.create(paths.pods("default"), made.labelled(QUEUE, queue).manifest())


def found(cluster: Cluster) -> list[JSON]:
    return scenarios.all_pods(cluster.kube)


def running(cluster: Cluster) -> Counter[str]:
    """Running pods, by the part of their names before the first hyphen."""
    return Counter(each["metadata"]["name"].split("-")[0] for each in found(cluster) if scenarios.is_running(each))


def member(number: int, total: int) -> PodBuilder:
    made = pod(f"member-{number}").asks(MEMORY, "2Gi").needs(cpu="10m", memory="16Mi")
    return made.labelled("kueue.x-k8s.io/pod-group-name", "group").annotated(
        "kueue.x-k8s.io/pod-group-total-count", str(total)
    )


@pytest.mark.parametrize("pin", ["auto", "affinity"])
def test_identical_members_of_a_group_are_one_pod_set_and_start_together(
    beside: tuple[Cluster, Kueue], cluster: Cluster, pin: str
) -> None:
    for number in range(3):
        create(cluster, member(number, 3).annotated(names.PLACEMENT, pin))
    scenarios.settled(cluster.kube, 3, running=3)
    (workload,) = beside[1].workloads()
    assert [each["count"] for each in workload["spec"]["podSets"]] == [3]


def test_a_group_waits_for_its_quota_as_a_whole_and_holds_no_share(cluster: Cluster) -> None:
    create(cluster, pod("first").asks(MEMORY, "4Gi").needs(cpu="10m", memory="16Mi"))
    scenarios.settled(cluster.kube, 1, running=1)
    for number in range(3):
        create(cluster, member(number, 3))
    scenarios.settled(cluster.kube, 4, running=1)
    assert sum(ADMISSION_GATE in pods.gates(each) for each in found(cluster)) == 3, "two would fit, and all wait"
    cluster.kube.delete(paths.pods("default", "first"))
    wait_for(lambda: running(cluster) == {"member": 3}, lambda: f"they wait: {scenarios.shown(found(cluster))}")


def test_a_pod_of_higher_priority_gets_the_share_of_one_of_lower(cluster: Cluster) -> None:
    asks = pod("p").asks(MEMORY, "4Gi").needs(cpu="10m", memory="16Mi")
    for _ in range(2):
        create(cluster, asks.generated("low-"))
    scenarios.settled(cluster.kube, 2, running=2)
    create(cluster, asks.generated("high-").spec(priorityClassName=HIGH))
    wait_for(
        lambda: running(cluster) == {"low": 1, "high": 1} and len(found(cluster)) == 2,
        lambda: f"not preempted: {scenarios.shown(found(cluster))}",
    )


def test_kueue_chooses_the_rack_and_we_choose_the_node_in_it(cluster: Cluster) -> None:
    asks = pod("p").asks(MEMORY, "20Gi").needs(cpu="10m", memory="16Mi").annotated(REQUIRED, RACK)
    create(cluster, asks, "racks")
    (ran,) = scenarios.settled(cluster.kube, 1, running=1)
    assert (ran["spec"]["nodeSelector"][RACK], ran["spec"]["nodeName"]) == ("r1", "v100")


def test_a_host_that_kueue_chose_is_honoured_and_the_pod_waits_for_room_on_it(cluster: Cluster) -> None:
    """Two T4 of 15 GiB: 20 GiB fit into their sum, which Kueue uses, and into neither of them."""
    create(cluster, pod("p").asks(MEMORY, "20Gi").needs(cpu="10m", memory="16Mi"), "hosts")
    wait_for(
        lambda: [scenarios.waits(each) for each in found(cluster)] not in ([], [""], ["ForeignGate"]),
        lambda: f"it does not wait: {scenarios.shown(found(cluster))}",
    )
    (waits,) = found(cluster)
    assert waits["spec"]["nodeSelector"]["kubernetes.io/hostname"] == "t4"
    message = scenarios.condition(waits)["message"]
    assert "selector" in message, message


def test_a_job_that_asks_for_one_host_learns_why_it_gets_no_pod(cluster: Cluster) -> None:
    spec = pod("p").asks(MEMORY, "2Gi").needs(cpu="10m", memory="16Mi").manifest()["spec"]
    template = {"metadata": {"annotations": {REQUIRED: "kubernetes.io/hostname"}}, "spec": {**spec}}
    template["spec"]["restartPolicy"] = "Never"
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "one-host", "labels": {QUEUE: "hosts"}}}
    cluster.kube.create(paths.path("batch/v1", "jobs", "default"), {**job, "spec": {"template": template}})
    events = paths.path("v1", "events", "default")

    def refusals() -> list[str]:
        return [e["message"] for e in cluster.kube.list(events).items if e["reason"] == "FailedCreate"]

    wait_for(
        lambda: any("name a level above hosts" in text for text in refusals()), lambda: f"it is told: {refusals()}"
    )
