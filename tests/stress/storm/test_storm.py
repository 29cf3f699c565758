"""After a storm nothing is allocated twice, nothing is forgotten and nothing has leaked."""

from __future__ import annotations

import pytest

from playground.cluster import Cluster
from tests.cluster.system import invariants
from tests.clusters import control_planes, crash_api_server
from tests.stress.storm.storm import Storm


@pytest.mark.system
@pytest.mark.timeout(300)
@pytest.mark.parametrize("two_replicas", control_planes(long=True), indirect=True)
def test_a_storm_of_200_pods(two_replicas: Cluster) -> None:
    storm = Storm(two_replicas, pods=200)
    storm.blow()
    storm.settle(timeout=150)
    invariants.check(two_replicas)
    assert storm.refused == []
    assert storm.strikes > 0


@pytest.mark.system
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
