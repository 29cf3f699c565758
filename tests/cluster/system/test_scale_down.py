"""
With `placement.scale_down: block` shares stop autoscalers from removing their node, unless the author says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from contract import names, pods
from playground import scenarios
from playground.cluster import Cluster
from playground.shapes import DEMO
from runtime.kubernetes import paths
from tests.builders import PodBuilder, pod
from tests.clusters import control_planes

pytestmark = pytest.mark.system
JSON = dict[str, Any]
AUTOSCALER, KARPENTER = "cluster-autoscaler.kubernetes.io/safe-to-evict", "karpenter.sh/do-not-disrupt"
OURS = {AUTOSCALER: "false", KARPENTER: "true", str(names.PROTECTED): f"{AUTOSCALER},{KARPENTER}"}
FOREIGN = "example.com/not-yet"
ASKS = {
    "our own words": pod("m").asks("gpufraction.io/gpu-memory", "2Gi"),
    "percent": pod("m").asks("gpufraction.io/gpu-percent", 10),
    "Aliyun's": pod("m").asks("aliyun.com/gpu-mem", 2),
    "HAMi's": pod("m").asks("nvidia.com/gpu", 1).asks("nvidia.com/gpumem", 2000),
    "Elastic GPU's": pod("m").asks("elasticgpu.io/gpu-memory", 2000),
    "nano GPU's": pod("m").asks("nano-gpu/gpu-percent", 10),
}


@pytest.fixture(scope="module", params=control_planes(long=True))
def keeping(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The demo's first two nodes, with the setting."""
    settings = {"allocator": ("--placement-scale-down", "block", "--assume-ttl", "2s", "--repair-every", "1s")}
    directory = tmp_path_factory.mktemp("keeping")
    with Cluster(directory=directory, nodes=DEMO[:2], settings=settings, control_plane=request.param) as cluster:
        yield cluster


@pytest.fixture
def cluster(keeping: Cluster) -> Iterator[Cluster]:
    yield keeping
    scenarios.clear(keeping.kube)


def found(made: JSON) -> JSON:
    """Its annotations about scale-down."""
    return {key: value for key, value in pods.annotations_of(made).items() if key in OURS}


def create(cluster: Cluster, made: PodBuilder) -> JSON:
    return cluster.kube.create(paths.pods("default"), made.manifest())


@pytest.mark.parametrize("pin", ["nodeName", "affinity"])
@pytest.mark.parametrize("asks", ASKS.values(), ids=ASKS.keys())
def test_a_pod_that_is_placed_at_admission(cluster: Cluster, asks: PodBuilder, pin: str) -> None:
    assert found(create(cluster, asks.annotated(names.PLACEMENT, pin))) == OURS
    scenarios.settled(cluster.kube, 1, running=1)


@pytest.mark.parametrize("asks", ASKS.values(), ids=ASKS.keys())
def test_a_pod_that_waits_gets_them_with_its_share(cluster: Cluster, asks: PodBuilder) -> None:
    made = asks.manifest()
    made["spec"]["schedulingGates"] = [{"name": FOREIGN}]
    assert found(cluster.kube.create(paths.pods("default"), made)) == {}
    ours = {"spec": {"schedulingGates": [{"name": str(names.GATE)}]}}
    cluster.kube.patch_merge(paths.pods("default", made["metadata"]["name"]), ours)
    (placed,) = scenarios.settled(cluster.kube, 1, running=1)
    assert found(placed) == OURS


def test_what_the_author_wrote_stays_by_both_ways(cluster: Cluster) -> None:
    mine = ASKS["our own words"].annotated(AUTOSCALER, "true")
    assert found(create(cluster, mine)) == {AUTOSCALER: "true", KARPENTER: "true", str(names.PROTECTED): KARPENTER}


def test_pods_without_a_share_have_none(cluster: Cluster) -> None:
    assert found(create(cluster, pod("plain").container("main"))) == {}
