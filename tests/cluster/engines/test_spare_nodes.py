"""Spare nodes of a pool, kept by Cluster Autoscaler's own program: this many empty nodes, however many are used."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from contract import names
from playground import scenarios
from playground.cluster import Cluster
from playground.waiting import wait_for
from runtime.kubernetes import paths
from tests.cluster.engines import autoscaler
from tests.cluster.engines.test_nodes_for_pods import POOL, Beside, beside, installed, tenant

pytestmark = [pytest.mark.engines, pytest.mark.timeout(300)]
JSON = dict[str, Any]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with installed(tmp_path_factory.mktemp("spare")) as cluster:
        yield cluster


def declare(cluster: Cluster, spare: int) -> None:
    """Declare the pool, with this many spare nodes."""
    document = {names.OPTIONS_FILE: yaml.safe_dump({"pools": [{**POOL, "spare": spare}]})}
    cluster.kube.patch_merge(paths.configmaps(names.NAMESPACE, names.OPTIONS), {"data": document})


def buffers(cluster: Cluster) -> list[JSON]:
    return list(cluster.kube.list(paths.path(autoscaler.BUFFER_VERSION, "capacitybuffers", names.NAMESPACE)).items)


def published(found: Beside) -> set[str]:
    """The nodes whose GPUs are published."""
    listed = found.cluster.kube.list(paths.path(names.GPUNODE_GROUP_VERSION, names.GPUNODE_PLURAL)).items
    return {each["metadata"]["name"] for each in listed}


def has_nodes(found: Beside, count: int) -> None:
    """Wait for this many nodes with GPUs. The number then stays the same for some time."""
    wait_for(
        lambda: len(published(found)) == len(found.scaler.nodes()) == count,
        lambda: f"{len(found.scaler.nodes())} nodes; {buffers(found.cluster)} {found.scaler.program.tail()}",
        60.0,
    )
    found.scaler.after_loops(8)
    assert len(found.scaler.nodes()) == count


def test_a_spare_node_is_kept_and_another_comes_when_a_share_takes_it(cluster: Cluster, tmp_path: Path) -> None:
    with beside(cluster, tmp_path) as found:
        declare(cluster, 1)
        has_nodes(found, 1)
        found.create(tenant("first"))
        wait_for(lambda: scenarios.is_running(found.pod("first")), lambda: f"{found.pod('first')['status']}")
        has_nodes(found, 2)
        generations = [each["metadata"]["generation"] for each in buffers(cluster)]
        cluster.kube.delete(paths.pods("default", "first"))
        has_nodes(found, 1)
        declare(cluster, 0)
        wait_for(lambda: not buffers(cluster) and not found.requests(), lambda: f"left: {found.requests()}")
        wait_for(lambda: not found.scaler.nodes(), lambda: f"it stays: {found.scaler.program.tail()}", 60.0)
        assert generations == [1], "the buffer itself was written once"
