"""
Kubernetes' own way to share GPUs, as the benchmark measures it in comparison with ours, on a small real control plane.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from benchmarks.throughput import kills, sides, turns
from benchmarks.throughput.peers import dra
from benchmarks.throughput.peers.bookings import overcommitted, without_card
from benchmarks.throughput.peers.peer import CARD, SHARE
from benchmarks.throughput.sides import TENANT, Bench, Side
from playground.realapi.components import CONTROLLERS, SCHEDULER
from playground.waiting import wait_for
from runtime.kubernetes import paths
from tests.clusters import assets_with

pytestmark = [pytest.mark.realcluster, pytest.mark.timeout(300)]
_NODES, _PODS, _CONSUMABLE = 4, 16, 36


@pytest.fixture(scope="module")
def consumable() -> Iterator[Bench]:
    """A control plane where kube-scheduler shares cards by their capacity."""
    assets = assets_with(SCHEDULER, CONTROLLERS)
    if isinstance(assets, str):
        pytest.skip(assets)
    if assets.minor() < _CONSUMABLE:
        pytest.skip(f"Kubernetes 1.{_CONSUMABLE} shares devices by their capacity, this is 1.{assets.minor()}")
    with turns.bench_of(assets, _side(), nodes=_NODES, held=kills.NODES, environment=os.environ) as bench:
        yield bench


def _side() -> Side:
    (side,) = sides.chosen([dra.PEER.name])
    return side


def test_claims_of_consumable_capacity_are_measured_and_leave_nothing(consumable: Bench) -> None:
    one = consumable.measure(_side(), _PODS)
    assert one.pods == _PODS
    assert len(one.known) == _PODS
    assert all(0 < seconds < 60 for seconds in one.known)
    assert one.memory["kube-scheduler"] > 0
    claims = paths.path("resource.k8s.io/v1", "resourceclaims", TENANT)
    assert not consumable.kube.list(claims).items


@pytest.mark.parametrize("name", ["claims", "claims-floor"])
def test_claims_that_others_allocate_are_measured_and_leave_nothing(name: str) -> None:
    """Our side uses ResourceClaims, compared with the minimum that these can cost."""
    assets = assets_with(SCHEDULER, CONTROLLERS)
    if isinstance(assets, str):
        pytest.skip(assets)
    if assets.minor() < _CONSUMABLE:
        pytest.skip(f"Kubernetes 1.{_CONSUMABLE} keeps the capacity of claims, this is 1.{assets.minor()}")
    (side,) = sides.chosen([name])
    with turns.bench_of(assets, side, nodes=_NODES, held=kills.NODES, environment=os.environ) as bench:
        one = bench.measure(side, _PODS)
        assert (one.pods, len(one.known)) == (_PODS, _PODS)
        assert not bench.kube.list(side.made).items


def test_pods_that_come_one_by_one_are_timed_each(consumable: Bench) -> None:
    assert len(consumable.one_by_one(_side(), 2)) == 2


def test_a_killed_scheduler_places_again_and_its_books_are_read(consumable: Bench) -> None:
    found = kills.measure(consumable, _side(), 1)
    assert found.bound > kills.ROOM
    assert len(found.back) == 1
    assert found.checks > 1
    assert not found.end


def test_what_is_read_of_full_nodes_is_what_pods_ask_for(consumable: Bench) -> None:
    side = _side()
    watched = kills.Watched(consumable.kube, side)
    watched.create()
    wait_for(lambda: watched.held() == kills.ROOM, "pods are not bound")
    bookings = side.reading.booked(consumable.kube, TENANT) if side.reading else ()
    assert [each.memory for each in bookings] == [SHARE] * kills.ROOM
    assert without_card(bookings) == 0
    assert set(overcommitted(bookings, CARD - 1).values()) == {CARD}
    watched.close()
    consumable.clear(side)
