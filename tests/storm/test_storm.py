"""After a storm nothing is booked twice, nothing is forgotten and nothing has leaked."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from playground.cluster import Cluster
from playground.shapes import gpu_node
from tests.clusters import control_planes, crash_api_server
from tests.storm.storm import Storm
from tests.system import invariants

FAST_ELECTION = ("--election-lease", "3s", "--election-renew", "2s", "--election-retry", "300ms")
"""As quick as a busy machine of two cores bears: a call that takes longer than it may to renew ends a leader's term."""
NODES = tuple(gpu_node(f"n{i}", "4 x NVIDIA A10 23028MiB") for i in range(4))


@pytest.fixture(params=control_planes())
def two_replicas(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two replicas, a quick election, four nodes."""
    settings = {"allocator": (*FAST_ELECTION, "--assume-ttl", "3s")}
    directory = tmp_path_factory.mktemp("storm")
    with Cluster(
        nodes=NODES, directory=directory, settings=settings, replicas=2, control_plane=request.param
    ) as cluster:
        yield cluster


@pytest.mark.system
@pytest.mark.timeout(300)
def test_a_storm_of_200_pods(two_replicas: Cluster) -> None:
    storm = Storm(two_replicas, pods=200)
    storm.blow()
    storm.settle(timeout=150)
    invariants.check(two_replicas)
    assert storm.refused == []
    assert storm.strikes > 0


@pytest.mark.system
@pytest.mark.parametrize("two_replicas", control_planes(long=True), indirect=True)
def test_a_storm_of_60_pods_while_the_api_server_crashes(two_replicas: Cluster) -> None:
    def crash(storm: Storm) -> bool:
        crash_api_server(storm.cluster.control_plane)
        return True

    storm = Storm(two_replicas, pods=60, strike=crash, strike_every=2.0, seed=3)
    storm.blow()
    storm.settle(timeout=150)
    invariants.check(two_replicas)
    assert storm.refused == []
    assert storm.strikes > 0


@pytest.mark.storm
@pytest.mark.timeout(900)
def test_a_storm_of_1000_pods_in_four_gusts(two_replicas: Cluster) -> None:
    storm = Storm(two_replicas, pods=250, seed=7)
    for gust in range(1, 5):
        storm.blow()
        storm.settle(timeout=240)
        invariants.check(two_replicas)  # a quiet point
        assert (storm.refused, storm.strikes >= gust) == ([], True)
