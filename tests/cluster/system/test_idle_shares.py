"""Idle shares give way: they are published and warned, computing saves them, and a waiting pod evicts them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contract import names
from playground import scenarios
from playground.cluster import Cluster
from playground.shapes import gpu_node
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import KubeNotFound
from tests.builders import PodBuilder, pod
from tests.cluster.system import invariants
from tests.clusters import control_planes

pytestmark = [pytest.mark.system, pytest.mark.long]
JSON = dict[str, Any]
GRACE, LEASE = 2.0, 3
AGENT = ("--idle-least", "2s", "--heartbeat", "10s")
ALLOCATOR = (
    *("--idle-evict", "--idle-grace", f"{GRACE:.0f}s", "--starvation-timeout", "0s"),
    *("--card-hours-after", "0s", "--election-lease", f"{LEASE}s"),
)
ONE_CARD = "1 x Tesla T4 15109MiB"


class Node:
    """A node with one card for two pods, and what the simulated driver shows of it."""

    def __init__(self, cluster: Cluster, file: Path) -> None:
        self.cluster, self.kube, self._file = cluster, cluster.kube, file

    def computes(self, *working: str) -> None:
        """From now on exactly these pods compute."""
        busy = {each["containerID"].rpartition("//")[2]: 40 for name in working for each in self._containers(name)}
        shown(self._file, {"0": {"computing": busy, "utilisation": 40 if busy else 0}})

    def _containers(self, name: str) -> list[JSON]:
        found: list[JSON] = self.pod(name)["status"]["containerStatuses"]
        return found

    def pod(self, name: str) -> JSON:
        return self.kube.get(paths.pods("default", name))

    def create(self, builder: PodBuilder, *, runs: bool = True) -> None:
        self.kube.create(paths.pods("default"), builder.manifest())
        if runs:
            name = builder.manifest()["metadata"]["name"]
            wait_for(lambda: scenarios.is_running(self.pod(name)), lambda: f"{name} does not run")

    def idle(self) -> set[str]:
        """The names of the pods that the agent calls idle."""
        listed = self.kube.get(paths.gpunodes("n"))["status"].get("idle") or []
        by_uid = {each["metadata"]["uid"]: each["metadata"]["name"] for each in scenarios.all_pods(self.kube)}
        return {by_uid.get(each["pod"], each["pod"]) for each in listed}

    def condition(self, name: str) -> JSON:
        return scenarios.condition(self.pod(name))

    def waits_for_idle(self, name: str) -> None:
        wait_for(lambda: self.condition(name).get("reason") == "IdleGivesWay", lambda: f"told {self.condition(name)}")

    def is_warned(self, uid: str, times: int = 1) -> None:
        wait_for(lambda: self.events(uid) == ["GPUShareIdle"] * times, lambda: f"warnings: {self.events(uid)}")

    def events(self, uid: str) -> list[str]:
        """The reasons of a pod's warnings, sorted; by its uid, because the pod may be deleted."""
        found = self.kube.list(paths.events("default")).items
        return sorted(each["reason"] for each in found if each["involvedObject"].get("uid") == uid and _warns(each))

    def runs(self) -> set[str]:
        return {each["metadata"]["name"] for each in scenarios.all_pods(self.kube) if scenarios.is_running(each)}


def _warns(event: JSON) -> bool:
    return bool(event["type"] == "Warning")


def shown(file: Path, cards: JSON) -> None:
    """Replaced in one step, because the agent may read it at any time."""
    beside = file.with_suffix(".new")
    beside.write_text(json.dumps({"gpus": ONE_CARD, "cards": cards}))
    beside.replace(file)


@pytest.fixture(scope="module", params=control_planes())
def own(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    directory = tmp_path_factory.mktemp("idle")
    file = directory / "gpus.json"
    shown(file, {})
    with Cluster(
        nodes=[gpu_node("n", f"@{file}")],
        directory=directory,
        settings={"allocator": ALLOCATOR, "nodeagent": AGENT},
        control_plane=request.param,
        components=("allocator-eviction", "node-access"),
        replicas=2,
    ) as cluster:
        yield Node(cluster, file)


@pytest.fixture
def node(own: Node) -> Iterator[Node]:
    """The node without pods; afterwards every invariant holds."""
    yield own
    invariants.check(own.cluster)
    scenarios.clear(own.kube)
    invariants.check(own.cluster)


def half(name: str, after: str = "") -> PodBuilder:
    made = pod(name).labelled("app", name).asks("gpufraction.io/gpu-memory", "7000Mi")
    made = made.spec(terminationGracePeriodSeconds=1)
    return made.annotated(names.IDLE_AFTER, after) if after else made


def test_an_idle_pod_that_agreed_gives_way_and_one_that_did_not_stays(node: Node) -> None:
    node.create(half("notebook", "2s"))
    node.create(half("silent"))
    node.computes("silent")
    uid = node.pod("notebook")["metadata"]["uid"]
    node.create(half("next"), runs=False)
    node.waits_for_idle("next")
    assert node.condition("next")["message"].endswith("; waits for 1 idle pod on node n to be evicted")
    node.is_warned(uid)
    node.computes()
    wait_for(lambda: node.runs() == {"next", "silent"}, lambda: f"{node.runs()} run")
    reasons = ["GPUShareGaveWay", "GPUShareIdle"]
    wait_for(lambda: node.events(uid) == reasons, lambda: str(node.events(uid)))
    evicted = 'gpufraction_evictions_total{cause="idle",outcome="evicted"}'
    found = [invariants.figures(node.cluster, replica.number).get(evicted, 0.0) for replica in node.cluster.replicas]
    assert sum(found) == 1


@pytest.mark.storm
def test_a_pod_that_computes_in_its_grace_stays(node: Node) -> None:
    node.create(half("notebook", "2s"))
    node.create(half("silent"))
    node.computes()
    uid = node.pod("notebook")["metadata"]["uid"]
    wait_for(lambda: node.idle() == {"notebook", "silent"}, lambda: f"{node.idle()} are called idle")
    node.create(half("next"), runs=False)
    node.is_warned(uid)
    node.computes("notebook")
    wait_for(lambda: node.idle() == {"silent"}, lambda: f"{node.idle()} are called idle")
    wait_for(lambda: node.condition("next")["reason"] == "Memory", lambda: f"told {node.condition('next')}")
    time.sleep(GRACE + 1)
    assert node.runs() == {"notebook", "silent"}, "computing has saved it, and the other one did not agree"
    node.kube.delete(paths.pods("default", "next"))  # it would try again after a pause
    node.computes()
    node.create(half("later"), runs=False)
    node.is_warned(uid, times=2)
    node.computes("silent")  # the agent writes changes, and this one tells since when the other pod has been idle
    wait_for(lambda: node.runs() == {"later", "silent"}, lambda: f"{node.runs()} run")


def test_a_disruption_budget_keeps_an_idle_pod_and_spares_it_the_warning(node: Node) -> None:
    node.create(half("notebook", "3s"))
    node.create(half("silent"))
    node.computes()
    uid = node.pod("notebook")["metadata"]["uid"]
    budget = {"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "notebook"}}}}
    node.kube.create(paths.poddisruptionbudgets("default"), budget)
    try:
        node.create(half("next"), runs=False)
        wait_for(
            lambda: node.condition("next").get("reason") == "PreemptionBlocked",
            lambda: f"told {node.condition('next')}",
        )
        message = "evicting 1 idle pod would make room, but disruption budgets do not allow it now"
        assert node.condition("next")["message"].endswith(message)
        assert (node.runs(), node.events(uid)) == ({"notebook", "silent"}, [])
    finally:
        node.kube.delete(paths.poddisruptionbudgets("default", "b"))


@pytest.mark.storm
def test_a_namespace_agrees_for_its_pods_and_a_new_leader_warns_again(node: Node) -> None:
    label = {"metadata": {"labels": {str(names.IDLE_AFTER): "3s"}}}
    node.kube.patch_merge(paths.path("v1", "namespaces", name="default"), label)
    try:
        node.create(half("notebook"))
        node.create(half("refuses", "0"))
        node.computes()
        uid = node.pod("notebook")["metadata"]["uid"]
        node.create(half("next"), runs=False)
        node.is_warned(uid)
        program = node.cluster.programs[_leader(node.cluster)]
        program.kill()
        program.wait()
        node.is_warned(uid, times=2)
        node.computes("refuses")
        wait_for(lambda: _is_deleted(node, "notebook"), "nobody gives way after the leader ended")
        reasons = ["GPUShareGaveWay", "GPUShareIdle", "GPUShareIdle"]
        wait_for(lambda: node.events(uid) == reasons, lambda: str(node.events(uid)))
        wait_for(lambda: node.runs() == {"next", "refuses"}, lambda: f"{node.runs()} run")
        program.start()
    finally:
        none = {"metadata": {"labels": {str(names.IDLE_AFTER): None}}}
        node.kube.patch_merge(paths.path("v1", "namespaces", name="default"), none)


def _leader(cluster: Cluster) -> str:
    """The name of the allocator that leads."""
    leads = [each for each in cluster.replicas if invariants.figures(cluster, each.number).get("gpufraction_leader")]
    (replica,) = leads
    return replica.name("allocator")


def _is_deleted(node: Node, name: str) -> bool:
    try:
        return "deletionTimestamp" in node.pod(name)["metadata"]
    except KubeNotFound:
        return True
