"""A GPU that is allocated twice, a pod that is not counted, and a pod of higher priority: what happens to each."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from contract import names
from playground import scenarios
from playground.cluster import Cluster
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube, KubeNotFound
from tests.builders import PodBuilder, pod
from tests.cluster.system import invariants
from tests.cluster.trouble.proxy import Fault, Mute, Proxy
from tests.clusters import control_planes

pytestmark = [pytest.mark.system, pytest.mark.long]
JSON = dict[str, Any]
CLASSES = (("low", 10, "PreemptLowerPriority"), ("high", 1000, "PreemptLowerPriority"), ("gentle", 1000, "Never"))
EVICTS = ("--repair-every", "1s", "--repair", "evict", "--preemption")


@pytest.fixture(scope="module")
def proxy() -> Iterator[Proxy]:
    """The proxy between the allocator of the strict cluster and its API server."""
    made = Proxy()
    yield made
    made.close()


@pytest.fixture(scope="module", params=control_planes(long=True))
def strict_cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, proxy: Proxy
) -> Iterator[Cluster]:
    """A cluster whose allocator may evict pods, and does so."""

    def route(program: str, kubeconfig: str) -> str:
        return proxy.kubeconfig(kubeconfig) if program == "allocator" else kubeconfig

    with Cluster(
        directory=tmp_path_factory.mktemp("strict"),
        settings={"allocator": EVICTS},
        control_plane=request.param,
        components=("allocator-eviction",),
        route=route,
    ) as cluster:
        for name, value, policy in CLASSES:
            made = {"metadata": {"name": name}, "value": value, "preemptionPolicy": policy}
            cluster.kube.create(paths.priorityclasses(), made)
        yield cluster


@pytest.fixture
def strict(strict_cluster: Cluster) -> Iterator[Cluster]:
    """The same cluster, empty. Afterwards every invariant holds."""
    yield strict_cluster
    invariants.check(strict_cluster)
    scenarios.clear(strict_cluster.kube)
    invariants.check(strict_cluster)


def t4(name: str, *, priority: str = "") -> PodBuilder:
    """A pod that takes more than half of a card of the node t4, which has two."""
    made = pod(name).labelled("app", name.split("-")[0]).asks("gpufraction.io/gpu-memory", "10000Mi")
    classes = {"priorityClassName": priority} if priority else {}
    return made.spec(nodeSelector={"gpushare": "true"}, terminationGracePeriodSeconds=1, **classes)


def create(cluster: Cluster, builder: PodBuilder) -> JSON:
    manifest = builder.manifest()
    return cluster.kube.create(paths.pods(manifest["metadata"]["namespace"]), manifest)


def events(cluster: Cluster, name: str, reason: str, namespace: str = "default") -> list[str]:
    """The messages of the Events about an object that have this reason."""
    found = cluster.kube.list(paths.events(namespace)).items
    return [e["message"] for e in found if (e["involvedObject"]["name"], e["reason"]) == (name, reason)]


def wait_for_event(cluster: Cluster, name: str, reason: str, namespace: str = "default") -> str:
    wait_for(lambda: bool(events(cluster, name, reason, namespace)), lambda: f"no Event {reason} about {name}")
    return events(cluster, name, reason, namespace)[0]


def metric(cluster: Cluster, name: str) -> float:
    found = re.findall(rf"^{re.escape(name)} (\S+)$", cluster.metrics(), re.MULTILINE)
    return float(found[0]) if found else 0.0


def names_running(cluster: Cluster) -> set[str]:
    return {p["metadata"]["name"] for p in scenarios.all_pods(cluster.kube) if scenarios.is_running(p)}


def await_deleted(cluster: Cluster, left: int) -> None:
    """Wait until only this many pods are left, because a terminating pod holds its share."""
    wait_for(lambda: len(scenarios.all_pods(cluster.kube)) == left, "pods are still there")


def promise_twice(cluster: Cluster) -> None:
    """Place two pods on one card with the allocator's own rights, as a second leader or a person could."""
    for name in ("twice-1", "twice-2"):
        made = create(cluster, t4(name))
        since = datetime.fromisoformat(made["metadata"]["creationTimestamp"]).timestamp()
        # Creation times have whole seconds, and the second pod must be the younger one.
        wait_for(lambda since=since: time.time() >= since + 1, "the clock stands")  # type: ignore[misc]
    scenarios.settled(cluster.kube, 2, running=2)
    first, second = (cluster.kube.get(paths.pods("default", name)) for name in ("twice-1", "twice-2"))
    theirs, text = (json.loads(p["metadata"]["annotations"][names.ALLOCATION]) for p in (first, second))
    gpu, other = theirs["containers"][0]["gpus"][0], text["containers"][0]["gpus"][0]
    assert gpu["uuid"] != other["uuid"]
    other.update(uuid=gpu["uuid"], index=gpu["index"])
    allocator = Kube.connect(kubeconfig=str(cluster.directory / "kubeconfig-allocator"), user_agent="hand")
    edited = {"metadata": {"annotations": {names.ALLOCATION: json.dumps(text)}}}
    allocator.patch_merge(paths.pods("default", "twice-2"), edited)


OVERCOMMITTED = re.compile(r"GPU \d of node t4: more is allocated than the GPU has: 20000 of 15109 MiB")


def test_a_gpu_promised_twice_is_reported_on_the_youngest_pod_and_on_the_node(cluster: Cluster) -> None:
    promise_twice(cluster)
    assert OVERCOMMITTED.match(wait_for_event(cluster, "twice-2", "GPUOvercommitted"))
    assert OVERCOMMITTED.fullmatch(wait_for_event(cluster, "t4", "GPUOvercommitted"))
    assert events(cluster, "twice-1", "GPUOvercommitted") == []
    assert metric(cluster, "gpufraction_overcommitted_gpus") == 1
    assert {"twice-1", "twice-2"} <= names_running(cluster), "nobody is evicted unless that is switched on"
    cluster.kube.delete(paths.pods("default", "twice-2"))
    await_deleted(cluster, 1)


def test_where_that_is_switched_on_the_youngest_pod_is_evicted(strict: Cluster) -> None:
    promise_twice(strict)
    wait_for(lambda: names_running(strict) == {"twice-1"}, lambda: f"{names_running(strict)} run")
    await_deleted(strict, 1)
    assert wait_for_event(strict, "twice-2", "GPUOvercommitted").endswith("it is evicted")
    wait_for(lambda: metric(strict, "gpufraction_overcommitted_gpus") == 0, "still overcommitted")


def test_a_pod_that_slipped_past_the_webhook_is_reported(cluster: Cluster) -> None:
    namespace = paths.namespaces("late")
    cluster.label_namespace("late")
    cluster.kube.patch_merge(namespace, {"metadata": {"labels": {names.INJECT_LABEL: None}}})
    try:
        made = create(cluster, pod("slipped", "late").asks("aliyun.com/gpu-mem", 2))
        assert names.REQUEST not in made["metadata"].get("annotations", {})
        cluster.label_namespace("late")
        text = wait_for_event(cluster, "slipped", "GPUShareUncounted", "late")
        assert text.startswith("requests a GPU share but has no valid allocation")
        wait_for(lambda: metric(cluster, "gpufraction_uncounted_pods") == 1, "not counted")
    finally:
        cluster.kube.patch_merge(namespace, {"metadata": {"labels": {names.INJECT_LABEL: None}}})
        with contextlib.suppress(KubeNotFound):
            cluster.kube.delete(paths.pods("late", "slipped"))


def crowded(cluster: Cluster) -> None:
    """Pods of low priority occupy both cards of the node."""
    for name in ("low-1", "low-2"):
        create(cluster, t4(name, priority="low"))
    scenarios.settled(cluster.kube, 2, running=2)


def test_a_pod_of_higher_priority_preempts_one_of_lower(strict: Cluster) -> None:
    crowded(strict)
    create(strict, t4("high", priority="high"))
    wait_for(lambda: "high" in names_running(strict), lambda: f"{names_running(strict)} run")
    found = scenarios.settled(strict.kube, 2)
    assert scenarios.outcome(found) == scenarios.Outcome(running=2, nodes=("t4",), gpus=2)
    (victim,) = {"low-1", "low-2"} - names_running(strict)
    assert wait_for_event(strict, victim, "GPUSharePreempted") == (
        "evicted: a pod of higher priority waits for a GPU share, and node t4 requires the fewest evictions"
    )


def test_pods_of_one_priority_and_those_that_must_not_preempt_wait(strict: Cluster) -> None:
    crowded(strict)
    create(strict, t4("equal", priority="low"))
    create(strict, t4("gentle", priority="gentle"))
    create(strict, t4("loud", priority="high"))
    wait_for(lambda: "loud" in names_running(strict), lambda: f"{names_running(strict)} run")
    found = scenarios.settled(strict.kube, 4)
    assert {p["metadata"]["name"]: scenarios.waits(p) for p in found if scenarios.waits(p)}.keys() == {
        "equal",
        "gentle",
    }
    assert names_running(strict) - {"low-1", "low-2"} == {"loud"}


def test_a_disruption_budget_forbids_preemption_and_the_pod_says_so(strict: Cluster) -> None:
    crowded(strict)
    budget = {
        "metadata": {"name": "low"},
        "spec": {"minAvailable": 2, "selector": {"matchLabels": {"app": "low"}}},
    }
    strict.kube.create(paths.poddisruptionbudgets("default"), budget)
    try:
        create(strict, t4("high", priority="high"))

        def blocked() -> JSON:
            return scenarios.condition(strict.kube.get(paths.pods("default", "high")))

        wait_for(lambda: blocked().get("reason") == "PreemptionBlocked", lambda: f"told {blocked()}")
        assert blocked()["message"].endswith("disruption budgets do not allow it now")
        assert names_running(strict) == {"low-1", "low-2"}
    finally:
        strict.kube.delete(paths.poddisruptionbudgets("default", "low"))


def test_what_a_silent_watch_does_not_bring_is_found_and_mended(strict: Cluster, proxy: Proxy) -> None:
    crowded(strict)
    create(strict, t4("next", priority="low"))
    scenarios.settled(strict.kube, 3)
    drifted = 'gpufraction_ledger_drift_total{kind="gone"}'
    before = metric(strict, drifted)
    mute = Fault(lambda asked: asked.watches and asked.path == paths.pods(), Mute())
    with proxy.suffering(mute):
        proxy.cut()
        wait_for(lambda: mute.hits > 0, "nobody watches pods")
        strict.kube.delete(paths.pods("default", "low-1"))
        wait_for(lambda: names_running(strict) == {"low-2", "next"}, lambda: f"{names_running(strict)} run")
    proxy.cut()
    assert metric(strict, drifted) > before
