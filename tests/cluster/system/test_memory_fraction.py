"""
`GPUFRACTION_MEMORY_FRACTION`: the fraction of the card that a container sees, regardless of how its pod got its share.
"""

from __future__ import annotations

from typing import Any

import pytest

from contract import names, pods
from playground import scenarios
from playground.cluster import Cluster
from playground.waiting import wait_for
from runtime.kubernetes import paths
from tests.builders import PodBuilder, pod

pytestmark = pytest.mark.system
JSON = dict[str, Any]
MEMORY = "gpufraction.io/gpu-memory"
CARD = 15_109


def t4(name: str, mib: int) -> PodBuilder:
    return pod(name).asks(MEMORY, f"{mib}Mi").spec(nodeSelector={"gpushare": "true"})


def create(cluster: Cluster, *made: PodBuilder) -> None:
    for each in made:
        cluster.kube.create(paths.pods("default"), each.manifest())


def part(cluster: Cluster, name: str, container: str = "") -> str:
    """The variable in the container's environment."""
    lines = scenarios.printed(cluster.kube, cluster.kube.get(paths.pods("default", name)), container).splitlines()
    (found,) = (line.partition("=")[2] for line in lines if line.startswith(f"{names.MEMORY_FRACTION}="))
    return found


def of_the_card(mib: int) -> str:
    return f"0.{mib * 1_000_000 // CARD:06d}".rstrip("0")


@pytest.mark.parametrize("pin", ["nodeName", "affinity"])
def test_a_pod_that_is_placed_when_it_is_created(cluster: Cluster, pin: str) -> None:
    create(cluster, t4("x", 5000).annotated(names.PLACEMENT, pin))
    scenarios.settled(cluster.kube, 1, running=1)
    assert part(cluster, "x") == of_the_card(5000)


def test_a_pod_that_waited(cluster: Cluster) -> None:
    create(cluster, t4("one", CARD), t4("two", CARD))
    scenarios.settled(cluster.kube, 2, running=2)
    create(cluster, t4("waits", 3000))
    scenarios.settled(cluster.kube, 3, running=2)
    assert names.GATE in pods.gates(cluster.kube.get(paths.pods("default", "waits")))
    assert part(cluster, "one") == "1"
    cluster.kube.delete(paths.pods("default", "one"))
    wait_for(
        lambda: scenarios.is_running(cluster.kube.get(paths.pods("default", "waits"))),
        "the pod that waited does not run",
    )
    assert part(cluster, "waits") == of_the_card(3000)


def test_each_container_has_its_own_part_and_a_tenants_value_is_replaced(cluster: Cluster) -> None:
    made = (
        pod("x").container("large").asks(MEMORY, "8000Mi").asks("gpufraction.io/gpu-count", 2)
        .env(names.MEMORY_FRACTION, "1").container("small").asks(MEMORY, "1000Mi")
        .spec(nodeSelector={"gpushare": "true"})
    )  # fmt: skip
    create(cluster, made)
    scenarios.settled(cluster.kube, 1, running=1)
    assert part(cluster, "x", "large") == of_the_card(8000)
    assert part(cluster, "x", "small") == of_the_card(1000)


def test_both_users_of_a_claim_get_its_fraction(cluster: Cluster) -> None:
    scenario = next(each for each in scenarios.SCENARIOS if each.sample == "oke-claims-pods.yaml")
    scenarios.submit(cluster.kube, scenario)
    for there in scenarios.settled(cluster.kube, 2, running=2):
        assert 0 < float(part(cluster, there["metadata"]["name"])) < 0.1
