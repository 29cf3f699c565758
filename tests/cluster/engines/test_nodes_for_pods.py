"""
Nodes for waiting pods, added by Cluster Autoscaler's own program: no extra node, and none without a pod that needs it.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from contract import names
from playground import scenarios
from playground.cluster import DEFAULT_COMPONENTS, Cluster
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import KubeNotFound
from tests.builders import PodBuilder, pod
from tests.cluster.engines import autoscaler
from tests.cluster.engines.autoscaler import Autoscaler, Group
from tests.cluster.engines.fleet import Fleet, following
from tests.cluster.engines.programs import folder_of
from tests.cluster.system import invariants
from tests.clusters import real

pytestmark = [pytest.mark.engines, pytest.mark.timeout(300)]
JSON = dict[str, Any]
T4 = Group("t4", labels={"pool": "t4"}, taints=("nvidia.com/gpu=present:NoSchedule",))
TAINTED = replace(T4, taints=(*T4.taints, f"{names.STARTUP_TAINT}:NoSchedule"))
POOL = {
    "name": "t4",
    "nodeSelector": {"matchLabels": {"pool": "t4"}},
    "node": {
        "gpus": 2,
        "model": "Tesla T4",
        "gpuMemory": "15109Mi",
        "cpu": 8,
        "memory": "32Gi",
        "taints": [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}],
        "max": 10,
    },
}


PACE = ("--assume-ttl", "2s", "--repair-every", "1s", "--provisioning-after", "1s")
GPUS = {"t4": "2 x Tesla T4 15109MiB"}
_REQUESTED = re.compile(r"^(?P<at>\S+) INFO \S+ nodes asked for pool=t4 nodes=(?P<nodes>\d+) ", re.MULTILINE)


@contextlib.contextmanager
def installed(directory: Path, *components: str, flags: Sequence[str] = (), replicas: int = 1) -> Iterator[Cluster]:
    """Like `pool_declared`, if Cluster Autoscaler's program is available."""
    folder_of(autoscaler.assets())
    with pool_declared(directory, *components, flags=flags, replicas=replicas) as cluster:
        yield cluster


@contextlib.contextmanager
def pool_declared(directory: Path, *components: str, flags: Sequence[str] = (), replicas: int = 1) -> Iterator[Cluster]:
    """A real control plane with gpufraction, a declared pool, and no node."""
    with Cluster(
        nodes=(),
        directory=directory,
        settings={"allocator": (*PACE, *flags)},
        control_plane=real,
        replicas=replicas,
        components=(*DEFAULT_COMPONENTS, "startup-taint", "node-provisioning", *components),
    ) as cluster:
        path = paths.configmaps(names.NAMESPACE, names.OPTIONS)
        cluster.kube.patch_merge(path, {"data": {names.OPTIONS_FILE: yaml.safe_dump({"pools": [POOL]})}})
        yield cluster


@dataclass(frozen=True)
class Beside:
    """The cluster with gpufraction, the autoscaler, and the nodes that it added."""

    cluster: Cluster
    scaler: Autoscaler
    fleet: Fleet
    since: str
    """When the test began, as our log writes it."""

    def create(self, *made: PodBuilder) -> None:
        for each in made:
            self.cluster.kube.create(paths.pods("default"), each.manifest())

    def pod(self, name: str) -> JSON:
        return self.cluster.kube.get(paths.pods("default", name))

    def await_reason(self, name: str, reason: str) -> None:
        """Wait until the pod's condition has this reason."""
        wait_for(lambda: scenarios.waits(self.pod(name)) == reason, lambda: f"{self.pod(name)['status']}")

    def all_run(self, count: int, timeout: float = 120.0) -> None:
        """Wait until this many pods run, and no request for nodes is left."""

        def done() -> bool:
            found = scenarios.all_pods(self.cluster.kube)
            return len(found) == count and all(map(scenarios.is_running, found)) and not self.requests()

        wait_for(done, lambda: f"{self.requests()} {scenarios.shown(scenarios.all_pods(self.cluster.kube))}", timeout)

    def requested(self) -> int:
        """How many nodes we requested in this test."""
        programs = [self.cluster.programs[each.name("allocator")] for each in self.cluster.replicas]
        logs = "".join(each.log.read_text(errors="replace") for each in programs)
        return sum(int(found["nodes"]) for found in _REQUESTED.finditer(logs) if found["at"] >= self.since)

    def brought(self) -> int:
        """How many nodes were added for our requests, over the whole test."""
        return len(self.fleet.names) - self.scaler.served_again()

    def warnings(self) -> list[str]:
        """The reasons of our Warnings about pods and nodes."""
        listed = self.cluster.kube.list(paths.events("default")).items
        return [event["reason"] for event in listed if event["type"] == "Warning"]

    def requests(self) -> list[str]:
        """The names of the objects that request nodes: requests, templates, and placeholder pods."""
        ours = {"labelSelector": str(names.POOL)}
        requested = [paths.path("v1", "podtemplates", names.NAMESPACE), paths.pods(names.NAMESPACE)]
        if "provisioningrequests" in {each["name"] for each in self._kinds()}:
            requested.append(paths.path(autoscaler.GROUP_VERSION, "provisioningrequests", names.NAMESPACE))
        return [each["metadata"]["name"] for path in requested for each in self.cluster.kube.list(path, ours).items]

    def _kinds(self) -> list[JSON]:
        try:
            return list(self.cluster.kube.get(f"/apis/{autoscaler.GROUP_VERSION}")["resources"])
        except KubeNotFound:
            return []


@contextlib.contextmanager
def beside(
    cluster: Cluster,
    directory: Path,
    group: Group = T4,
    *,
    gpus: Mapping[str, str] = GPUS,
    delay: float = 1.0,
    requests: bool = True,
) -> Iterator[Beside]:
    """The autoscaler with a group at zero, whose nodes publish two GPUs after a while."""
    folder = autoscaler.assets()
    assert isinstance(folder, Path)
    began = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S")
    agents = following(cluster, directory / "fleet", gpus, delay=delay, flags=("--startup-taint=true",))
    with (
        autoscaler.running(cluster, folder, directory / "autoscaler", (group,), requests=requests) as scaler,
        agents as fleet,
    ):
        try:
            yield Beside(cluster, scaler, fleet, began)
        finally:
            scenarios.clear(cluster.kube)
        invariants.check(cluster)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with installed(tmp_path_factory.mktemp("nodes")) as cluster:
        yield cluster


def tenant(name: str, memory: str = "10Gi") -> PodBuilder:
    return pod(name).asks(str(names.GPU_MEMORY), memory).needs(cpu="100m", memory="64Mi").tolerates("nvidia.com/gpu")


def test_a_pod_that_waits_brings_the_first_node_and_runs_there(cluster: Cluster, tmp_path: Path) -> None:
    with beside(cluster, tmp_path) as b:
        b.create(tenant("first"))
        b.all_run(1)
        b.scaler.after_loops(5)
        assert (b.requested(), b.brought()) == (1, 1)


def test_ten_nodes_come_for_twenty_cards_and_go_after_their_pods(cluster: Cluster, tmp_path: Path) -> None:
    with beside(cluster, tmp_path) as b:
        b.create(*(tenant(f"p{number}") for number in range(22)))

        def full() -> bool:
            running = [each for each in scenarios.all_pods(cluster.kube) if scenarios.is_running(each)]
            return len(running) == 20 and not b.requests()

        wait_for(full, lambda: f"{b.requests()} {scenarios.shown(scenarios.all_pods(cluster.kube))}", 150)
        b.scaler.after_loops(5)
        assert (b.requested(), b.brought()) == (10, 10), "the pool may have ten nodes"
        invariants.check(cluster)
        scenarios.clear(cluster.kube)
        wait_for(lambda: not b.scaler.nodes(), lambda: f"{len(b.scaler.nodes())} nodes stay", 120)
        assert (b.requested(), b.brought()) == (10, 10)
        assert b.requests() == []


SETS = {
    "three of 8 GiB, which two cards have room for by their sum": (("8Gi", "8Gi", "8Gi"), 2),
    "a whole node, and a half and a half": (("14Gi", "14Gi", "7Gi", "7Gi", "7Gi"), 2),
    "eight that fit on one node": (("3Gi",) * 8, 1),
}


@pytest.mark.parametrize(("memory", "nodes"), SETS.values(), ids=SETS.keys())
def test_as_many_nodes_come_as_the_cards_need(
    cluster: Cluster, tmp_path: Path, memory: tuple[str, ...], nodes: int
) -> None:
    with beside(cluster, tmp_path) as b:
        b.create(*(tenant(f"p{number}", amount) for number, amount in enumerate(memory)))
        b.all_run(len(memory))
        b.scaler.after_loops(5)
        assert (b.requested(), b.brought()) == (nodes, nodes)


NEVER = {
    "more memory than a card has": tenant("never", "20Gi"),
    "more CPU than a node has": tenant("never").needs(cpu="20"),
    "a node of no pool": tenant("never").selects(pool="other"),
    "no toleration": pod("never").asks(str(names.GPU_MEMORY), "3Gi"),
    "another system's gate": tenant("never").spec(schedulingGates=[{"name": "other.example/gate"}]),
}


def test_nothing_is_requested_for_pods_that_no_node_of_a_pool_would_serve(cluster: Cluster, tmp_path: Path) -> None:
    with beside(cluster, tmp_path) as b:
        for number, made in enumerate(NEVER.values()):
            b.create(made.generated(f"never-{number}-"))
        scenarios.settled(cluster.kube, len(NEVER), "default")
        for _ in range(4):
            b.scaler.after_loops(2)
            assert b.requests() == []
        assert b.fleet.names == set()


def test_a_request_ends_with_the_last_pod_that_wanted_it(cluster: Cluster, tmp_path: Path) -> None:
    with beside(cluster, tmp_path, replace(T4, most=0)) as b:
        b.create(tenant("one"), tenant("other"))
        wait_for(lambda: b.requests(), "nothing is asked for")
        for name in ("one", "other"):
            b.await_reason(name, "NodeRequested")
        cluster.kube.delete(paths.pods("default", "one"))
        b.scaler.after_loops(3)
        assert b.requests()
        cluster.kube.delete(paths.pods("default", "other"))
        wait_for(lambda: not b.requests(), lambda: f"{b.requests()} are left")


def test_a_node_that_comes_for_a_deleted_pod_is_removed(cluster: Cluster, tmp_path: Path) -> None:
    with beside(cluster, tmp_path, delay=5.0) as b:
        b.create(tenant("short"))
        wait_for(lambda: b.scaler.nodes(), lambda: f"no node comes: {b.scaler.program.tail()}")
        cluster.kube.delete(paths.pods("default", "short"))
        wait_for(lambda: not b.requests(), lambda: f"{b.requests()} are left")
        wait_for(lambda: not b.scaler.nodes(), lambda: f"it stays: {b.scaler.program.tail()}")
        assert (b.requested(), b.brought()) == (1, 1)


def test_with_the_startup_taint_one_node_is_added_and_serves_the_share(cluster: Cluster, tmp_path: Path) -> None:
    with beside(cluster, tmp_path, TAINTED, delay=8.0) as b:
        b.create(tenant("first"))
        wait_for(lambda: b.scaler.nodes(), lambda: f"no node comes: {b.scaler.program.tail()}")
        b.all_run(1)
        b.scaler.after_loops(5)
        assert (b.requested(), b.brought()) == (1, 1)


def test_a_node_that_comes_without_gpus_is_reported_and_given_up(tmp_path: Path) -> None:
    bounded = installed(tmp_path / "us", flags=("--provisioning-patience", "12s"))
    with bounded as cluster, beside(cluster, tmp_path, gpus={}) as b:
        b.create(tenant("waits"))
        wait_for(lambda: b.scaler.nodes(), lambda: f"no node comes: {b.scaler.program.tail()}")
        b.await_reason("waits", "NodeNotBrought")
        assert b.requests() == []
        wait_for(lambda: {"NodeNotBrought", "NodeWithoutGPUs"} <= set(b.warnings()), lambda: f"{b.warnings()}")
        wait_for(lambda: not b.scaler.nodes(), lambda: f"the empty node stays: {b.scaler.program.tail()}")
        b.scaler.after_loops(5)
        assert (b.requested(), b.brought()) == (1, 1), "the pool is asked again after a pause only"


OFF = ("--provisioning-requests=false",)


@pytest.mark.parametrize(
    ("served", "flags", "group"),
    [(False, (), T4), (True, OFF, T4), (False, (), TAINTED)],
    ids=["not served", "served and switched off", "with the startup taint"],
)
def test_placeholder_pods_bring_nodes_in_place_of_requests(
    tmp_path: Path, served: bool, flags: tuple[str, ...], group: Group
) -> None:
    """The pods need more CPU than a placeholder leaves on the node."""
    us = installed(tmp_path / "us", "node-placeholders", flags=flags)
    with us as cluster, beside(cluster, tmp_path, group, requests=served, delay=5.0) as b:
        b.create(*(tenant(f"p{number}", "8Gi").needs(cpu="2", memory="9Gi") for number in range(3)))
        b.all_run(3)
        b.scaler.after_loops(5)
        assert len(b.fleet.names) == 2


def test_a_new_leader_goes_on_from_the_request_that_it_finds(tmp_path: Path) -> None:
    with installed(tmp_path / "us", replicas=2) as cluster, beside(cluster, tmp_path, delay=25.0) as b:
        b.create(tenant("first"), tenant("second"), tenant("third"))
        wait_for(lambda: b.requests(), "nothing is asked for")
        leader = next(
            each for each in cluster.replicas if invariants.figures(cluster, each.number)["gpufraction_leader"]
        )
        cluster.programs[leader.name("allocator")].kill()
        b.all_run(3)
        cluster.programs[leader.name("allocator")].start()
        b.scaler.after_loops(5)
        assert (b.requested(), b.brought()) == (2, 2)


def test_a_node_with_fewer_gpus_than_declared_corrects_the_count(tmp_path: Path) -> None:
    """The pool declares two GPUs for each node, but they have one: two nodes come for four cards, then two more."""
    with installed(tmp_path / "us") as cluster, beside(cluster, tmp_path, gpus={"t4": "1 x Tesla T4 15109MiB"}) as b:
        b.create(*(tenant(f"p{number}") for number in range(4)))
        b.all_run(4)
        b.scaler.after_loops(5)
        assert (b.requested(), b.brought()) == (4, 4)


def test_nodes_whose_gpus_a_device_plugin_offers_are_requested_once(tmp_path: Path) -> None:
    """No administrator has chosen who owns the GPUs, so none of these nodes shares them."""
    plugin = replace(T4, resources={"nvidia.com/gpu": "2"})
    bounded = installed(tmp_path / "us", flags=("--provisioning-patience", "12s"))
    with bounded as cluster, beside(cluster, tmp_path, plugin) as b:
        b.create(tenant("waits"))
        wait_for(lambda: b.scaler.nodes(), lambda: f"no node comes: {b.scaler.program.tail()}")
        b.await_reason("waits", "NodeNotBrought")
        b.scaler.after_loops(10)
        assert (b.requested(), b.brought()) == (1, 1)
