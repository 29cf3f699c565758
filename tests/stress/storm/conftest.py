"""Clusters of two replicas for storms."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from playground.cluster import Cluster
from playground.shapes import gpu_node
from tests.clusters import only_real

FAST_ELECTION = ("--election-lease", "3s")
"""As short as a busy machine with two cores allows: a leader's term ends if a call takes longer than a renewal may."""
NODES = tuple(gpu_node(f"n{i}", "4 x NVIDIA A10 23028MiB") for i in range(4))


@pytest.fixture(params=only_real())
def two_replicas(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two replicas with a quick election, and four nodes."""
    settings = {"allocator": (*FAST_ELECTION, "--assume-ttl", "3s")}
    directory = tmp_path_factory.mktemp("storm")
    with Cluster(
        nodes=NODES, directory=directory, settings=settings, replicas=2, control_plane=request.param
    ) as cluster:
        yield cluster
