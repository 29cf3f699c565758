"""Scheduler and kubelet on the real API server."""

from __future__ import annotations

import random

from playground.api.kinds.values import JSON
from playground.machinery.objects import conditions
from tests.unit.playground.machinery.builders import GPU_MEMORY, pinned_to
from tests.unit.playground.machinery.driving import JSON_PATCH, PODS, Cluster, pod


def publish(cluster: Cluster, node: str, amount: str) -> None:
    """What a node agent does: it writes only the capacity."""
    cluster.merge(f"/api/v1/nodes/{node}/status", {"status": {"capacity": {GPU_MEMORY: amount}}})
    cluster.wait(
        lambda: cluster.do("GET", f"/api/v1/nodes/{node}")["status"]["allocatable"].get(GPU_MEMORY) == amount,
        "capacity copied to allocatable",
    )


def test_a_pod_waits_with_the_reason_and_starts_when_a_node_gains_the_resource(cluster: Cluster) -> None:
    cluster.nodes("n1", "n2")
    cluster.do("POST", PODS, pod("p", limits={GPU_MEMORY: "8Gi"}))
    message = "0/2 nodes are available: 2 Insufficient gpufraction.io/gpu-memory."
    why = cluster.condition(f"{PODS}/p", "PodScheduled", "False")
    assert (why["reason"], why["message"]) == ("Unschedulable", message)
    cluster.wait(lambda: cluster.events("FailedScheduling") == [message])
    publish(cluster, "n2", "16Gi")
    assert cluster.phase("p", "Running")["spec"]["nodeName"] == "n2"


def test_a_pod_without_any_node_starts_with_the_first(cluster: Cluster) -> None:
    cluster.do("POST", PODS, pod("p"))
    why = cluster.condition(f"{PODS}/p", "PodScheduled", "False")
    assert why["message"] == "no nodes available to schedule pods"
    cluster.nodes("n1")
    value = cluster.phase("p", "Running")
    assert conditions.holds(value, "PodScheduled")
    assert value["status"]["hostIP"] == "10.0.0.1"


def test_a_gated_pod_is_left_alone_until_its_gate_goes(cluster: Cluster) -> None:
    cluster.nodes("n1")
    cluster.do("POST", PODS, pod("gated", schedulingGates=[{"name": "gpufraction.io/allocation"}]))
    cluster.do("POST", PODS, pod("later"))
    cluster.phase("later", "Running")
    gated = cluster.pod("gated")
    assert (gated["spec"].get("nodeName"), cluster.events("FailedScheduling")) == (None, [])
    cluster.do("PATCH", f"{PODS}/gated", [{"op": "remove", "path": "/spec/schedulingGates"}], JSON_PATCH)
    cluster.phase("gated", "Running")


def test_a_pod_of_another_scheduler_is_left_alone(cluster: Cluster) -> None:
    cluster.nodes("n1")
    cluster.do("POST", PODS, pod("theirs", schedulerName="another"))
    cluster.do("POST", PODS, pod("ours"))
    cluster.phase("ours", "Running")
    assert cluster.pod("theirs")["spec"].get("nodeName") is None


def test_a_pinned_pod_goes_where_it_is_pinned(cluster: Cluster) -> None:
    cluster.nodes("n1", "n2", "n3")
    cluster.do("POST", PODS, pod("p", affinity=pinned_to("n3")))
    assert cluster.phase("p", "Running")["spec"]["nodeName"] == "n3"


def test_a_pod_bound_past_the_scheduler_meets_the_nodes_admission(cluster: Cluster) -> None:
    cluster.nodes("n1")
    publish(cluster, "n1", "16Gi")
    cluster.do("POST", PODS, pod("first", limits={GPU_MEMORY: "10Gi"}, nodeName="n1"))
    cluster.phase("first", "Running")
    cluster.do("POST", PODS, pod("second", limits={GPU_MEMORY: "10Gi"}, nodeName="n1"))
    status = cluster.phase("second", "Failed")["status"]
    assert (status["reason"], status["message"]) == (
        "OutOfgpufraction.io/gpu-memory",
        "Pod was rejected: Node didn't have enough resource: gpufraction.io/gpu-memory, requested: 10737418240, "
        "used: 10737418240, capacity: 17179869184",
    )
    cluster.do("DELETE", f"{PODS}/first")
    cluster.wait(lambda: cluster.get(f"{PODS}/first") is None)
    assert cluster.pod("second")["status"]["phase"] == "Failed"
    cluster.do("POST", PODS, pod("third", limits={GPU_MEMORY: "10Gi"}, nodeName="n1"))
    cluster.phase("third", "Running")


def test_a_pod_waits_for_a_node_that_is_not_there_yet(cluster: Cluster) -> None:
    cluster.do("POST", PODS, pod("p", nodeName="n9"))
    cluster.nodes("n9")
    cluster.phase("p", "Running")


def test_a_freed_share_goes_to_the_pod_that_waits(cluster: Cluster) -> None:
    cluster.nodes("n1")
    publish(cluster, "n1", "16Gi")
    for name in ("a", "b"):
        cluster.do("POST", PODS, pod(name, limits={GPU_MEMORY: "10Gi"}))
    cluster.condition(f"{PODS}/b", "PodScheduled", "False")
    cluster.phase("a", "Running")
    cluster.do("DELETE", f"{PODS}/a")
    cluster.phase("b", "Running")
    assert cluster.overcommitted() == []


def test_the_higher_priority_goes_first(cluster: Cluster) -> None:
    cluster.do("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", {"metadata": {"name": "urgent"}, "value": 100})
    low, high = pod("low", limits={"cpu": "10"}), pod("high", limits={"cpu": "10"}, priorityClassName="urgent")
    for value in (low, high):
        cluster.do("POST", PODS, value)
        cluster.condition(f"{PODS}/{value['metadata']['name']}", "PodScheduled", "False")
    cluster.nodes("n1")
    cluster.phase("high", "Running")
    assert cluster.pod("low")["spec"].get("nodeName") is None


def test_a_container_sees_what_its_annotation_says(cluster: Cluster) -> None:
    cluster.nodes("n1")
    devices = {"fieldRef": {"fieldPath": "metadata.annotations['gpufraction.io/devices.main']"}}
    env: list[JSON] = [
        {"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": devices},
        {"name": "CUDA_DEVICE_MEMORY_LIMIT", "value": "5120m"},
    ]
    annotations = {"gpufraction.io/devices.main": "GPU-n1-1"}
    cluster.do("POST", PODS, pod("p", env=env, annotations=annotations, image="nvidia/cuda"))
    cluster.do("POST", PODS, pod("none", env=env, image="nvidia/cuda"))
    cluster.phase("p", "Running")
    cluster.phase("none", "Running")
    assert cluster.machinery.logs("default", "p", "main").splitlines() == [
        "NVIDIA_VISIBLE_DEVICES=GPU-n1-1",
        "CUDA_DEVICE_MEMORY_LIMIT=5120m",
        "GPU 0: Tesla T4 (UUID: GPU-n1-1) 0MiB / 5120MiB",
    ]
    assert cluster.machinery.logs("default", "none", "main").splitlines() == [
        "NVIDIA_VISIBLE_DEVICES=",
        "CUDA_DEVICE_MEMORY_LIMIT=5120m",
    ]
    assert cluster.machinery.logs("default", "nobody", "main") == ""


def states(found: JSON) -> list[JSON]:
    """The states of a pod's containers, as far as the kubelet has written them."""
    return [each["state"] for each in found["status"].get("containerStatuses", [])]


def test_a_container_waits_for_its_configuration(cluster: Cluster) -> None:
    cluster.nodes("n1")
    reference = {"configMapKeyRef": {"name": "settings", "key": "GPU"}}
    cluster.do("POST", PODS, pod("p", env=[{"name": "GPU_MODE", "valueFrom": reference}]))
    waiting = {"reason": "CreateContainerConfigError", "message": 'configmap "settings" not found'}
    # The kubelet records its Event before it writes the status.
    cluster.wait(lambda: states(cluster.pod("p")) == [{"waiting": waiting}])
    assert cluster.events("Failed") != []
    path = "/api/v1/namespaces/default/configmaps"
    cluster.do("POST", path, {"metadata": {"name": "settings"}, "data": {"GPU": "shared"}})
    cluster.phase("p", "Running")
    assert cluster.machinery.logs("default", "p", "main") == "GPU_MODE=shared\n"


def test_a_silent_node_gets_no_pods_and_keeps_its_own_until_it_is_back(cluster: Cluster) -> None:
    cluster.nodes("n1", "n2")
    cluster.do("POST", PODS, pod("there", nodeName="n1"))
    cluster.phase("there", "Running")
    cluster.machinery.fail_node("n1")
    cluster.wait(lambda: len(cluster.do("GET", "/api/v1/nodes/n1")["spec"].get("taints") or []) == 2)
    cluster.do("DELETE", f"{PODS}/there")
    for name in ("a", "b"):
        cluster.do("POST", PODS, pod(name))
        assert cluster.phase(name, "Running")["spec"]["nodeName"] == "n2"
    assert cluster.pod("there")["metadata"]["deletionTimestamp"]
    cluster.machinery.restart_node("n1")
    cluster.wait(lambda: cluster.get(f"{PODS}/there") is None)
    cluster.condition("/api/v1/nodes/n1", "Ready")
    assert cluster.do("GET", "/api/v1/nodes/n1")["spec"].get("taints") is None


def test_the_pods_of_a_deleted_node_go_with_it(cluster: Cluster) -> None:
    cluster.nodes("n1")
    cluster.do("POST", PODS, pod("p"))
    cluster.phase("p", "Running")
    cluster.do("DELETE", "/api/v1/nodes/n1")
    cluster.wait(lambda: cluster.get(f"{PODS}/p") is None)


def test_no_node_is_ever_overcommitted_under_churn(cluster: Cluster) -> None:
    """More pods than fit, some deleted and some bound without the scheduler at random; at rest everything adds up."""
    draw = random.Random(7)
    cluster.nodes("n1", "n2", cpu="4")
    names = [f"p{i}" for i in range(40)]
    for name in names:
        direct = {"nodeName": draw.choice(["n1", "n2"])} if draw.random() < 0.2 else {}
        cluster.do("POST", PODS, pod(name, limits={"cpu": draw.choice(["500m", "1", "2"])}, **direct))
        if draw.random() < 0.4:
            victim = draw.choice(cluster.pods())["metadata"]["name"]
            cluster.api.call("DELETE", f"{PODS}/{victim}")

    def settled() -> bool:
        return all(
            value["status"]["phase"] in ("Running", "Failed") or conditions.find(value, "PodScheduled") is not None
            for value in cluster.pods()
            if not value["metadata"].get("deletionTimestamp")
        ) and not any(value["metadata"].get("deletionTimestamp") for value in cluster.pods())

    cluster.wait(settled)
    assert cluster.overcommitted() == []
    for value in cluster.pods():
        cluster.api.call("DELETE", f"{PODS}/{value['metadata']['name']}")
    cluster.wait(lambda: cluster.pods() == [])
    cluster.do("POST", PODS, pod("whole", limits={"cpu": "4"}))
    cluster.phase("whole", "Running")
