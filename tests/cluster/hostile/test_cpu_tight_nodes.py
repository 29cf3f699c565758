"""Many pods with and without a share at the same time, on a node with too little CPU: its kubelet refuses none."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from playground import scenarios
from playground.shapes import gpu_node
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube
from tests.builders import pod
from tests.cluster.hostile import replicas
from tests.cluster.hostile.attack import NEIGHBOUR, TENANT, Hostile, hostile_cluster, unharmed
from tests.clusters import control_planes

pytestmark = [pytest.mark.hostile, pytest.mark.long]
JSON = dict[str, Any]
TIGHT = (gpu_node("tight", "4 x Tesla T4 15109MiB"),)
"""32 CPUs."""
EACH = 40


@pytest.fixture(scope="module", params=control_planes())
def crowded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hostile]:
    yield from hostile_cluster(request.param, tmp_path_factory.mktemp("tight"), nodes=TIGHT)


@pytest.fixture
def hostile(crowded: Hostile) -> Iterator[Hostile]:
    with replicas.asking(crowded, leads=True):
        yield from unharmed(crowded)


@pytest.mark.parametrize("cpu", ["200m", "500m", "3"])
def test_a_burst_of_pods_with_and_without_a_share(hostile: Hostile, cpu: str) -> None:
    """C11: 40 pods bound by name, while kube-scheduler places as many others."""
    shares = [pod(f"share-{n}").asks("gpufraction.io/gpu-memory", "256Mi").needs(cpu=cpu) for n in range(EACH)]
    plain = [pod(f"plain-{n}").needs(cpu=cpu) for n in range(EACH)]
    everybody = [made.manifest() for pair in zip(shares, plain, strict=True) for made in pair]
    clients = [threading.Thread(target=create, args=(hostile, everybody[number::4])) for number in range(4)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    fit = min(2 * EACH, int(32_000 / {"200m": 200, "500m": 500, "3": 3000}[cpu]))
    found: list[JSON] = []

    def full() -> bool:
        found[:] = hostile.pods()
        return len(found) == 2 * EACH and sum(map(scenarios.is_running, found)) >= fit

    wait_for(full, lambda: f"{sum(map(scenarios.is_running, found))} of {fit} run: {scenarios.shown(found)}")
    assert [each["metadata"]["name"] for each in found if each["status"].get("phase") == "Failed"] == []
    assert sum(map(scenarios.is_running, found)) == fit


def create(hostile: Hostile, made: list[JSON]) -> None:
    """One client that creates pods as fast as they are accepted."""
    kube = Kube.connect(kubeconfig=str(hostile.cluster.kubeconfig), user_agent="burst")
    for manifest in made:
        kube.create(paths.pods(TENANT), {**manifest, "metadata": {**manifest["metadata"], "namespace": TENANT}})


def test_a_node_with_room_takes_a_neighbour_by_name(hostile: Hostile) -> None:
    """If there is room, and no other pod is about to take it, pods are still bound at admission."""
    made = pod("roomy").asks("gpufraction.io/gpu-memory", "256Mi").needs(cpu="1")

    def bound() -> bool:
        stored = hostile.create(made, NEIGHBOUR, dry_run=True)
        return bool(stored["spec"].get("nodeName") == "tight")

    wait_for(bound, "pods are not bound at admission", 10)
