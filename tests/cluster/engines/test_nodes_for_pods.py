"""Nodes for pods that wait, brought by Cluster Autoscaler's own program: no node too many, and none for nobody."""

from __future__ import annotations

from collections.abc import Iterator
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
from tests.cluster.engines import autoscaler, fleet
from tests.cluster.engines.autoscaler import Autoscaler, Group
from tests.cluster.system import invariants
from tests.clusters import real

pytestmark = [pytest.mark.engines, pytest.mark.timeout(300)]
JSON = dict[str, Any]
T4 = Group("t4", labels={"pool": "t4"}, taints=("nvidia.com/gpu=present:NoSchedule",))
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


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A real control plane with us, a declared pool, and no node."""
    if isinstance(folder := autoscaler.assets(), str):
        pytest.skip(folder)
    directory = tmp_path_factory.mktemp("nodes")
    pace = ("--assume-ttl", "2s", "--repair-every", "1s", "--provisioning-after", "1s")
    with Cluster(
        nodes=(),
        directory=directory,
        settings={"allocator": pace},
        control_plane=real,
        components=(*DEFAULT_COMPONENTS, "node-provisioning"),
    ) as cluster:
        path = paths.configmaps(names.NAMESPACE, names.OPTIONS)
        cluster.kube.patch_merge(path, {"data": {names.OPTIONS_FILE: yaml.safe_dump({"pools": [POOL]})}})
        yield cluster


@pytest.fixture
def scaler(cluster: Cluster, tmp_path: Path) -> Iterator[Autoscaler]:
    """The autoscaler with a group at zero, whose nodes have two GPUs."""
    folder = autoscaler.assets()
    assert isinstance(folder, Path)
    with (
        autoscaler.running(cluster, folder, tmp_path / "autoscaler", (T4,)) as found,
        fleet.following(cluster, tmp_path / "fleet", {"t4": "2 x Tesla T4 15109MiB"}, delay=2.0),
    ):
        yield found
        scenarios.clear(cluster.kube)
        invariants.check(cluster)


def tenant(name: str, memory: str = "10Gi") -> PodBuilder:
    return pod(name).asks(str(names.GPU_MEMORY), memory).needs(cpu="1", memory="1Gi").tolerates("nvidia.com/gpu")


def create(cluster: Cluster, *made: PodBuilder) -> None:
    for each in made:
        cluster.kube.create(paths.pods("default"), each.manifest())


def runs(cluster: Cluster, name: str) -> bool:
    return scenarios.is_running(cluster.kube.get(paths.pods("default", name)))


def test_a_pod_that_waits_brings_the_first_node_and_runs_there(cluster: Cluster, scaler: Autoscaler) -> None:
    create(cluster, tenant("first"))
    wait_for(
        lambda: runs(cluster, "first"),
        lambda: (
            f"it does not run: {cluster.kube.get(paths.pods('default', 'first'))['status']} {scaler.program.tail()}"
        ),
        timeout=60.0,
    )
    scaler.after_loops(5)
    assert len(scaler.nodes()) == 1
