"""A cluster on each control plane for the tests with the simulated Kueue. Each test leaves it empty and in order."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from playground import scenarios
from playground.cluster import Cluster
from tests.cluster.queueing import witness
from tests.cluster.system import invariants
from tests.clusters import control_planes


@pytest.fixture(scope="package", params=control_planes())
def running_cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The demo's cluster, on the embedded control plane and then on a real one."""
    pace = ("--assume-ttl", "2s", "--repair-every", "1s", "--placement-node-policy", "binpack")
    directory = tmp_path_factory.mktemp("queueing")
    with Cluster(directory=directory, settings={"allocator": pace}, control_plane=request.param) as cluster:
        yield cluster


@pytest.fixture
def cluster(running_cluster: Cluster) -> Iterator[Cluster]:
    """
    The cluster, empty. During the test no pod behind another system's gate has a share; afterwards the invariants hold.
    """
    with witness.watching(running_cluster.kube):
        yield running_cluster
        invariants.check(running_cluster)
        scenarios.clear(running_cluster.kube)
        invariants.check(running_cluster)
