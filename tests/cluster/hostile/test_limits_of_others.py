"""Memory limits above requests: what a tenant may use, what its quota counts, and how it affects others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from contract import names
from playground import scenarios
from playground.cluster import Cluster
from playground.shapes import gpu_node
from playground.tenants import limiter
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import KubeForbidden
from tests.builders import PodBuilder, pod
from tests.cluster.hostile.attack import DELAY, NEIGHBOUR, TENANT, Hostile, hostile_cluster, unharmed
from tests.clusters import control_planes

pytestmark = [pytest.mark.hostile, pytest.mark.long]
JSON = dict[str, Any]
NODE = (gpu_node("two", "2 x Tesla T4 15109MiB"),)
REQUEST, LIMIT = f"requests.{names.GPU_MEMORY}", f"requests.{names.GPU_MEMORY_LIMIT}"
KAI = "nvidia.com/container.main.gpu-memory"
TOO_FAR = "do not allow a memory limit this far above the request"


@pytest.fixture(scope="module", params=control_planes())
def bursting(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hostile]:
    """Agents that enforce limits. Each pod passes the counts of kube-scheduler and of the kubelet."""
    library = tmp_path_factory.mktemp("library") / "library"
    limiter.install(library)
    flags = ("--placement-pin", "affinity")
    directory = tmp_path_factory.mktemp("bursting")
    agents = limiter.agents(library)
    yield from hostile_cluster(request.param, directory, nodes=NODE, flags=flags, nodeagent=agents)


@pytest.fixture
def hostile(bursting: Hostile) -> Iterator[Hostile]:
    allow(bursting.cluster, "2")
    yield from unharmed(bursting)


def allow(cluster: Cluster, ratio: str) -> None:
    text = f"memoryLimitRatio: {ratio}" if ratio else ""
    cluster.kube.patch_merge(paths.configmaps(names.NAMESPACE, names.OPTIONS), {"data": {names.OPTIONS_FILE: text}})
    wait_for(
        lambda: (
            (str(names.GPU_MEMORY_LIMIT) in cluster.kube.get(paths.nodes("two"))["status"]["allocatable"])
            == bool(ratio)
            and bool((cluster.kube.get(paths.gpunodes("two")).get("status") or {}).get("options")) == bool(ratio)
        ),
        "the option is not published",
        30,
    )


def native(name: str, memory: str, limit: str) -> PodBuilder:
    return pod(name).asks(names.GPU_MEMORY, memory).asks(names.GPU_MEMORY_LIMIT, limit)


def by_kai(name: str, memory: str, limit: str) -> PodBuilder:
    made = pod(name).annotated(f"{KAI}.request", memory).annotated(f"{KAI}.limit", limit)
    return made.spec(schedulerName="kai-scheduler")


DIALECTS = pytest.mark.parametrize("asks", [native, by_kai], ids=["native", "kai"])


@DIALECTS
def test_who_books_next_to_nothing_may_use_next_to_nothing(hostile: Hostile, asks: Any) -> None:
    """Eight pods of 1 MiB with limits of a whole card would close all cards to all others."""
    for index in range(8):
        with pytest.raises(KubeForbidden, match=TOO_FAR):
            hostile.create(asks(f"far-{index}", "1Mi", "15000Mi"))
        hostile.create(asks(f"near-{index}", "1Mi", "2Mi"))
    scenarios.settled(hostile.kube, 8, TENANT, running=8)
    hostile.neighbour_is_served(DELAY)
    for index in range(2):
        hostile.create(pod(f"large-{index}").asks(names.GPU_MEMORY, "14Gi"), NEIGHBOUR)
    scenarios.settled(hostile.kube, 2, NEIGHBOUR, running=2)


@DIALECTS
def test_without_the_option_nobody_may_use_more_than_is_booked(hostile: Hostile, asks: Any) -> None:
    allow(hostile.cluster, "")
    with pytest.raises(KubeForbidden, match=TOO_FAR):
        hostile.create(asks("bursts", "4Gi", "4097Mi"))
    hostile.create(asks("plain", "4Gi", "4Gi"))
    (found,) = scenarios.settled(hostile.kube, 1, TENANT, running=1)
    assert str(names.GPU_MEMORY_LIMIT) not in found["spec"]["containers"][0]["resources"]["limits"]


@DIALECTS
def test_a_quota_counts_limits_beside_what_is_booked(hostile: Hostile, asks: Any) -> None:
    path = paths.path("v1", "resourcequotas", TENANT, "limits")
    body = {"metadata": {"name": "limits"}, "spec": {"hard": {REQUEST: "100Gi", LIMIT: "12Gi"}}}
    hostile.kube.create(paths.path("v1", "resourcequotas", TENANT), body)
    try:
        wait_for(lambda: (hostile.kube.get(path).get("status") or {}).get("hard"), "the quota is not counted")
        hostile.create(asks("first", "4Gi", "8Gi"))
        with pytest.raises(KubeForbidden, match="exceeded quota"):
            hostile.create(asks("second", "4Gi", "8Gi"))
        hostile.create(pod("plain").asks(names.GPU_MEMORY, "4Gi"))
        scenarios.settled(hostile.kube, 2, TENANT, running=2)
        assert hostile.kube.get(path)["status"]["used"] == {REQUEST: "8Gi", LIMIT: "8Gi"}
    finally:
        hostile.kube.delete(path)
