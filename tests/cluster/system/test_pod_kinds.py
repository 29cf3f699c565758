"""
Pods that request a share and use other features: what Kubernetes offers must still work with gpufraction.

Each test's sentence holds on both control planes, and so do the invariants after it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from contract import names, pods
from playground import scenarios
from playground.cluster import Cluster
from playground.scenarios import Outcome
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import KubeConflict, KubeError, KubeNotFound
from tests.builders import PodBuilder, pod
from tests.cluster.system import invariants
from tests.versions import WHOLE_PODS, needs

pytestmark = pytest.mark.system
JSON = dict[str, Any]
MEMORY = "gpufraction.io/gpu-memory"
ON_T4 = {"nodeSelector": {"gpushare": "true"}}
CARD = "15109Mi"


def t4(name: str, amount: str = "1Gi") -> PodBuilder:
    return pod(name).asks(MEMORY, amount).spec(**ON_T4)


def create(cluster: Cluster, builder: PodBuilder, namespace: str = "default") -> JSON:
    return cluster.kube.create(paths.pods(namespace), builder.manifest())


def run(cluster: Cluster, *builders: PodBuilder) -> None:
    """Create them, and wait until they run, so that later pods find them on the node however busy this machine is."""
    for builder in builders:
        create(cluster, builder)
    scenarios.settled(cluster.kube, len(builders), running=len(builders))


def found(cluster: Cluster, name: str) -> JSON:
    return cluster.kube.get(paths.pods("default", name))


def without_limits(builder: PodBuilder) -> PodBuilder:
    (container,) = builder.manifest()["spec"]["containers"]
    container["resources"] = {"requests": container["resources"]["limits"]}
    return builder.spec(containers=[container])


RUNS = {
    "a name that the API server makes": (t4("x").generated("made-"), 1, 1 << 30),
    "a request without a limit": (without_limits(t4("x")), 1, 1 << 30),
    "resources of the whole pod": (t4("x").spec(resources={"limits": {"cpu": "100m", "memory": "64Mi"}}), 1, 1 << 30),
    "the highest priority of all": (t4("x").spec(priorityClassName="system-node-critical"), 1, 1 << 30),
    "the host's network": (t4("x").spec(hostNetwork=True, dnsPolicy="ClusterFirstWithHostNet"), 1, 1 << 30),
    "the system that all GPU nodes have": (t4("x").spec(os={"name": "linux"}), 1, 1 << 30),
    "a deadline": (t4("x").spec(activeDeadlineSeconds=3600), 1, 1 << 30),
    "a share in each kind of container": (
        pod("x").init("fetch").asks(MEMORY, "2Gi").sidecar("proxy").asks(MEMORY, "1Gi").container("main")
        .asks(MEMORY, "4Gi").spec(**ON_T4),
        1,
        5 << 30,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", RUNS.values(), ids=RUNS.keys())
def test_it_runs_with_its_share(cluster: Cluster, case: tuple[PodBuilder, int, int]) -> None:
    builder, gpus, held = case
    create(cluster, builder)
    (there,) = scenarios.settled(cluster.kube, 1, running=1)
    assert scenarios.outcome([there]) == Outcome(running=1, nodes=("t4",), gpus=gpus)
    assert sum(scenarios.held(there).values()) >= held


REFUSED = {
    "another operating system": (t4("x").spec(os={"name": "windows"}), "GPU shares are available only on Linux nodes"),
    "a node that is not there": (pod("x").asks(MEMORY, "1Gi").on("ghost"), "3 not the node that the pod names"),
    "a RuntimeClass that is not there": (t4("x").spec(runtimeClassName="ghost"), 'RuntimeClass "ghost" not found'),
    "a priority that is not there": (t4("x").spec(priorityClassName="ghost"), "no PriorityClass with name ghost"),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED.keys())
def test_it_is_refused_with_the_reason(cluster: Cluster, case: tuple[PodBuilder, str]) -> None:
    builder, words = case
    with pytest.raises(KubeError) as refused:
        create(cluster, builder)
    assert words in str(refused.value)
    assert scenarios.all_pods(cluster.kube) == []


def test_a_share_of_the_whole_pod_is_refused_with_the_reason(cluster: Cluster) -> None:
    needs(WHOLE_PODS, cluster.kube.version())
    with pytest.raises(KubeError, match=r"spec.resources.limits\[gpufraction.io/gpu-memory\]: Unsupported value"):
        create(cluster, pod("x").container("main").spec(resources={"limits": {MEMORY: "1Gi"}}))
    assert scenarios.all_pods(cluster.kube) == []


def test_somebody_elses_gate_goes_first(cluster: Cluster) -> None:
    made = create(cluster, t4("held").spec(schedulingGates=[{"name": "example.com/wait"}]))
    assert pods.gates(made) == ("example.com/wait", names.GATE)
    (waiting,) = scenarios.settled(cluster.kube, 1)
    assert scenarios.condition(waiting)["message"] == "held by the scheduling gate example.com/wait first"
    invariants.check(cluster)
    cluster.kube.patch_json(paths.pods("default", "held"), [{"op": "remove", "path": "/spec/schedulingGates/0"}])
    wait_for(lambda: scenarios.is_running(found(cluster, "held")), lambda: str(found(cluster, "held")))


def test_resources_of_the_whole_pod_are_counted(cluster: Cluster) -> None:
    needs(WHOLE_PODS, cluster.kube.version())
    whole = {"requests": {"cpu": "20"}}
    run(cluster, t4("first").spec(resources=whole))
    create(cluster, t4("second").spec(resources=whole))
    scenarios.settled(cluster.kube, 2)
    assert "short of CPU" in scenarios.condition(found(cluster, "second"))["message"]


def test_a_runtimes_overhead_is_counted(cluster: Cluster) -> None:
    path = paths.runtimeclasses()
    heavy = {"metadata": {"name": "heavy"}, "handler": "heavy", "overhead": {"podFixed": {"cpu": "20"}}}
    cluster.kube.create(path, heavy)
    try:
        run(cluster, t4("first").spec(runtimeClassName="heavy"))
        create(cluster, t4("second").spec(runtimeClassName="heavy"))
        scenarios.settled(cluster.kube, 2)
        assert "short of CPU" in scenarios.condition(found(cluster, "second"))["message"]
    finally:
        cluster.kube.delete(paths.runtimeclasses("heavy"))


def test_a_port_of_the_host_is_given_once(cluster: Cluster) -> None:
    run(cluster, t4("first").host_port(8080))
    create(cluster, t4("second").host_port(8080))
    scenarios.settled(cluster.kube, 2)
    assert "port" in scenarios.condition(found(cluster, "second"))["message"]
    cluster.kube.delete(paths.pods("default", "first"))
    wait_for(lambda: scenarios.is_running(found(cluster, "second")), lambda: str(found(cluster, "second")))


# -- other users' actions on waiting or running pods ----------------------------------------------------------------


@pytest.fixture
def full(cluster: Cluster) -> Cluster:
    """Both cards of the node are allocated, to `one` and `two`; `waits` requests one of them."""
    run(cluster, t4("one", CARD), t4("two", CARD))
    create(cluster, t4("waits", CARD))
    scenarios.settled(cluster.kube, 3)
    assert scenarios.waits(found(cluster, "waits")) == "Memory"
    return cluster


def evict(cluster: Cluster, name: str) -> None:
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": "default"}}
    cluster.kube.create(paths.pods("default", name, "eviction"), eviction)


def is_deleted(cluster: Cluster, name: str) -> bool:
    try:
        found(cluster, name)
    except KubeNotFound:
        return True
    return False


def test_an_evicted_pod_makes_room_for_who_waits(full: Cluster) -> None:
    evict(full, "one")
    wait_for(lambda: scenarios.is_running(found(full, "waits")), lambda: str(found(full, "waits")))


def test_a_pod_that_is_evicted_while_it_waits_is_forgotten(full: Cluster) -> None:
    evict(full, "waits")
    wait_for(lambda: is_deleted(full, "waits"), "it is still there")
    invariants.check(full)
    full.kube.delete(paths.pods("default", "one"))
    wait_for(lambda: is_deleted(full, "one"), "it is still there")
    create(full, t4("next", CARD))
    wait_for(lambda: scenarios.is_running(found(full, "next")), lambda: str(found(full, "next")))


def test_nobody_binds_a_pod_that_waits(full: Cluster) -> None:
    target = {"apiVersion": "v1", "kind": "Node", "name": "v100"}
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "waits"}, "target": target}
    with pytest.raises(KubeConflict, match=r"has non-empty \.spec\.schedulingGates"):
        full.kube.create(paths.pods("default", "waits", "binding"), binding)
    assert scenarios.waits(found(full, "waits")) == "Memory"


def test_a_deleted_pod_frees_its_share_before_its_object_is_removed(full: Cluster) -> None:
    listing = full.kube.list(paths.pods("default"))
    full.kube.delete(paths.pods("default", "one"))
    query = {"fieldSelector": "metadata.name=one"}
    events: Iterator[JSON] = full.kube.watch(
        paths.pods("default"), resource_version=listing.resource_version, query=query, timeout_seconds=30
    )
    phases = []
    for event in events:
        if event["type"] != "BOOKMARK":
            phases.append(event["object"]["status"]["phase"])
        if event["type"] == "DELETED":
            break
    assert list(dict.fromkeys(phases)) == ["Running", "Succeeded"]
    wait_for(lambda: scenarios.is_running(found(full, "waits")), lambda: str(found(full, "waits")))


def test_a_job_that_is_suspended_holds_nothing(cluster: Cluster) -> None:
    template = {"spec": {**t4("x").manifest()["spec"], "restartPolicy": "Never"}}
    spec = {"suspend": True, "parallelism": 2, "completions": 2, "template": template}
    path = paths.jobs("default", "job")
    cluster.kube.create(
        paths.jobs("default"), {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "job"}, "spec": spec}
    )
    cluster.kube.patch_merge(path, {"spec": {"suspend": False}})
    scenarios.settled(cluster.kube, 2, running=2)
    cluster.kube.patch_merge(path, {"spec": {"suspend": True}})
    wait_for(lambda: scenarios.all_pods(cluster.kube) == [], lambda: scenarios.shown(scenarios.all_pods(cluster.kube)))
    invariants.check(cluster)
    cluster.kube.patch_merge(path, {"spec": {"suspend": False}})
    scenarios.settled(cluster.kube, 2, running=2)
