"""A pod waits for two whole cards, and other pods stay on both: for whom the node is closed, and for how long."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from contract import names
from playground import scenarios
from playground.shapes import gpu_node
from playground.waiting import wait_for
from runtime.kubernetes import paths
from tests.builders import pod
from tests.cluster.hostile import replicas
from tests.cluster.hostile.attack import DELAY, NEIGHBOUR, TENANT, Hostile, hostile_cluster, unharmed
from tests.clusters import control_planes

pytestmark = [pytest.mark.hostile, pytest.mark.long]
ONE = (gpu_node("one", "2 x Tesla T4 15109MiB"),)
KEPT = "gpufraction_reserved_nodes"
SITS = pod("sits").asks("gpufraction.io/gpu-memory", "1Gi").annotated(names.GPU_POLICY, "spread")
WANTS = pod("wants").asks("nvidia.com/gpu", 2)


@pytest.fixture(scope="module", params=control_planes())
def impatient(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hostile]:
    flags = ("--starvation-timeout", "1s", "--starvation-reservation-limit", "8s")
    yield from hostile_cluster(request.param, tmp_path_factory.mktemp("kept"), nodes=ONE, flags=flags)


@pytest.fixture
def hostile(impatient: Hostile) -> Iterator[Hostile]:
    yield from unharmed(impatient)


def sit(hostile: Hostile, namespace: str) -> None:
    """Place a small pod on each of the two cards."""
    for number in (0, 1):
        made = pod(f"sits-{number}").asks("gpufraction.io/gpu-memory", "1Gi").annotated(names.GPU_POLICY, "spread")
        hostile.create(made, namespace)
        scenarios.settled(hostile.kube, number + 1, namespace, running=number + 1)
    held = [uuid for each in hostile.pods(namespace) for uuid in scenarios.held(each)]
    assert len(set(held)) == 2


def kept(hostile: Hostile) -> bool:
    return hostile.figures(replicas.leader(hostile)).get(KEPT) == 1


def test_what_a_tenant_holds_closes_no_node_to_others(hostile: Hostile) -> None:
    """A5: small pods of the same tenant are on each card."""
    sit(hostile, TENANT)
    hostile.create(WANTS)
    wait_for(lambda: kept(hostile), "no node is kept", 30)
    hostile.neighbour_is_served(DELAY)
    more = hostile.create(pod("more").asks("gpufraction.io/gpu-memory", "1Gi"))
    assert [gate["name"] for gate in more["spec"]["schedulingGates"]] == [str(names.GATE)]


def test_a_node_is_kept_for_a_while_only(hostile: Hostile) -> None:
    """A5: the reservation has a time limit, followed by a pause."""
    sit(hostile, NEIGHBOUR)
    hostile.create(WANTS)
    wait_for(lambda: kept(hostile), "no node is kept", 30)
    since = time.monotonic()
    wait_for(lambda: not kept(hostile), "it is kept for ever", 30)
    assert time.monotonic() - since < 15
    hostile.neighbour_is_served(DELAY)
    hostile.kube.delete(paths.pods(TENANT, "wants"), {"gracePeriodSeconds": 0})
