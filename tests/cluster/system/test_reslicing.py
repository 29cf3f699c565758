"""NVIDIA's MIG manager divides a node's card again: no pod is placed meanwhile, and later pods use the new slices."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contract import names
from contract.reslicing import STATE_LABEL
from playground import scenarios
from playground.cluster import Cluster
from playground.shapes import gpu_node
from playground.waiting import wait_for
from runtime.kubernetes import paths
from tests.builders import pod
from tests.cluster.system import invariants
from tests.clusters import control_planes

pytestmark = pytest.mark.system
JSON = dict[str, Any]
NODE = "mig"
WHOLE, SLICED = "1 x NVIDIA A100 40960MiB", "2 x NVIDIA A100 MIG 3g.20gb 20096MiB"


def sliced(file: Path, gpus: str) -> None:
    """Set what the driver shows from now on. It is replaced in one step, because the agent may read it at any time."""
    beside = file.with_suffix(".new")
    beside.write_text(json.dumps({"gpus": gpus}))
    beside.replace(file)


@pytest.fixture(params=control_planes(long=True))
def sliceable(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Cluster, Path]]:
    file = tmp_path / "gpus.json"
    sliced(file, WHOLE)
    nodes = [gpu_node(NODE, f"@{file}")]
    with Cluster(nodes=nodes, directory=tmp_path / "cluster", control_plane=request.param) as cluster:
        yield cluster, file


def test_a_pod_waits_while_cards_are_sliced_anew_and_gets_a_new_slice(sliceable: tuple[Cluster, Path]) -> None:
    cluster, file = sliceable
    kube = cluster.kube

    def says(state: str) -> None:
        kube.patch_merge(paths.nodes(NODE), {"metadata": {"labels": {STATE_LABEL: state}}})

    def read() -> JSON:
        return kube.get(paths.pods("default", "p"))

    def gpus() -> list[int]:
        found = kube.get(paths.gpunodes(NODE))["status"].get("gpus") or []
        return [gpu["memoryBytes"] >> 20 for gpu in found]

    says("pending")
    kube.create(paths.pods("default"), pod("p").asks("gpufraction.io/gpu-memory", "10Gi").manifest())
    message = "1 whose GPUs are being repartitioned by NVIDIA's MIG manager (nvidia.com/mig.config.state)"
    wait_for(
        lambda: message in scenarios.condition(read()).get("message", ""), lambda: str(scenarios.condition(read()))
    )
    sliced(file, SLICED)
    wait_for(lambda: gpus() == [20096, 20096], lambda: f"the agent publishes {gpus()}")
    says("rebooting")
    wait_for(
        lambda: message in scenarios.condition(read()).get("message", ""), lambda: str(scenarios.condition(read()))
    )
    assert names.ALLOCATION not in read()["metadata"]["annotations"]
    says("success")
    wait_for(lambda: scenarios.is_running(read()), lambda: str(scenarios.condition(read())))
    invariants.check(cluster)
