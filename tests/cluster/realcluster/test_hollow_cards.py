"""Kubernetes' own kubelet counts the pods of a replaced GPU, and still accepts the pods of the new one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from contract import names
from playground import scenarios
from playground.cluster import Cluster
from playground.machinery.kubelet.gpuruntime import NodeGpus
from playground.realapi.components import CONTROLLERS, KUBELETS, SCHEDULER
from playground.realapi.real import Real
from playground.shapes import gpu_node
from playground.waiting import wait_for
from runtime.kubernetes import paths
from tests.builders import pod
from tests.cluster.realcluster.conftest import PACE
from tests.cluster.realcluster.hollow import create, ours_of, status_of
from tests.clusters import assets_with

pytestmark = pytest.mark.realcluster
GPUS = "2 x Tesla V100 16GiB"


@pytest.fixture
def shown(tmp_path: Path) -> Path:
    """What the node's driver shows."""
    path = tmp_path / "gpus.json"
    path.write_text(json.dumps({"gpus": GPUS}))
    return path


@pytest.fixture
def cluster(tmp_path: Path, shown: Path) -> Iterator[Cluster]:
    assets = assets_with(KUBELETS, SCHEDULER, CONTROLLERS)
    if isinstance(assets, str):
        pytest.skip(assets)

    def plane(gpus_of: Callable[[str], NodeGpus]) -> Real:
        return Real(assets, gpus_of=gpus_of, hollow=True)

    nodes = [gpu_node("n", f"@{shown}")]
    with Cluster(nodes=nodes, directory=tmp_path / "run", settings={"allocator": PACE}, control_plane=plane) as made:
        yield made


def test_pods_of_a_new_gpu_run_beside_those_of_the_one_that_went(cluster: Cluster, shown: Path) -> None:
    for name in ("first", "second"):
        create(cluster, pod(name).asks("gpufraction.io/gpu-memory", "16Gi").asks("gpufraction.io/gpu-cores", 100))
    scenarios.settled(cluster.kube, 2, running=2)
    for number in range(4):
        share = pod(f"small-{number}").asks("gpufraction.io/gpu-memory", "4Gi").asks("gpufraction.io/gpu-cores", 25)
        create(cluster, share)
    made = shown.with_suffix(".new")
    made.write_text(json.dumps({"gpus": GPUS, "cards": {"0": {"uuid": "GPU-new"}}}))
    made.replace(shown)
    scenarios.settled(cluster.kube, 6, running=6)
    wanted = {str(names.GPU_MEMORY): "48Gi", str(names.GPU_CORES): "300"}
    wait_for(lambda: ours_of(cluster, "n") == [wanted, wanted], lambda: str(status_of(cluster, "n")))

    here = {gpu["uuid"] for gpu in cluster.kube.get(paths.gpunodes("n"))["status"]["gpus"]}
    stranded = [each for each in scenarios.all_pods(cluster.kube) if not scenarios.held(each).keys() <= here]
    assert len(stranded) == 1
    cluster.kube.delete(paths.pods("default", stranded[0]["metadata"]["name"]))
    less = {str(names.GPU_MEMORY): "32Gi", str(names.GPU_CORES): "200"}
    wait_for(lambda: ours_of(cluster, "n") == [less, less], lambda: str(status_of(cluster, "n")))
