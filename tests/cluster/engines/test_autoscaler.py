"""Cluster Autoscaler's own program beside us: what brings a node of its own accord, and what does not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contract import names
from playground import scenarios
from playground.cluster import Cluster
from playground.waiting import wait_for
from runtime.kubernetes import paths
from tests.builders import pod
from tests.cluster.engines import autoscaler, fleet
from tests.cluster.engines.autoscaler import Autoscaler, Group
from tests.cluster.system import invariants
from tests.clusters import real

pytestmark = [pytest.mark.engines, pytest.mark.timeout(300)]
JSON = dict[str, Any]
T4 = Group("t4", labels={"pool": "t4"}, taints=("nvidia.com/gpu=present:NoSchedule",))
PLAIN = Group("plain", most=3, labels={"pool": "plain"})
MEMORY = str(names.GPU_MEMORY)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A real control plane with us, without any node."""
    if isinstance(folder := autoscaler.assets(), str):
        pytest.skip(folder)
    pace = ("--assume-ttl", "2s", "--repair-every", "1s")
    directory = tmp_path_factory.mktemp("engines")
    with Cluster(nodes=(), directory=directory, settings={"allocator": pace}, control_plane=real) as cluster:
        yield cluster


@pytest.fixture
def scaler(cluster: Cluster, tmp_path: Path) -> Iterator[Autoscaler]:
    """The autoscaler with two groups at zero, of which one has two GPUs a node."""
    folder = autoscaler.assets()
    assert isinstance(folder, Path)
    with (
        autoscaler.running(cluster, folder, tmp_path / "autoscaler", (T4, PLAIN)) as found,
        fleet.following(cluster, tmp_path / "fleet", {"t4": "2 x Tesla T4 15109MiB"}),
    ):
        yield found
        scenarios.clear(cluster.kube)
        invariants.check(cluster)


def one_node_each(group: Group) -> JSON:
    """A pod template of which every pod needs a node of the group to itself, and no GPU resource."""
    labels = {"asks-for": group.name}
    term = {"labelSelector": {"matchLabels": labels}, "topologyKey": "kubernetes.io/hostname"}
    apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    made = pod("any").container("main").needs(cpu="100m").spec(affinity=apart, nodeSelector=dict(group.labels))
    return {"metadata": {"labels": labels}, "spec": made.tolerates("nvidia.com/gpu").manifest()["spec"]}


def test_a_request_for_nodes_brings_that_many_from_zero_and_their_gpus_are_published(
    cluster: Cluster, scaler: Autoscaler
) -> None:
    scaler.request("three", one_node_each(T4), 3)
    wait_for(lambda: len(scaler.nodes()) == 3, lambda: f"{len(scaler.nodes())} nodes; {scaler.program.tail()}")
    wait_for(lambda: scaler.is_provisioned("three"), "the request is not said to be served")
    gpunodes = paths.path(names.GPUNODE_GROUP_VERSION, names.GPUNODE_PLURAL)
    wait_for(lambda: len(cluster.kube.list(gpunodes).items) == 3, "GPUs are not published")
    scaler.after_loops(5)
    assert len(scaler.nodes(T4.name)) == 3, "a request is served once"


def test_nodes_of_a_request_that_is_gone_go_and_their_gpus_with_them(cluster: Cluster, scaler: Autoscaler) -> None:
    scaler.request("two", one_node_each(T4), 2)
    wait_for(lambda: len(scaler.nodes()) == 2, lambda: f"{len(scaler.nodes())} nodes; {scaler.program.tail()}")
    scaler.after_loops(8)
    assert len(scaler.nodes()) == 2, "the request keeps its nodes"
    scaler.forget_requests()
    wait_for(lambda: not scaler.nodes(), lambda: f"empty nodes stay: {scaler.program.tail()}")
    gpunodes = paths.path(names.GPUNODE_GROUP_VERSION, names.GPUNODE_PLURAL)
    wait_for(lambda: not cluster.kube.list(gpunodes).items, "GPUNodes stay")


def test_a_request_for_more_nodes_than_its_group_may_have_brings_none(scaler: Autoscaler) -> None:
    scaler.request("four", one_node_each(PLAIN), 4)
    scaler.after_loops(5)
    assert scaler.nodes() == []
    assert not scaler.is_provisioned("four")


def test_an_ordinary_pod_that_fits_nowhere_brings_one_node_and_runs_there(cluster: Cluster, scaler: Autoscaler) -> None:
    made = pod("ordinary").container("main").needs(cpu="1", memory="1Gi")
    cluster.kube.create(paths.pods("default"), made.manifest())
    wait_for(
        lambda: scenarios.is_running(cluster.kube.get(paths.pods("default", "ordinary"))),
        lambda: f"it does not run: {scaler.program.tail()}",
    )
    assert len(scaler.nodes()) == len(scaler.nodes(PLAIN.name)) == 1


def test_a_pod_that_waits_for_a_share_brings_no_node_by_itself(cluster: Cluster, scaler: Autoscaler) -> None:
    made = pod("waits").asks(MEMORY, "3Gi").needs(cpu="1", memory="1Gi").tolerates("nvidia.com/gpu")
    cluster.kube.create(paths.pods("default"), made.manifest())
    scenarios.settled(cluster.kube, 1, "default")
    scaler.after_loops(5)
    assert scaler.nodes() == []
