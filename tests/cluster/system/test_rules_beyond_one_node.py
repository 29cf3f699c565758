"""
What other pods and volumes decide: a pod with a share goes where kube-scheduler would let it go, and runs there.

On the real control plane kube-scheduler has the last word, so a pod that runs was accepted by its filters too.
"""

from __future__ import annotations

from typing import Any

import pytest

from contract import names
from playground import scenarios
from playground.cluster import Cluster
from playground.waiting import wait_for
from runtime.kubernetes import paths
from tests.builders import PodBuilder, pod

pytestmark = pytest.mark.system
JSON = dict[str, Any]
HOST = "kubernetes.io/hostname"
SPACE = "default"


def asking(name: str, app: str, **spec: Any) -> PodBuilder:
    """A pod with the label `app` and a small share, which any node serves."""
    made = pod(name).labelled("app", app).asks(names.GPU_MEMORY, "1Gi").spec(**spec)
    return made.tolerates("nvidia.com/gpu")


def required(kind: str, app: str) -> JSON:
    """Required affinity, or anti-affinity, to pods with the label, node by node."""
    term = {"topologyKey": HOST, "labelSelector": {"matchLabels": {"app": app}}}
    return {"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}


def create(cluster: Cluster, *made: PodBuilder) -> None:
    for each in made:
        cluster.kube.create(paths.pods(SPACE), each.manifest())


def await_nodes(cluster: Cluster, *wanted: str) -> list[str]:
    """The nodes on which these pods run."""

    def running() -> dict[str, str]:
        found = [each for each in scenarios.all_pods(cluster.kube) if scenarios.is_running(each)]
        return {each["metadata"]["name"]: each["spec"]["nodeName"] for each in found}

    wait_for(lambda: running().keys() >= set(wanted), lambda: f"{running()} run, not {wanted}")
    nodes = running()
    return [nodes[name] for name in wanted]


def await_waiting(cluster: Cluster, name: str, words: str) -> None:
    def message() -> str:
        return str(scenarios.condition(cluster.kube.get(paths.pods(SPACE, name))).get("message", ""))

    wait_for(lambda: words in message(), lambda: f"{name} says {message()!r}, not {words!r}")


def test_replicas_with_anti_affinity_run_on_a_node_each_and_the_last_waits(cluster: Cluster) -> None:
    nodes = [node.spec.name for node in cluster.nodes]
    replicas = [asking(f"web-{at}", "web", **required("podAntiAffinity", "web")) for at in range(len(nodes))]
    create(cluster, *replicas)
    assert sorted(await_nodes(cluster, *(f"web-{at}" for at in range(len(nodes))))) == sorted(nodes)
    create(cluster, asking("web-more", "web", **required("podAntiAffinity", "web")))
    await_waiting(cluster, "web-more", f"{len(nodes)} because of anti-affinity to another pod")
    cluster.kube.delete(paths.pods(SPACE, "web-0"), {"gracePeriodSeconds": 0})
    await_nodes(cluster, "web-more")


def test_a_pod_runs_beside_the_pod_that_it_wants(cluster: Cluster) -> None:
    for number, node in enumerate(cluster.nodes):
        app = f"db-{number}"
        create(cluster, asking(app, app, nodeSelector={HOST: node.spec.name}))
        await_nodes(cluster, app)
        create(cluster, asking(f"web-{number}", "web", **required("podAffinity", app)))
        assert await_nodes(cluster, f"web-{number}") == [node.spec.name]


def test_a_running_pods_anti_affinity_keeps_others_off_its_node(cluster: Cluster) -> None:
    *quiet, free = [node.spec.name for node in cluster.nodes]
    for node in quiet:
        selected = {"nodeSelector": {HOST: node}, **required("podAntiAffinity", "loud")}
        create(cluster, asking(f"quiet-{node}", "quiet", **selected))
    await_nodes(cluster, *(f"quiet-{node}" for node in quiet))
    create(cluster, *(asking(f"loud-{at}", "loud") for at in range(2)))
    assert await_nodes(cluster, "loud-0", "loud-1") == [free, free]


def test_pods_with_a_hard_spread_constraint_are_spread(cluster: Cluster) -> None:
    nodes = [node.spec.name for node in cluster.nodes]
    selector = {"matchLabels": {"app": "even"}}
    even = {"topologyKey": HOST, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector}
    made = [f"even-{at}" for at in range(len(nodes))]
    create(cluster, *(asking(name, "even", topologySpreadConstraints=[even]) for name in made))
    assert sorted(await_nodes(cluster, *made)) == sorted(nodes)


@pytest.mark.parametrize("last", [False, True], ids=["the first node", "the last node"])
def test_a_pod_runs_where_its_volume_is(cluster: Cluster, last: bool) -> None:
    node = cluster.nodes[-1 if last else 0].spec.name
    there = {"key": HOST, "operator": "In", "values": [node]}
    claims, volumes = paths.path("v1", "persistentvolumeclaims", SPACE), paths.path("v1", "persistentvolumes")
    common = {"accessModes": ["ReadWriteOnce"], "storageClassName": ""}
    volume = {
        **common,
        "capacity": {"storage": "1Gi"},
        "hostPath": {"path": "/data"},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [there]}]}},
    }
    claim = {**common, "volumeName": "disk", "resources": {"requests": {"storage": "1Gi"}}}
    try:
        made = cluster.kube.create(claims, {"metadata": {"name": "data"}, "spec": claim})
        volume["claimRef"] = {"namespace": SPACE, "name": "data", "uid": made["metadata"]["uid"]}
        cluster.kube.create(volumes, {"metadata": {"name": "disk"}, "spec": volume})
        # As the controller of volumes writes it, where there is one.
        bound = {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}}
        cluster.kube.patch_merge(f"{claims}/data", {"metadata": bound})
        mounted = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
        create(cluster, asking("notebook", "notebook", volumes=mounted))
        assert await_nodes(cluster, "notebook") == [node]
    finally:
        scenarios.clear(cluster.kube)
        for where in (f"{claims}/data", f"{volumes}/disk"):
            cluster.kube.patch_merge(where, {"metadata": {"finalizers": None}})
            cluster.kube.delete(where)
