"""A declared pool with zero nodes: pods wait instead of being refused, and are served when a node joins."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from contract import names
from contract.encoding import quantity
from playground import scenarios
from playground.cluster import Cluster
from playground.shapes import gpu_node
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import KubeError
from tests.builders import PodBuilder, pod
from tests.cluster.engines import fleet
from tests.cluster.engines.autoscaler import GROUP_LABEL
from tests.cluster.system import invariants
from tests.clusters import control_planes

pytestmark = [pytest.mark.system, pytest.mark.long]
JSON = dict[str, Any]
GPUS = "2 x Tesla T4 15109MiB"
TEMPLATE = {"gpus": 2, "model": "Tesla T4", "gpuMemory": "15109Mi", "cpu": 30, "memory": "250Gi", "max": 3}
POOL = {"name": "t4", "nodeSelector": {"matchLabels": {GROUP_LABEL: "t4"}}, "node": TEMPLATE}
WAITS = "no node of this cluster can serve it; a node of pool t4 would"
WHOLE = pod("whole").asks("nvidia.com/gpu", 1)
PERCENT = pod("percent").asks("nano-gpu/gpu-percent", 50)


@pytest.fixture(scope="module", params=control_planes())
def empty(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster without nodes."""
    directory = tmp_path_factory.mktemp("empty")
    with Cluster(nodes=(), directory=directory, control_plane=request.param) as cluster:
        yield cluster


def create(cluster: Cluster, made: PodBuilder, *, dry_run: bool = False) -> JSON:
    return cluster.kube.create(paths.pods("default"), made.manifest(), {"dryRun": "All"} if dry_run else None)


def declare(cluster: Cluster, *pools: JSON) -> None:
    text = yaml.safe_dump({"pools": list(pools)})
    cluster.kube.patch_merge(paths.configmaps(names.NAMESPACE, names.OPTIONS), {"data": {names.OPTIONS_FILE: text}})


def is_refused(cluster: Cluster, made: PodBuilder) -> bool:
    try:
        create(cluster, made, dry_run=True)
    except KubeError:
        return True
    return False


def message(cluster: Cluster, name: str) -> str:
    """What the pod's condition says about its share."""
    return str(scenarios.condition(cluster.kube.get(paths.pods("default", name))).get("message", ""))


def memory_of(found: JSON) -> int:
    """Bytes that quotas and the kubelet count for the pod."""
    return sum(
        quantity.integer(container["resources"].get("limits", {}).get(str(names.GPU_MEMORY), 0))
        for container in found["spec"]["containers"]
    )


def test_pods_wait_for_the_first_node_of_a_declared_pool(empty: Cluster, tmp_path: Path) -> None:
    assert is_refused(empty, WHOLE)
    assert is_refused(empty, PERCENT)
    declare(empty, POOL)
    wait_for(lambda: not is_refused(empty, WHOLE), "whole cards are refused although a pool has some", 30.0)
    waiting = [create(empty, made) for made in (WHOLE, PERCENT)]
    assert [memory_of(found) for found in waiting] == [
        share - share // 8 for share in (15109 * quantity.MIB, 15109 * quantity.MIB // 2)
    ]
    wait_for(
        lambda: {message(empty, name) for name in ("whole", "percent")} == {f"waiting: {WAITS}"},
        lambda: message(empty, "percent"),
    )

    with fleet.following(empty, tmp_path / "fleet", {"t4": GPUS}):
        empty.control_plane.add_node(gpu_node("n1", GPUS, labels={GROUP_LABEL: "t4"}).spec)
        found = scenarios.settled(empty.kube, 2, running=2)
        assert {each["spec"]["nodeName"] for each in found} == {"n1"}
        invariants.check(empty)
        scenarios.clear(empty.kube)
        invariants.check(empty)


def options_refused(cluster: Cluster) -> bool:
    """Whether the allocator says that it cannot read the options."""
    return "gpufraction_allocator_options_refused 1.0" in cluster.metrics().splitlines()


def test_while_the_options_cannot_be_read_the_pools_stay_as_they_were(empty: Cluster) -> None:
    declare(empty, POOL)
    wait_for(lambda: not is_refused(empty, WHOLE), "whole cards are refused although a pool has some", 30.0)
    declare(empty, {**POOL, "node": {"gpus": 0}})
    wait_for(lambda: options_refused(empty), "no metric says that the options are wrong")
    assert not is_refused(empty, WHOLE)
    declare(empty, POOL)
    wait_for(lambda: not options_refused(empty), "the metric still says that the options are wrong")
