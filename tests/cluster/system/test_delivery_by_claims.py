"""GPUs by Dynamic Resource Allocation: a pool that delivers by ResourceClaims beside one that does not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from contract import names, pods
from contract.encoding import resourceclaims
from playground import scenarios
from playground.cluster import Cluster
from playground.shapes import gpu_node
from playground.waiting import wait_for
from runtime.kubernetes import paths
from tests.builders import pod
from tests.cluster.system import invariants
from tests.clusters import control_planes

JSON = dict[str, Any]
pytestmark = pytest.mark.system
NODES = (
    gpu_node("plain", "1 x Tesla T4 15109MiB", labels={"pool": "plain"}, address="10.0.0.11"),
    gpu_node("dra", "2 x Tesla T4 15109MiB", labels={"pool": "dra", names.DELIVERY: names.BY_DRA}, address="10.0.0.12"),
)


@pytest.fixture(scope="module", params=control_planes())
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    pytest.importorskip("grpc", reason="gRPC is the package's extra `dra`")
    directory = tmp_path_factory.mktemp("dra")
    with Cluster(
        directory=directory, nodes=NODES, components=("claims", "delivery-dra"), control_plane=request.param
    ) as cluster:
        wait_for(lambda: by_claim(cluster, "dra"), "the agent does not publish its delivery", 30)
        yield cluster


@pytest.fixture
def cluster(running: Cluster) -> Iterator[Cluster]:
    yield running
    invariants.check(running)
    scenarios.clear(running.kube)
    wait_for(lambda: not claims(running), "claims are left over", 60)


def by_claim(cluster: Cluster, node: str) -> bool:
    path = paths.path(names.GPUNODE_GROUP_VERSION, names.GPUNODE_PLURAL, name=node)
    return bool(((cluster.kube.get(path).get("status") or {}).get("delivery") or {}).get("byClaim"))


def claims(cluster: Cluster) -> list[JSON]:
    return list(cluster.kube.list(paths.resourceclaims()).items)


def created(cluster: Cluster, name: str, pool: str, *, memory: str = "4Gi") -> JSON:
    body = pod(name).asks(names.GPU_MEMORY, memory).json()
    body["spec"]["nodeSelector"] = {"pool": pool}
    return cluster.kube.create(paths.pods("default"), body)


def run(cluster: Cluster, name: str) -> JSON:
    found: list[JSON] = []

    def runs() -> bool:
        found[:] = [cluster.kube.get(paths.pods("default", name))]
        return scenarios.is_running(found[0])

    wait_for(runs, lambda: f"{name} does not run: {found[0]['status']}", 30)
    return found[0]


def test_a_container_gets_the_card_of_its_share_by_its_claim(cluster: Cluster) -> None:
    created(cluster, "one", "dra")
    placed = run(cluster, "one")
    allocation = pods.carried_allocation(placed)
    assert allocation is not None
    (share,) = allocation.containers[0].shares
    printed = scenarios.printed(cluster.kube, placed, "main")
    assert "NVIDIA_VISIBLE_DEVICES=void\n" in printed
    assert f"(UUID: {share.uuid})" in printed
    (claim,) = claims(cluster)
    (result,) = claim["status"]["allocation"]["devices"]["results"]
    assert (result["driver"], result["pool"], result["device"]) == (
        names.GROUP,
        "dra",
        resourceclaims.device_name(share.uuid),
    )
    assert claim["metadata"]["name"] == resourceclaims.named_by(placed["spec"])


def test_the_other_pool_needs_no_claim(cluster: Cluster) -> None:
    created(cluster, "two", "plain")
    placed = run(cluster, "two")
    assert not resourceclaims.named_by(placed["spec"])
    assert claims(cluster) == []
