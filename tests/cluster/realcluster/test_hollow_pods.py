"""
What else can happen to a pod with a share on Kubernetes' own programs: it is resized, debugged, limited or applied.
"""

from __future__ import annotations

import pytest

from contract import names
from contract.encoding import quantity
from contract.reasons.nodes import Code
from playground import scenarios
from playground.cluster import Cluster
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import KubeForbidden, KubeInvalid
from runtime.kubernetes.transport import connect_transport
from tests.builders import PodBuilder, pod
from tests.cluster.conformance.asking import Api, Ask
from tests.cluster.realcluster.hollow import JSON, create, found, t4
from tests.cluster.system import invariants

pytestmark = pytest.mark.realcluster


def test_cpu_that_is_resized_changes_nothing_of_the_share(hollow: Cluster) -> None:
    made = create(hollow, t4("grows").needs(cpu="100m").limited(cpu="200m"))
    scenarios.settled(hollow.kube, 1)
    before = scenarios.held(found(hollow, "grows"))
    path = paths.pods("default", "grows", "resize")
    name = made["spec"]["containers"][0]["name"]
    more = {"name": name, "resources": {"requests": {"cpu": "150m"}, "limits": {"cpu": "300m"}}}
    hollow.kube.patch_strategic(path, {"spec": {"containers": [more]}})

    def allocated() -> str:
        (container,) = found(hollow, "grows")["status"]["containerStatuses"]
        return str(container.get("allocatedResources", {}).get("cpu"))

    wait_for(lambda: allocated() == "150m", lambda: str(found(hollow, "grows")["status"]))
    assert scenarios.held(found(hollow, "grows")) == before
    share = {"name": name, "resources": {"limits": {"gpufraction.io/gpu-memory": "2Gi"}}}
    with pytest.raises(KubeInvalid, match="only cpu and memory resources are mutable"):
        hollow.kube.patch_strategic(path, {"spec": {"containers": [share]}})


def test_cpu_that_a_resize_takes_and_gives_back_counts_for_the_next_pod(hollow: Cluster) -> None:
    create(hollow, t4("grows").needs(cpu="100m"))
    (made,) = scenarios.settled(hollow.kube, 1)
    node = hollow.kube.get(paths.nodes(made["spec"]["nodeName"]))
    most = quantity.milli(node["status"]["allocatable"]["cpu"])
    resize(hollow, "grows", most - 300)
    create(hollow, t4("next").needs(cpu="400m"))
    wait_for(lambda: scenarios.waits(found(hollow, "next")) == Code.CPU.word, lambda: str(found(hollow, "next")))
    resize(hollow, "grows", 100)
    wait_for(lambda: scenarios.is_running(found(hollow, "next")), lambda: str(found(hollow, "next")))


def resize(cluster: Cluster, name: str, cpu: int) -> None:
    """The pod's container requests this many thousandths of a CPU from now on, and its kubelet has allocated them."""
    (container,) = found(cluster, name)["spec"]["containers"]
    more = {"name": container["name"], "resources": {"requests": {"cpu": f"{cpu}m"}}}
    cluster.kube.patch_strategic(paths.pods("default", name, "resize"), {"spec": {"containers": [more]}})

    def allocated() -> bool:
        (status,) = found(cluster, name)["status"]["containerStatuses"]
        return quantity.milli(status.get("allocatedResources", {}).get("cpu", "0")) == cpu

    wait_for(allocated, lambda: str(found(cluster, name)["status"]))


def test_a_container_for_debugging_takes_no_share(hollow: Cluster) -> None:
    create(hollow, t4("watched"))
    scenarios.settled(hollow.kube, 1)
    path = paths.pods("default", "watched", "ephemeralcontainers")
    debugger: JSON = {"name": "debugger", "image": "registry.example/tools:1"}
    hollow.kube.patch_strategic(path, {"spec": {"ephemeralContainers": [debugger]}})
    wait_for(
        lambda: "running" in str(found(hollow, "watched")["status"].get("ephemeralContainerStatuses")),
        lambda: str(found(hollow, "watched")["status"]),
    )
    asking = {**debugger, "name": "asks", "resources": {"limits": {"gpufraction.io/gpu-memory": "1Gi"}}}
    with pytest.raises(KubeInvalid, match="cannot be set for an Ephemeral Container"):
        hollow.kube.patch_strategic(path, {"spec": {"ephemeralContainers": [asking]}})


def test_what_a_limit_range_gives_is_requested_and_what_it_forbids_is_not(hollow: Cluster) -> None:
    item = {
        "type": "Container",
        "default": {"gpufraction.io/gpu-memory": "2Gi"},
        "max": {"gpufraction.io/gpu-memory": "4Gi"},
    }
    path = paths.path("v1", "limitranges", "default")
    hollow.kube.create(path, {"metadata": {"name": "gpus"}, "spec": {"limits": [item]}})
    try:
        # The API server's plugin reads limits through its own watch.
        with_default = pod("given").container("main").spec(nodeSelector={"gpushare": "true"})
        wait_for(lambda: has_share(hollow, with_default), "the LimitRange gives nothing yet")
        create(hollow, with_default)
        with pytest.raises(KubeForbidden, match=r"maximum gpufraction.io/gpu-memory usage per Container is 4Gi"):
            create(hollow, t4("beyond", 8192))
        (given,) = scenarios.settled(hollow.kube, 1)
        assert sum(scenarios.held(given).values()) == 2 << 30
        invariants.check(hollow, looking=False)
    finally:
        hollow.kube.delete(f"{path}/gpus")


def has_share(cluster: Cluster, builder: PodBuilder) -> bool:
    made = cluster.kube.create(paths.pods("default"), builder.manifest(), {"dryRun": "All"})
    return names.REQUEST in made["metadata"].get("annotations", {})


def test_a_namespace_ends_with_the_pods_that_run_and_wait_there(hollow: Cluster) -> None:
    hollow.label_namespace("team")
    for number in range(4):
        create(hollow, t4(f"pod-{number}", 10_000, "team"), "team")
    there = scenarios.settled(hollow.kube, 4, "team", running=2)
    assert scenarios.outcome(there).waiting == 2
    hollow.kube.delete(paths.namespaces("team"))

    def ended() -> bool:
        return not scenarios.all_pods(hollow.kube, "team")

    wait_for(ended, lambda: scenarios.shown(scenarios.all_pods(hollow.kube, "team")))
    invariants.check(hollow, looking=False)
    assert invariants.figures(hollow)['gpufraction_reservations{state="confirmed"}'] == 0


def test_what_is_applied_twice_is_the_same_pod(hollow: Cluster) -> None:
    """
    Server-side apply of a Deployment in another system's format: its owner keeps that format, and its pods have ours.
    """
    spec = {
        "replicas": 1,
        "selector": {"matchLabels": {"app": "web"}},
        "template": {
            "metadata": {"labels": {"app": "web"}},
            "spec": pod("x").asks("nvidia.com/gpumem", 3000).asks("nvidia.com/gpu", 1).manifest()["spec"],
        },
    }
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": spec}
    path = paths.deployments("default", "web")
    transport = connect_transport(kubeconfig=str(hollow.kubeconfig), context=None, user_agent="test")
    tenant, versions = Api(transport, "default"), set()
    for _ in range(3):
        apply = Ask("PATCH", path, deployment, "application/apply-patch+yaml", {"fieldManager": "tenant"})
        versions.add(tenant.done(apply)["metadata"]["generation"])
    (running,) = scenarios.settled(hollow.kube, 1)
    assert (versions, sum(scenarios.held(running).values())) == ({1}, 3000 << 20)
