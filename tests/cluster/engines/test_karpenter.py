"""Karpenter's own program alongside gpufraction: placeholders bring nodes for waiting pods, and shares move or stay."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from contract import names
from contract.reasons.pods import PodReason
from playground import scenarios
from playground.cluster import Cluster
from playground.waiting import wait_for
from runtime.kubernetes import paths
from tests.cluster.engines import fleet, karpenter
from tests.cluster.engines.fleet import Fleet
from tests.cluster.engines.karpenter import Karpenter
from tests.cluster.engines.programs import folder_of
from tests.cluster.engines.test_nodes_for_pods import GPUS, T4, pool_declared, tenant
from tests.cluster.system import invariants

pytestmark = [pytest.mark.engines, pytest.mark.timeout(900)]
JSON = dict[str, Any]
DEPLOYMENTS = paths.path("apps/v1", "deployments", "default")
LONG = 120
"""Seconds from a request to a pod that runs on its node."""


@dataclass(frozen=True)
class Beside:
    """The cluster with gpufraction, Karpenter, and the nodes that it added."""

    cluster: Cluster
    karpenter: Karpenter
    fleet: Fleet

    def create(self, name: str, memory: str = "10Gi") -> None:
        self.cluster.kube.create(paths.pods("default"), tenant(name, memory).manifest())

    def delete(self, name: str) -> None:
        self.cluster.kube.delete(paths.pods("default", name))

    def shown(self) -> str:
        pods = scenarios.shown(scenarios.all_pods(self.cluster.kube))
        return f"{self.nodes()} {self.placeholders()} {pods} {self.karpenter.program.tail()}"

    def nodes(self) -> set[str]:
        return {each["metadata"]["name"] for each in self.karpenter.nodes()}

    def placeholders(self) -> list[str]:
        """The pods that request nodes."""
        listed = self.cluster.kube.list(paths.pods(names.NAMESPACE), {"labelSelector": str(names.POOL)}).items
        return [each["metadata"]["name"] for each in listed]

    def all_run(self, count: int) -> list[JSON]:
        """The pods, once this many run and no node is requested."""

        def found() -> list[JSON]:
            there = scenarios.all_pods(self.cluster.kube)
            done = len(there) == count and all(map(scenarios.is_running, there)) and not self.placeholders()
            return there if done else []

        return wait_for(found, self.shown, LONG)

    def waits_for(self, name: str, reason: str) -> None:
        path = paths.pods("default", name)
        wait_for(lambda: scenarios.waits(self.cluster.kube.get(path)) == reason, self.shown, LONG)

    def has_nodes(self, count: int) -> None:
        wait_for(lambda: len(self.nodes()) == count, self.shown, LONG)

    def await_event(self, text: str) -> None:
        """Wait for an Event of Karpenter about a placeholder, with this text in its message."""
        events = paths.events(names.NAMESPACE)

        def found() -> bool:
            return any(
                text in each["message"] and "karpenter" in (each.get("source") or {}).get("component", "")
                for each in self.cluster.kube.list(events).items
            )

        wait_for(found, lambda: f"{[each['message'] for each in self.cluster.kube.list(events).items]}", LONG)


@contextlib.contextmanager
def beside(directory: Path, *flags: str) -> Iterator[Beside]:
    """A real control plane with gpufraction and a declared pool, and Karpenter with an empty NodePool for it."""
    folder = folder_of(karpenter.assets())
    taint = str(names.STARTUP_TAINT)
    with (
        pool_declared(directory / "us", "node-placeholders", flags=flags) as cluster,
        karpenter.running(cluster, folder, directory / "karpenter", T4, (taint,)) as found,
        fleet.following(cluster, directory / "fleet", GPUS, delay=2.0, flags=("--startup-taint=true",)) as nodes,
    ):
        yield Beside(cluster, found, nodes)


@pytest.fixture(scope="module")
def setup(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Beside]:
    """Uses the allocator's flags of the test's parameter. The next flags get another control plane."""
    with beside(tmp_path_factory.mktemp("karpenter"), *request.param) as found:
        yield found


@pytest.fixture
def b(setup: Beside) -> Iterator[Beside]:
    """Starts without nodes. Afterwards the invariants hold."""
    setup.fleet.names.clear()
    yield setup
    invariants.check(setup.cluster)
    for each in setup.cluster.kube.list(DEPLOYMENTS).items:
        setup.cluster.kube.delete(f"{DEPLOYMENTS}/{each['metadata']['name']}", {"propagationPolicy": "Background"})
    scenarios.clear(setup.cluster.kube)
    setup.has_nodes(0)
    setup.karpenter.limit(None)


BLOCKING = ("--placement-scale-down", "block")
by_default = pytest.mark.parametrize("setup", [()], ids=["by default"], indirect=True, scope="module")
blocking = pytest.mark.parametrize("setup", [BLOCKING], ids=["blocking"], indirect=True, scope="module")


@by_default
def test_a_pod_that_waits_brings_one_node_which_goes_when_it_is_empty(b: Beside) -> None:
    b.create("first")
    b.all_run(1)
    b.karpenter.after_evaluations(4)
    assert b.nodes() == b.fleet.names
    assert len(b.fleet.names) == 1
    b.delete("first")
    b.has_nodes(0)
    assert len(b.fleet.names) == 1, "the placeholder brought no other"


@by_default
def test_as_many_nodes_come_as_the_cards_need(b: Beside) -> None:
    """Three pods of 8 GiB, for which the sum of two cards would be enough, need two nodes."""
    for number in range(3):
        b.create(f"p{number}", "8Gi")
    b.all_run(3)
    b.karpenter.after_evaluations(4)
    assert len(b.fleet.names) == 2


@by_default
def test_another_node_comes_when_the_first_one_has_no_card_left(b: Beside) -> None:
    """Each node has CPU and memory to spare, so only its pods keep a placeholder off it."""
    for count, name in enumerate(("first", "second", "third"), 1):
        b.create(name, "14Gi")
        b.all_run(count)
    b.karpenter.after_evaluations(4)
    assert len(b.fleet.names) == 2


@by_default
def test_a_pod_that_is_deleted_while_it_waits_brings_no_node(b: Beside) -> None:
    b.karpenter.limit({"cpu": "0"})
    b.create("short")
    b.waits_for("short", PodReason.NODE_REQUESTED)
    b.await_event("exceed limits for nodepool")
    b.delete("short")
    wait_for(lambda: not b.placeholders(), b.shown, LONG)
    b.karpenter.limit(None)
    b.karpenter.after_evaluations(4)
    assert b.fleet.names == set()


@by_default
def test_a_node_comes_once_the_limit_of_its_pool_is_raised(b: Beside) -> None:
    b.karpenter.limit({"cpu": "0"})
    b.create("patient")
    b.waits_for("patient", PodReason.NODE_REQUESTED)
    b.await_event("exceed limits for nodepool")
    b.karpenter.limit(None)
    b.all_run(1)
    assert len(b.fleet.names) == 1


@by_default
def test_by_default_karpenter_moves_a_share_to_remove_its_node(b: Beside) -> None:
    two_nodes_with_a_share_each(b)
    b.has_nodes(1)
    assert {each["spec"]["nodeName"] for each in b.all_run(2)} == b.nodes()


@blocking
def test_by_our_setting_shares_keep_their_nodes_and_an_empty_one_goes(b: Beside) -> None:
    two_nodes_with_a_share_each(b)
    before = {each["metadata"]["uid"] for each in b.all_run(2)}
    b.karpenter.after_evaluations(12)
    assert len(b.nodes()) == 2
    assert {each["metadata"]["uid"] for each in b.all_run(2)} == before
    leave(b.cluster, scenarios.all_pods(b.cluster.kube)[0])
    b.has_nodes(1)
    (left,) = b.all_run(1)
    assert {left["spec"]["nodeName"]} == b.nodes()


def two_nodes_with_a_share_each(b: Beside) -> None:
    """Three pods have a card each, two of them on one node; one of these two goes away."""
    for name in ("a", "b", "c"):
        labels = {"app": name}
        template = {"metadata": {"labels": labels}, "spec": tenant(name, "14Gi").manifest()["spec"]}
        spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
        b.cluster.kube.create(
            DEPLOYMENTS, {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}
        )
    there = b.all_run(3)
    nodes = [each["spec"]["nodeName"] for each in there]
    assert len(set(nodes)) == 2
    leave(b.cluster, next(each for each in there if nodes.count(each["spec"]["nodeName"]) == 2))


def leave(cluster: Cluster, found: JSON) -> None:
    """Delete the pod, and its Deployment does not create another."""
    cluster.kube.delete(f"{DEPLOYMENTS}/{found['metadata']['labels']['app']}", {"propagationPolicy": "Background"})
    uid = found["metadata"]["uid"]
    wait_for(lambda: uid not in {each["metadata"]["uid"] for each in scenarios.all_pods(cluster.kube)}, "the pod stays")
