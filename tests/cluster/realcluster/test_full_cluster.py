"""
Kubernetes' own controllers on a full cluster: replacement pods wait for the old ones to end, in the controllers' order.

The cluster has one node with two cards, and each pod requests a whole card.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pytest

from contract import names, pods
from contract.encoding import moments
from kubectl_gpufraction.__main__ import main
from playground import scenarios
from playground.cluster import Cluster
from playground.machinery.kubelet.podrun import EXIT_CODE, RUN_SECONDS
from playground.realapi.components import CONTROLLERS, SCHEDULER
from playground.shapes import gpu_node
from playground.waiting import wait_for
from runtime.kubernetes import paths
from tests.cluster.system import invariants
from tests.cluster.system.rules import SPACE
from tests.clusters import assets_with, real

pytestmark = [pytest.mark.realcluster, pytest.mark.timeout(300)]
JSON = dict[str, Any]
APPS, BATCH = "apps/v1", "batch/v1"
PATIENCE = 120.0
INDEX = "batch.kubernetes.io/job-completion-index"


@pytest.fixture(scope="module")
def one_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    assets = assets_with(SCHEDULER, CONTROLLERS)
    if isinstance(assets, str):
        pytest.skip(assets)
    nodes = (gpu_node("one", "2 x Tesla T4 15109MiB"),)
    with Cluster(nodes=nodes, directory=tmp_path_factory.mktemp("full"), control_plane=real) as cluster:
        yield cluster


@pytest.fixture
def cluster(one_node: Cluster) -> Iterator[Cluster]:
    """The cluster is empty before and afterwards, and the invariants hold."""
    yield one_node
    invariants.check(one_node)
    for version, plural in ((APPS, "statefulsets"), (APPS, "deployments"), (BATCH, "jobs")):
        one_node.kube.delete(paths.path(version, plural, SPACE), {"propagationPolicy": "Background"})
    scenarios.clear(one_node.kube)
    invariants.check(one_node)


def template(name: str, annotations: dict[str, str] | None = None, **spec: Any) -> JSON:
    """Pods that request a whole card each."""
    container = {
        "name": "main",
        "image": "ubuntu:22.04",
        "resources": {"limits": {"gpufraction.io/gpu-memory": "15000Mi"}},
    }
    return {
        "metadata": {"labels": {"app": name}, "annotations": annotations or {}},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 1, **spec},
    }


def create(cluster: Cluster, version: str, kind: str, name: str, spec: JSON) -> str:
    """Create it. Returns its path."""
    body = {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec}
    cluster.kube.create(paths.path(version, f"{kind.lower()}s", SPACE), body)
    return paths.path(version, f"{kind.lower()}s", SPACE, name)


def pair(name: str, **spec: Any) -> JSON:
    """A Deployment or StatefulSet of two pods."""
    return {"replicas": 2, "selector": {"matchLabels": {"app": name}}, "template": template(name), **spec}


def revise(cluster: Cluster, path: str) -> None:
    """A change that makes the controller replace every pod."""
    cluster.kube.patch_merge(path, {"spec": {"template": {"metadata": {"annotations": {"revision": "second"}}}}})


def await_pods(cluster: Cluster, *, running: int, waiting: int = 0, second: int = 0) -> list[JSON]:
    """Wait until this many pods run, this many of them of the second revision, and this many wait. Returns the pods."""
    found: list[JSON] = []

    def settled() -> bool:
        found[:] = scenarios.all_pods(cluster.kube)
        up = [each for each in found if scenarios.is_running(each)]
        revised = [each for each in up if (each["metadata"].get("annotations") or {}).get("revision") == "second"]
        waits = [each for each in found if scenarios.waits(each)]
        return (len(up), len(waits), len(revised), len(found)) == (running, waiting, second, running + waiting)

    wait_for(settled, lambda: scenarios.shown(found), PATIENCE)
    invariants.check(cluster)
    return found


def up(cluster: Cluster, app: str) -> int:
    """How many pods with this label run."""
    found = [each for each in scenarios.all_pods(cluster.kube) if each["metadata"]["labels"].get("app") == app]
    return sum(map(scenarios.is_running, found))


def condition(cluster: Cluster, path: str, kind: str) -> JSON:
    found = (cluster.kube.get(path).get("status") or {}).get("conditions") or []
    return next((each for each in found if each["type"] == kind), {})


def explained(cluster: Cluster, pod: JSON) -> str:
    out = io.StringIO()
    main(["explain", pod["metadata"]["name"], "--kubeconfig", str(cluster.kubeconfig)], out=out, environment={})
    return out.getvalue()


def test_a_deployment_rolls_pod_by_pod_where_every_card_is_taken(cluster: Cluster) -> None:
    one_less = {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}
    path = create(cluster, APPS, "Deployment", "web", pair("web", strategy=one_less))
    await_pods(cluster, running=2)
    revise(cluster, path)
    await_pods(cluster, running=2, second=2)


def test_a_roll_out_that_needs_a_card_more_is_told_of_its_deadline(cluster: Cluster) -> None:
    one_more = {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    made = pair("web", strategy=one_more, progressDeadlineSeconds=20)
    path = create(cluster, APPS, "Deployment", "web", made)
    await_pods(cluster, running=2)
    revise(cluster, path)
    (waits,) = (each for each in await_pods(cluster, running=2, waiting=1) if scenarios.waits(each))
    setting = "spec.progressDeadlineSeconds (20 s) sets that time."
    told = explained(cluster, waits)
    assert "The time of Deployment web end" in told
    assert setting in told
    wait_for(
        lambda: condition(cluster, path, "Progressing").get("reason") == "ProgressDeadlineExceeded",
        lambda: f"{condition(cluster, path, 'Progressing')}",
        PATIENCE,
    )
    assert "The time of Deployment web ended" in explained(cluster, waits)
    await_pods(cluster, running=2, waiting=1)
    less = {"strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}}
    cluster.kube.patch_merge(path, {"spec": less})
    await_pods(cluster, running=2, second=2)
    assert condition(cluster, path, "Progressing")["reason"] == "NewReplicaSetAvailable"


def test_a_stateful_set_restarts_its_pods_in_order_on_their_cards(cluster: Cluster) -> None:
    path = create(cluster, APPS, "StatefulSet", "db", pair("db", serviceName="db"))
    await_pods(cluster, running=2)
    revise(cluster, path)
    found = {each["metadata"]["name"]: each for each in await_pods(cluster, running=2, second=2)}
    ready = {each["type"]: each for each in found["db-1"]["status"]["conditions"]}["Ready"]
    first, then = moments.seconds(ready["lastTransitionTime"]), moments.created(found["db-0"])
    assert first is not None
    assert first <= then


# -- Indexed Jobs -------------------------------------------------------------------------------------------------

POLICY = {
    "rules": [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}},
    ]
}


def indexed(annotations: dict[str, str]) -> JSON:
    """A Job of two pods that start together; neither may fail."""
    made = template("train", {names.GANG_MINIMUM: "2", **annotations}, restartPolicy="Never")
    several = {"completions": 2, "parallelism": 2, "completionMode": "Indexed"}
    return {**several, "backoffLimit": 0, "podFailurePolicy": POLICY, "template": made}


def by_index(found: list[JSON]) -> dict[str, str]:
    """The uid of each index's pod."""
    return {each["metadata"]["annotations"][INDEX]: each["metadata"]["uid"] for each in found}


def test_an_evicted_pod_of_an_indexed_job_is_replaced_on_its_card(cluster: Cluster) -> None:
    path = create(cluster, BATCH, "Job", "train", indexed({EXIT_CODE: "143"}))  # as for a program that SIGTERM ends
    before = await_pods(cluster, running=2)
    (victim,) = (each for each in before if each["metadata"]["annotations"][INDEX] == "1")
    name = victim["metadata"]["name"]
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": SPACE}}
    cluster.kube.create(paths.pods(SPACE, name, "eviction"), eviction)
    old, found = by_index(before), dict[str, str]()

    def replaced() -> bool:
        found.clear()
        found.update(by_index([each for each in scenarios.all_pods(cluster.kube) if scenarios.is_running(each)]))
        return found.keys() == old.keys() and found["1"] != old["1"]

    wait_for(replaced, lambda: scenarios.shown(scenarios.all_pods(cluster.kube)), PATIENCE)
    assert (found["0"], condition(cluster, path, "Failed")) == (old["0"], {})


def test_a_job_whose_sidecar_has_a_card_gives_both_back_as_it_ends(cluster: Cluster) -> None:
    """Without a sidecar that ends after the main container, the Job would hold its cards forever."""
    holds = create(cluster, APPS, "Deployment", "web", {**pair("web"), "replicas": 1})
    await_pods(cluster, running=1)
    made = template("train", {RUN_SECONDS: "1"}, restartPolicy="Never")
    made["spec"]["initContainers"] = [{**made["spec"]["containers"][0], "name": "cache", "restartPolicy": "Always"}]
    path = create(cluster, BATCH, "Job", "train", {"template": made})
    await_pods(cluster, running=1, waiting=1)
    cluster.kube.delete(holds, {"propagationPolicy": "Background"})
    wait_for(lambda: condition(cluster, path, "Complete"), lambda: f"{cluster.kube.get(path)['status']}", PATIENCE)
    (ended,) = scenarios.all_pods(cluster.kube)
    share = pods.carried_allocation(ended)
    assert share is not None
    assert [each.container for each in share.containers] == ["cache", "main"]
    assert len({gpu.uuid for each in share.containers for gpu in each.shares}) == 2
    create(cluster, APPS, "Deployment", "next", pair("next"))
    wait_for(lambda: up(cluster, "next") == 2, lambda: scenarios.shown(scenarios.all_pods(cluster.kube)), PATIENCE)


def test_a_job_that_its_policy_fails_gives_back_every_share(cluster: Cluster) -> None:
    path = create(cluster, BATCH, "Job", "train", indexed({RUN_SECONDS: "1", EXIT_CODE: "42"}))
    wait_for(
        lambda: condition(cluster, path, "Failed").get("reason") == "PodFailurePolicy",
        lambda: f"{cluster.kube.get(path)['status']}",
        PATIENCE,
    )
    create(cluster, APPS, "Deployment", "next", pair("next"))
    wait_for(lambda: up(cluster, "next") == 2, lambda: scenarios.shown(scenarios.all_pods(cluster.kube)), PATIENCE)
