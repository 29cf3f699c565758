"""Peers whose programs are installed, as the benchmark measures them, on a small real control plane."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from benchmarks.throughput import kills, sides, turns
from benchmarks.throughput.peers import hami, kai
from benchmarks.throughput.peers.bookings import overcommitted, without_card
from benchmarks.throughput.peers.peer import CARD, SHARE
from benchmarks.throughput.sides import TENANT, Bench, Side, pod_of
from playground.realapi.components import SCHEDULER
from playground.waiting import wait_for
from runtime.kubernetes import paths
from tests.clusters import assets_with

pytestmark = [pytest.mark.realcluster, pytest.mark.timeout(600)]
_NODES, _PODS = 4, 12


@pytest.fixture(scope="module", params=[hami.PEER.name, kai.PEER.name])
def measured(request: pytest.FixtureRequest) -> Iterator[tuple[Side, Bench]]:
    """A control plane where the peer works."""
    (side,) = sides.chosen([request.param])
    assert side.peer is not None
    assets = assets_with(SCHEDULER)
    missing = assets if isinstance(assets, str) else side.peer.missing(os.environ)
    if missing or isinstance(assets, str):
        pytest.skip(missing)
    with turns.bench_of(assets, side, nodes=_NODES, held=kills.NODES, environment=os.environ) as bench:
        yield side, bench


def test_its_pods_are_measured_and_each_has_a_card(measured: tuple[Side, Bench]) -> None:
    side, bench = measured
    one = bench.measure(side, _PODS)
    assert one.pods == _PODS
    assert len(one.known) == _PODS


def test_what_is_read_of_its_pods_is_what_they_ask_for(measured: tuple[Side, Bench]) -> None:
    side, bench = measured
    assert side.reading is not None
    bench.kube.create(paths.pods(TENANT), pod_of(side, "one"))
    wait_for(lambda: side.reading and side.reading.booked(bench.kube, TENANT), "the pod is not bound")
    bookings = side.reading.booked(bench.kube, TENANT)
    assert [each.memory for each in bookings] == [SHARE]
    assert without_card(bookings) == 0
    assert not overcommitted(bookings, CARD)
    bench.clear(side)
