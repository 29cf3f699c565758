"""
Nodes by placeholder pods if nothing serves ProvisioningRequests: on both control planes, with a simulated autoscaler.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from contract import names
from playground import scenarios
from playground.cluster import DEFAULT_COMPONENTS, Cluster
from playground.waiting import wait_for
from runtime.kubernetes import paths
from tests.builders import PodBuilder, pod
from tests.cluster.engines import fleet
from tests.cluster.engines.autoscaler import Group
from tests.cluster.scaling import played
from tests.cluster.scaling.played import PlayedAutoscaler
from tests.cluster.system import invariants
from tests.clusters import control_planes

pytestmark = [pytest.mark.system, pytest.mark.timeout(240), pytest.mark.long]
JSON = dict[str, Any]
T4 = Group("t4", most=6, labels={"pool": "t4"}, taints=("nvidia.com/gpu=present:NoSchedule",))
GPUS = "2 x Tesla T4 15109MiB"
TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
SHAPE = {"gpus": 2, "model": "Tesla T4", "gpuMemory": "15109Mi", "cpu": 8, "memory": "32Gi", "taints": [TAINT]}
POOL = {"name": "t4", "nodeSelector": {"matchLabels": {"pool": "t4"}}, "node": {**SHAPE, "max": 6}}
PACE = ("--assume-ttl", "2s", "--repair-every", "1s", "--provisioning-after", "1s", "--provisioning-patience", "10s")


@pytest.fixture(scope="module", params=control_planes())
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two replicas and a declared pool, without nodes."""
    with Cluster(
        nodes=(),
        directory=tmp_path_factory.mktemp("placeholders"),
        settings={"allocator": PACE},
        replicas=2,
        control_plane=request.param,
        components=(*DEFAULT_COMPONENTS, "node-provisioning", "node-placeholders"),
    ) as cluster:
        document = {names.OPTIONS_FILE: yaml.safe_dump({"pools": [POOL]})}
        cluster.kube.patch_merge(paths.configmaps(names.NAMESPACE, names.OPTIONS), {"data": document})
        cluster.await_account(names.NAMESPACE)
        yield cluster


@contextlib.contextmanager
def scaled(
    cluster: Cluster, directory: Path, group: Group = T4, *, gpus: str = GPUS, delay: float = 0.5
) -> Iterator[PlayedAutoscaler]:
    """The autoscaler, and agents on its nodes. At the end no placeholder is left, and everything is in order."""
    agents = {group.name: gpus} if gpus else {}
    with (
        played.running(cluster.kube, group, delay=delay) as scaler,
        fleet.following(cluster, directory / "fleet", agents, delay=1.0),
    ):
        try:
            yield scaler
            invariants.check(cluster)
        finally:
            scenarios.clear(cluster.kube)
        wait_for(lambda: not placeholders(cluster), lambda: f"left: {placeholders(cluster)}")
        wait_for(lambda: not scaler.nodes(), lambda: f"empty nodes stay: {scaler.nodes()}", 30.0)
        invariants.check(cluster)


def placeholders(cluster: Cluster) -> dict[str, str]:
    """Each placeholder, and its node."""
    found = cluster.kube.list(paths.pods(names.NAMESPACE), {"labelSelector": str(names.POOL)}).items
    return {each["metadata"]["name"]: each["spec"].get("nodeName", "") for each in found}


def tenant(name: str, memory: str = "10Gi", cpu: str = "100m") -> PodBuilder:
    return pod(name).asks(str(names.GPU_MEMORY), memory).needs(cpu=cpu, memory="64Mi").tolerates("nvidia.com/gpu")


def create(cluster: Cluster, *made: PodBuilder) -> None:
    for each in made:
        cluster.kube.create(paths.pods("default"), each.manifest())


def all_run(cluster: Cluster, count: int) -> list[JSON]:
    """Wait until this many pods run, and no placeholder is left."""
    wait_for(
        lambda: sum(map(scenarios.is_running, scenarios.all_pods(cluster.kube))) == count and not placeholders(cluster),
        lambda: f"{placeholders(cluster)} {scenarios.shown(scenarios.all_pods(cluster.kube))}",
        60.0,
    )
    return scenarios.all_pods(cluster.kube)


def test_the_first_pods_bring_no_node_too_many_and_find_all_its_cpu(cluster: Cluster, tmp_path: Path) -> None:
    """Four cards for four pods, two of which need more CPU than a placeholder leaves."""
    with scaled(cluster, tmp_path) as scaler:
        create(cluster, *(tenant(f"p{n}", cpu=cpu) for n, cpu in enumerate(("6", "6", "100m", "100m"))))
        all_run(cluster, 4)
        assert len(scaler.brought) == 2


def test_the_label_of_placeholders_on_a_tenants_pods_means_nothing(cluster: Cluster, tmp_path: Path) -> None:
    """The label does not request a node, does not end the pod, and does not keep others from its node."""
    with scaled(cluster, tmp_path) as scaler:
        for each in (tenant("first"), tenant("second"), pod("plain").container("main").tolerates("nvidia.com/gpu")):
            made = each.manifest()
            made["metadata"]["labels"] = {str(names.POOL): "t4"}
            cluster.kube.create(paths.pods("default"), made)
        all_run(cluster, 3)
        assert len(scaler.brought) == 1


def test_a_placeholder_goes_with_the_last_pod_that_waits(cluster: Cluster, tmp_path: Path) -> None:
    with scaled(cluster, tmp_path, replace(T4, most=0)) as scaler:
        create(cluster, tenant("short"))
        wait_for(lambda: placeholders(cluster), "nothing is asked for")
        cluster.kube.delete(paths.pods("default", "short"))
        wait_for(lambda: not placeholders(cluster), lambda: f"left: {placeholders(cluster)}")
        assert scaler.brought == []


def leader(cluster: Cluster) -> int:
    """The replica that leads."""

    def leads() -> list[int]:
        return [
            each.number
            for each in cluster.replicas
            if invariants.figures(cluster, each.number).get("gpufraction_leader")
        ]

    return wait_for(leads, "nobody leads", 40.0)[0]


@pytest.mark.storm
def test_a_leader_that_is_killed_in_between_leaves_no_second_request(cluster: Cluster, tmp_path: Path) -> None:
    with scaled(cluster, tmp_path, delay=6.0) as scaler:
        create(cluster, tenant("first"))
        wait_for(lambda: placeholders(cluster), "nothing is asked for")
        requested = set(placeholders(cluster))
        program = cluster.programs[cluster.replicas[leader(cluster)].name("allocator")]
        program.kill()
        program.wait()
        program.start()
        leader(cluster)
        assert set(placeholders(cluster)) <= requested, "what was asked for is not asked for twice"
        all_run(cluster, 1)
        assert len(scaler.brought) == 1


@pytest.mark.storm
def test_nodes_that_never_come_are_given_up_and_the_pod_says_so(cluster: Cluster, tmp_path: Path) -> None:
    with scaled(cluster, tmp_path, replace(T4, most=0)):
        create(cluster, tenant("waits"))
        wait_for(lambda: placeholders(cluster), "nothing is asked for")
        wait_for(lambda: not placeholders(cluster), "the request is not given up", 30.0)
        path = paths.pods("default", "waits")
        wait_for(
            lambda: scenarios.waits(cluster.kube.get(path)) == "NodeNotBrought",
            lambda: f"{cluster.kube.get(path)['status']}",
        )
        assert placeholders(cluster) == {}, "it is asked for again after the pause alone"
