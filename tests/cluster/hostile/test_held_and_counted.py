"""Init containers on separate cards: what a tenant holds is at most what its quota counts and allows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from contract import names, pods
from contract.encoding import quantity
from contract.encoding.quantity import GIB
from contract.scheduling.demand import demands
from playground import scenarios
from playground.shapes import gpu_node
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import KubeForbidden
from tests.builders import PodBuilder, pod
from tests.cluster.hostile.attack import NEIGHBOUR, TENANT, Hostile, hostile_cluster, unharmed
from tests.clusters import control_planes

pytestmark = [pytest.mark.hostile, pytest.mark.long]
JSON = dict[str, Any]
MEMORY = str(names.GPU_MEMORY)
QUOTA = "counts"
TWO = (gpu_node("two", "2 x Tesla T4 15109MiB"),)


@pytest.fixture(scope="module", params=control_planes())
def two(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hostile]:
    yield from hostile_cluster(request.param, tmp_path_factory.mktemp("held"), nodes=TWO)


@pytest.fixture
def hostile(two: Hostile) -> Iterator[Hostile]:
    yield from unharmed(two)


@pytest.fixture
def quota(hostile: Hostile) -> Iterator[str]:
    """A quota of 8 GiB for the tenant."""
    body = {"metadata": {"name": QUOTA}, "spec": {"hard": {f"requests.{MEMORY}": "8Gi"}}}
    hostile.kube.create(paths.path("v1", "resourcequotas", TENANT), body)
    path = paths.path("v1", "resourcequotas", TENANT, QUOTA)
    wait_for(lambda: (hostile.kube.get(path).get("status") or {}).get("hard"), "the quota is not counted")
    yield path
    hostile.kube.delete(path)


def held(found: JSON) -> int:
    """Bytes that a pod holds of all cards together."""
    request = pods.admitted(found)
    allocation = pods.carried_allocation(found)
    assert request is not None
    return sum(each.memory for each in demands(request, allocation).values()) if allocation is not None else 0


def staged(name: str, *mains: str, init: str) -> PodBuilder:
    made = pod(name).init("init").asks(MEMORY, init)
    for index, main in enumerate(mains):
        made = made.container(f"main-{index}").asks(MEMORY, main)
    return made


def counted(hostile: Hostile, path: str) -> int:
    return quantity.integer(hostile.kube.get(path)["status"]["used"][f"requests.{MEMORY}"])


def test_a_pod_with_an_init_container_holds_what_its_quota_counts(hostile: Hostile, quota: str) -> None:
    """One card has room only for the small share, and the policy prefers it."""
    hostile.create(pod("fills").asks(MEMORY, "9Gi"), NEIGHBOUR)
    scenarios.settled(hostile.kube, 1, NEIGHBOUR, running=1)
    hostile.create(staged("staged", "8Gi", init="4Gi"))
    (found,) = scenarios.settled(hostile.kube, 1, TENANT, running=1)
    assert (held(found), counted(hostile, quota)) == (8 * GIB, 8 * GIB)


def test_what_no_main_container_covers_is_counted_besides(hostile: Hostile, quota: str) -> None:
    with pytest.raises(KubeForbidden, match="exceeded quota"):
        hostile.create(staged("large", "4Gi", "4Gi", init="8Gi"))
    hostile.create(staged("staged", "2Gi", "2Gi", init="4Gi"))
    (found,) = scenarios.settled(hostile.kube, 1, TENANT, running=1)
    assert held(found) <= counted(hostile, quota) == 6 * GIB


def test_a_pod_that_waits_holds_no_more_once_it_is_placed(hostile: Hostile, quota: str) -> None:
    for index in range(2):
        hostile.create(pod(f"fills-{index}").asks(MEMORY, "14Gi"), NEIGHBOUR)
    scenarios.settled(hostile.kube, 2, NEIGHBOUR, running=2)
    hostile.create(staged("staged", "8Gi", init="4Gi"))
    assert counted(hostile, quota) == 8 * GIB
    hostile.kube.delete(paths.pods(NEIGHBOUR, "fills-0"), {"gracePeriodSeconds": 0})
    (found,) = scenarios.settled(hostile.kube, 1, TENANT, running=1)
    assert (held(found), counted(hostile, quota)) == (8 * GIB, 8 * GIB)
