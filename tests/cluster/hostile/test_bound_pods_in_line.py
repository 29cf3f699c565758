"""
Pods that name their node arrive while another tenant's pods wait for it: the pods that waited longer are placed first.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from contract import names, pods
from playground import scenarios
from playground.shapes import gpu_node
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import KubeError
from tests.builders import PodBuilder, pod
from tests.cluster.hostile.attack import NEIGHBOUR, TENANT, Hostile, hostile_cluster, unharmed
from tests.clusters import control_planes

pytestmark = [pytest.mark.hostile, pytest.mark.long]
CARDS = 4
NODE = (gpu_node("four", f"{CARDS} x Tesla T4 15109MiB"),)
SHAPES = 100
"""Pods of this many sizes that fit nowhere: evaluating all of them takes a while."""


@pytest.fixture(scope="module", params=control_planes())
def four(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hostile]:
    yield from hostile_cluster(request.param, tmp_path_factory.mktemp("bound"), nodes=NODE)


@pytest.fixture
def hostile(four: Hostile) -> Iterator[Hostile]:
    yield from unharmed(four)


def card(name: str, mib: int = 15000) -> PodBuilder:
    made = pod(name).asks(names.GPU_MEMORY, f"{mib}Mi").spec(terminationGracePeriodSeconds=0)
    return made


def holders(hostile: Hostile, namespace: str) -> int:
    return sum(1 for each in hostile.pods(namespace) if scenarios.held(each))


def test_who_names_the_node_is_not_before_who_waits_for_it(hostile: Hostile) -> None:
    for index in range(CARDS):
        hostile.create(card(f"holds-{index}"), NEIGHBOUR)
    wait_for(lambda: holders(hostile, NEIGHBOUR) == CARDS, "the cards are not held")
    for index in range(CARDS):
        hostile.create(card(f"waits-{index}"), NEIGHBOUR)
    for index in range(SHAPES):
        hostile.create(card(f"never-{index}", 14000 + index))
    stop = threading.Event()

    def jump() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            try:
                hostile.create(card(f"jumps-{threading.get_ident()}-{number}").on("four"))
            except KubeError:
                continue

    jumping = [threading.Thread(target=jump) for _ in range(2)]
    for thread in jumping:
        thread.start()
    try:
        for index in range(CARDS):
            hostile.kube.delete(paths.pods(NEIGHBOUR, f"holds-{index}"), {"gracePeriodSeconds": 0})
            wait_for(
                lambda index=index: (  # type: ignore[misc]
                    len(hostile.pods(NEIGHBOUR)) == 2 * CARDS - index - 1
                    and holders(hostile, NEIGHBOUR) + holders(hostile, TENANT) == CARDS
                ),
                "the card stays free",
            )
    finally:
        stop.set()
        for thread in jumping:
            thread.join()
    assert sorted(pods.key(each) for each in hostile.pods(TENANT) if scenarios.held(each)) == []
    assert holders(hostile, NEIGHBOUR) == CARDS
