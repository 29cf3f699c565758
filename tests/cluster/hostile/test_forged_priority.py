"""A tenant cannot put its pods first with what it writes: cards are shared with another tenant as without it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from contract import names
from contract.encoding import codec
from contract.encoding.quantity import MIB
from contract.model import FractionRequest, PodRequest
from playground import scenarios
from playground.shapes import gpu_node
from playground.waiting import wait_for
from runtime.kubernetes import paths
from tests.builders import PodBuilder, pod
from tests.cluster.hostile.attack import NEIGHBOUR, TENANT, Hostile, hostile_cluster, unharmed
from tests.clusters import control_planes

pytestmark = [pytest.mark.hostile, pytest.mark.long]
CARDS = 4
NODE = (gpu_node("four", f"{CARDS} x Tesla T4 15109MiB"),)
CARD = 15000
"""MiB of which a card has room for only one pod."""


@pytest.fixture(scope="module", params=control_planes())
def fair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hostile]:
    flags = ("--queue-order", "fair")
    yield from hostile_cluster(request.param, tmp_path_factory.mktemp("priority"), nodes=NODE, flags=flags)


@pytest.fixture
def hostile(fair: Hostile) -> Iterator[Hostile]:
    yield from unharmed(fair)


def plain(name: str) -> PodBuilder:
    return pod(name).asks(names.GPU_MEMORY, f"{CARD}Mi").spec(terminationGracePeriodSeconds=0)


def by_resource(name: str) -> PodBuilder:
    """In the format of the system whose high priority is 0."""
    made = pod(name).asks("nvidia.com/gpu", 1).asks("nvidia.com/gpumem", CARD).asks("nvidia.com/priority", 0)
    return made.spec(terminationGracePeriodSeconds=0)


def by_forged_request(name: str) -> PodBuilder:
    """With the annotation that admission writes, which contains the priority."""
    fraction = FractionRequest("main", 1, CARD * MIB)
    made = plain(name)
    (container,) = made.json()["spec"]["containers"]
    request = PodRequest("native", (FractionRequest(container["name"], 1, fraction.memory),), priority=1)
    return made.annotated(names.REQUEST, codec.request_to_text(request))


def holders(hostile: Hostile) -> Counter[str]:
    found = Counter[str]()
    for namespace in (TENANT, NEIGHBOUR):
        found[namespace] += sum(1 for each in hostile.pods(namespace) if scenarios.held(each))
    return found


@pytest.mark.parametrize("forge", [by_resource, by_forged_request], ids=["resource", "request"])
def test_who_says_that_it_goes_first_gets_no_card_more(hostile: Hostile, forge: Callable[[str], PodBuilder]) -> None:
    for index in range(CARDS):
        hostile.create(plain(f"holds-{index}"), NEIGHBOUR)
    wait_for(lambda: holders(hostile) == {NEIGHBOUR: CARDS, TENANT: 0}, lambda: f"{holders(hostile)}")
    for index in range(CARDS):
        hostile.create(plain(f"waits-{index}"), NEIGHBOUR)
    for index in range(CARDS):
        hostile.create(forge(f"first-{index}"))
    for each in hostile.pods():
        assert [gate["name"] for gate in each["spec"]["schedulingGates"]] == [str(names.GATE)]
    for index in range(CARDS):
        hostile.kube.delete(paths.pods(NEIGHBOUR, f"holds-{index}"), {"gracePeriodSeconds": 0})
    wait_for(
        lambda: sum(holders(hostile).values()) == CARDS and len(hostile.pods(NEIGHBOUR)) == CARDS,
        lambda: f"{holders(hostile)} hold the {CARDS} cards",
    )
    assert holders(hostile) == {NEIGHBOUR: CARDS // 2, TENANT: CARDS // 2}
