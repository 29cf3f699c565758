"""One cluster of each kind for all tests of the whole system and of user workflows; each leaves it in order."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from playground import scenarios
from playground.cluster import Cluster
from tests.cluster.system import invariants
from tests.clusters import control_planes

ASSUME_TTL = 2.0
"""Seconds that a reservation waits for its pod here: long for a test, short for a person."""


@pytest.fixture(scope="package", params=control_planes())
def running_cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """
    The demo's cluster, on the embedded control plane and then on a real one.

    It uses best fit, because the results of the samples must not depend on what the allocator learnt in earlier tests.
    """
    pace = ("--assume-ttl", f"{ASSUME_TTL:.0f}s", "--repair-every", "1s")
    settings = {"allocator": (*pace, "--placement-node-policy", "binpack")}
    directory = tmp_path_factory.mktemp("cluster")
    with Cluster(directory=directory, settings=settings, control_plane=request.param) as cluster:
        yield cluster


@pytest.fixture
def cluster(running_cluster: Cluster) -> Iterator[Cluster]:
    """The cluster, empty. Afterwards every invariant holds, with the test's pods and again without them."""
    yield running_cluster
    invariants.check(running_cluster)
    scenarios.clear(running_cluster.kube)
    invariants.check(running_cluster)
