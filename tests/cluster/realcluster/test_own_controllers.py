"""
Kubernetes' own controllers, scheduler and controller of volumes, with two zones of two nodes. The tests scale, drain
and roll out workloads whose pods depend on volumes and on each other.

After each step the invariants hold, and every pod that has a node runs. No provisioner runs; a test creates the
volumes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from playground import scenarios
from playground.cluster import Cluster
from playground.realapi.components import CONTROLLERS, SCHEDULER
from playground.shapes import gpu_node
from playground.waiting import wait_for
from runtime.kubernetes import paths
from tests.builders import PodBuilder
from tests.cluster.system import invariants, rules
from tests.cluster.system.rules import HOST, SPACE, ZONE, Disks, asking, required, spread
from tests.clusters import assets_with, real

pytestmark = [pytest.mark.realcluster, pytest.mark.timeout(300)]
JSON = dict[str, Any]
NODES = tuple(
    gpu_node(f"{zone}{number}", "2 x Tesla T4 15109MiB", labels={ZONE: zone}) for zone in "ab" for number in (0, 1)
)
BY_REVISION = {"matchLabelKeys": ["pod-template-hash"]}


@pytest.fixture(scope="module")
def two_zones(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    assets = assets_with(SCHEDULER, CONTROLLERS)
    if isinstance(assets, str):
        pytest.skip(assets)
    settings = {"allocator": ("--assume-ttl", "2s", "--repair-every", "1s")}
    directory = tmp_path_factory.mktemp("zones")
    with Cluster(nodes=NODES, directory=directory, settings=settings, control_plane=real) as cluster:
        yield cluster


@pytest.fixture
def cluster(two_zones: Cluster) -> Iterator[Cluster]:
    """The cluster is empty before and afterwards, and the invariants hold."""
    yield two_zones
    invariants.check(two_zones)
    sets = paths.path("apps/v1", "statefulsets", SPACE)
    two_zones.kube.delete(sets, {"propagationPolicy": "Background"})
    wait_for(lambda: not two_zones.kube.list(sets).items, "StatefulSets are still there")
    scenarios.clear(two_zones.kube)
    invariants.check(two_zones)


@pytest.fixture
def disks(cluster: Cluster) -> Iterator[Disks]:
    made = Disks(cluster.kube)
    yield made
    cluster.kube.delete(paths.path("apps/v1", "statefulsets", SPACE), {"propagationPolicy": "Background"})
    scenarios.clear(cluster.kube)
    made.remove()


def workload(kind: str, name: str, replicas: int, template: PodBuilder, **spec: Any) -> JSON:
    """A Deployment or StatefulSet of pods with the label `app: NAME`."""
    labels = {"app": name}
    pods = {"metadata": {"labels": labels}, "spec": template.manifest()["spec"]}
    chosen = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": pods, **spec}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name}, "spec": chosen}


def change(cluster: Cluster, plural: str, name: str, spec: JSON) -> None:
    cluster.kube.patch_merge(paths.path("apps/v1", plural, SPACE, name), {"spec": spec})


def revised(revision: str) -> JSON:
    """A change that makes a controller replace every pod."""
    return {"template": {"metadata": {"annotations": {"revision": revision}}}}


def revision_of(pod: JSON) -> str:
    return str((pod["metadata"].get("annotations") or {}).get("revision", ""))


def await_running(cluster: Cluster, count: int, *, waiting: int = 0, revision: str = "") -> list[JSON]:
    """Wait until this many pods run, all of this revision, and this many wait. Returns the pods."""
    found: list[JSON] = []

    def settled() -> bool:
        found[:] = scenarios.all_pods(cluster.kube)
        running = [each for each in found if scenarios.is_running(each) and revision_of(each) == revision]
        waits = [each for each in found if scenarios.waits(each)]
        return (len(running), len(waits), len(found)) == (count, waiting, count + waiting)

    wait_for(settled, lambda: f"{count} of {revision!r} and {waiting} wanted: {scenarios.shown(found)}", 120)
    invariants.check(cluster)
    return [each for each in found if scenarios.is_running(each)]


def zone_of(pod: JSON) -> str:
    return str(pod["spec"]["nodeName"])[0]


# -- a StatefulSet with a volume for each pod ---------------------------------------------------------------------

CLAIMS = [
    {
        "metadata": {"name": "data"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "zonal",
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }
]


def volumes_by_pod(cluster: Cluster) -> dict[str, str]:
    """The volume of each pod's claim."""
    claims = cluster.kube.list(paths.path("v1", "persistentvolumeclaims", SPACE)).items
    return {each["metadata"]["name"].removeprefix("data-"): each["spec"].get("volumeName", "") for each in claims}


def amiss(cluster: Cluster, pods: list[JSON]) -> dict[str, str]:
    """The pods that are not in the zone of their volume, whose name contains the zone."""
    volumes = volumes_by_pod(cluster)
    there = {each["metadata"]["name"]: zone_of(each) for each in pods}
    return {name: zone for name, zone in there.items() if not volumes[name].startswith(f"disk-{zone}")}


def drain(cluster: Cluster, *nodes: str) -> None:
    """What `kubectl drain` does once the nodes are cordoned."""
    for each in scenarios.all_pods(cluster.kube):
        if each["spec"].get("nodeName") in nodes:
            name = each["metadata"]["name"]
            eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": SPACE}}
            cluster.kube.create(paths.pods(SPACE, name, "eviction"), eviction)


@pytest.fixture
def database(cluster: Cluster, disks: Disks) -> Iterator[Cluster]:
    """Two pods `db`, spread over the zones. In each zone there is a volume for four pods."""
    disks.storage_class("zonal", delayed=True)
    for zone in "ab":
        for number in range(4):
            disks.volume(f"disk-{zone}{number}", reach=(ZONE, zone), storage_class="zonal")
    template = asking("x", "db", terminationGracePeriodSeconds=1, **spread("db"))
    policy = {"podManagementPolicy": "Parallel", "serviceName": "db", "volumeClaimTemplates": CLAIMS}
    for container in template.manifest()["spec"]["containers"]:
        container["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
        template = template.spec(containers=[container])
    cluster.kube.create(
        paths.path("apps/v1", "statefulsets", SPACE), workload("StatefulSet", "db", 2, template, **policy)
    )
    try:
        yield cluster
    finally:
        change(cluster, "statefulsets", "db", {"replicas": 0})
        wait_for(
            lambda: not scenarios.all_pods(cluster.kube), lambda: scenarios.shown(scenarios.all_pods(cluster.kube))
        )
        claims = paths.path("v1", "persistentvolumeclaims", SPACE)
        cluster.kube.delete(claims)
        wait_for(lambda: not cluster.kube.list(claims).items, "claims are still there")


def test_a_stateful_set_is_scaled_and_each_pod_comes_back_to_its_volume(database: Cluster) -> None:
    assert Counter(map(zone_of, await_running(database, 2))) == {"a": 1, "b": 1}
    change(database, "statefulsets", "db", {"replicas": 5})
    pods = await_running(database, 5)
    assert (sorted(Counter(map(zone_of, pods)).values()), amiss(database, pods)) == ([2, 3], {})
    volumes = volumes_by_pod(database)
    for replicas in (1, 5):
        change(database, "statefulsets", "db", {"replicas": replicas})
        pods = await_running(database, replicas)
        assert (amiss(database, pods), volumes_by_pod(database)) == ({}, volumes)


def test_a_stateful_set_is_drained_within_the_zones_of_its_volumes(database: Cluster) -> None:
    change(database, "statefulsets", "db", {"replicas": 4})
    await_running(database, 4)
    with rules.cordoned(database.kube, "a0"):
        drain(database, "a0")
        pods = await_running(database, 4)
        assert (Counter(each["spec"]["nodeName"] for each in pods)["a1"], amiss(database, pods)) == (2, {})
        with rules.cordoned(database.kube, "a1"):
            drain(database, "a1")
            await_running(database, 2, waiting=2)
            why = {scenarios.condition(each).get("message") for each in scenarios.all_pods(database.kube)}
            full = "waiting: 0 of 4 GPU nodes fit: 2 because of a volume that the node cannot reach, 2 cordoned"
            assert full in why
    assert amiss(database, await_running(database, 4)) == {}


def test_a_stateful_set_is_rolled_and_each_pod_keeps_its_volume(database: Cluster) -> None:
    change(database, "statefulsets", "db", {"replicas": 4})
    await_running(database, 4)
    volumes = volumes_by_pod(database)
    for revision in ("second", "third"):
        change(database, "statefulsets", "db", revised(revision))
        pods = await_running(database, 4, revision=revision)
        assert (amiss(database, pods), volumes_by_pod(database)) == ({}, volumes)


# -- Deployments --------------------------------------------------------------------------------------------------


def test_a_deployment_that_is_spread_stays_even_through_roll_outs(cluster: Cluster) -> None:
    template = asking("x", "web", terminationGracePeriodSeconds=1, **spread("web", more=BY_REVISION))
    made = workload("Deployment", "web", 5, template)
    cluster.kube.create(paths.path("apps/v1", "deployments", SPACE), made)
    for revision in ("", "second", "third", "fourth"):
        if revision:
            change(cluster, "deployments", "web", revised(revision))
        pods = await_running(cluster, 5, revision=revision)
        assert sorted(Counter(map(zone_of, pods)).values()) == [2, 3]


def test_of_three_replicas_with_anti_affinity_on_two_nodes_one_waits(cluster: Cluster) -> None:
    two = {"nodeSelector": {ZONE: "a"}}
    template = asking("x", "web", terminationGracePeriodSeconds=1, **required("podAntiAffinity", "web", HOST), **two)
    made = workload("Deployment", "web", 3, template)
    cluster.kube.create(paths.path("apps/v1", "deployments", SPACE), made)
    pods = await_running(cluster, 2, waiting=1)
    assert sorted(each["spec"]["nodeName"] for each in pods) == ["a0", "a1"]
    (waits,) = (each for each in scenarios.all_pods(cluster.kube) if scenarios.waits(each))
    reported = scenarios.condition(waits)
    # The condition's reason is that of the nodes that the pod passed most filters on.
    assert (reported["reason"], reported["message"]) == (
        "PodAntiAffinity",
        "waiting: 0 of 4 GPU nodes fit: 2 because of anti-affinity to another pod, 2 not matching the pod's node "
        "selector or affinity",
    )
    rules.end(cluster, pods[0]["metadata"]["name"])
    assert sorted(each["spec"]["nodeName"] for each in await_running(cluster, 2, waiting=1)) == ["a0", "a1"]
    with rules.labelled(cluster.kube, {"b0": "a"}):
        assert sorted(each["spec"]["nodeName"] for each in await_running(cluster, 3)) == ["a0", "a1", "b0"]
        change(cluster, "deployments", "web", {"replicas": 0})
        await_running(cluster, 0)
