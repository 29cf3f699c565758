"""Pods of a namespace that agreed move to another node so that a larger pod can start; other pods stay."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from playground import scenarios
from playground.cluster import Cluster
from playground.tenants.moving import FLAGS, LABELS, NODES, WHOLE, fragment, moves, nodes_of
from playground.tenants.scenes import create, running, team
from playground.waiting import wait_for
from tests.cluster.system import invariants
from tests.clusters import control_planes

pytestmark = [pytest.mark.system, pytest.mark.long]
CONSIDERED = 5.0
"""Seconds in which the allocator looks for a move several times."""


@pytest.fixture(scope="module", params=control_planes())
def moving_cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two nodes of one card each, and an allocator that moves pods."""
    with Cluster(
        directory=tmp_path_factory.mktemp("moving"),
        nodes=NODES,
        settings={"allocator": FLAGS},
        control_plane=request.param,
        components=("allocator-eviction",),
    ) as cluster:
        team(cluster, "agreed", LABELS)
        team(cluster, "silent")
        team(cluster, "large")
        yield cluster


@pytest.mark.parametrize("namespace", ["silent", "agreed"])
def test_the_smaller_pod_moves_where_its_namespace_agreed(moving_cluster: Cluster, namespace: str) -> None:
    cluster = moving_cluster
    fragment(cluster, namespace)
    before = nodes_of(cluster.kube, namespace)
    create(cluster, "large", "whole", WHOLE)
    if namespace == "silent":
        time.sleep(CONSIDERED)
        assert (nodes_of(cluster.kube, namespace), running(cluster, "large")) == (before, set())
        assert moves(cluster.kube, namespace) == []
    else:
        wait_for(lambda: running(cluster, "large"), "the pod of a whole card does not run")
        wait_for(lambda: len(nodes_of(cluster.kube, namespace)) == 2, "the pod that moved does not run again")
        after = nodes_of(cluster.kube, namespace)
        assert after == {"six": before["six"], "four": before["six"]}, "the one with less work moved"
        [why] = wait_for(lambda: moves(cluster.kube, namespace), "no Event says that it moved")
        assert why.startswith(f"evicted: a larger pod waits for GPUs of node {before['four']}, and this pod fits on")
    invariants.check(cluster)
    for each in ("large", namespace):
        scenarios.clear(cluster.kube, each)
    invariants.check(cluster)
