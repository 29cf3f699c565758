"""
Kueue's check `gpufraction.io/fits` on a whole cluster with two replicas and a program that reserves quota as Kueue
does: a gang starts when all of it fits, and no two gangs start for the same room.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from contract import names
from playground import scenarios
from playground.cluster import Cluster, account
from playground.shapes import DEMO
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube, KubeForbidden, KubeInvalid
from tests.builders import PodBuilder, pod
from tests.cluster.hostile.reserving import CHECK, Reserving
from tests.cluster.system import invariants
from tests.clusters import control_planes

pytestmark = [pytest.mark.hostile, pytest.mark.long]
JSON = dict[str, Any]
MEMORY = str(names.GPU_MEMORY)
HOLD = "6s"


@pytest.fixture(scope="module", params=control_planes())
def beside(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Cluster, Reserving]]:
    pace = ("--assume-ttl", "2s", "--repair-every", "1s", "--fits-retry-after", "7s", "--fits-hold", HOLD)
    with Cluster(
        directory=tmp_path_factory.mktemp("kueue"),
        nodes=DEMO[:1],
        settings={"allocator": pace},
        control_plane=request.param,
        components=("kueue-check",),
        replicas=2,
    ) as cluster:
        found = Reserving(cluster.kube)
        found.install()
        wait_for(found.is_active, "nobody answers the check", 90)
        yield cluster, found


@pytest.fixture
def cluster(beside: tuple[Cluster, Reserving]) -> Iterator[Cluster]:
    cluster, reserving = beside
    yield cluster
    for each in cluster.kube.list(reserving.path("workloads")).items:
        cluster.kube.delete(reserving.path("workloads", each["metadata"]["name"]))
    invariants.check(cluster)
    scenarios.clear(cluster.kube)
    invariants.check(cluster)


@pytest.fixture
def reserving(beside: tuple[Cluster, Reserving], cluster: Cluster) -> Reserving:
    return beside[1]


def asking(mib: int) -> PodBuilder:
    """A pod for a node of two cards of 15109 MiB."""
    return pod("w").asks(MEMORY, f"{mib}Mi").needs(cpu="10m", memory="16Mi")


def start(cluster: Cluster, number: int, made: PodBuilder, prefix: str) -> list[str]:
    """What a controller does once its Workload is admitted."""
    created = [cluster.kube.create(paths.pods("default"), made.generated(prefix).manifest()) for _ in range(number)]
    return [each["metadata"]["name"] for each in created]


def test_a_gang_that_fits_by_its_sum_and_on_no_card_starts_when_a_card_is_free(
    cluster: Cluster, reserving: Reserving
) -> None:
    (taker,) = start(cluster, 1, asking(9000), "taker-")
    scenarios.settled(cluster.kube, 1, running=1)
    reserving.reserve("gang", ("main", 2, asking(9000)))
    answer = reserving.answered("gang", "Retry")
    assert answer["requeueAfterSeconds"] == 7
    assert answer["message"].startswith("1 of 2 pods fit; the next one of pod set main does not: 0 of 1 GPU nodes fit")
    reserving.evict("gang")
    cluster.kube.delete(paths.pods("default", taker))
    wait_for(lambda: not scenarios.all_pods(cluster.kube), "the pod stays")
    assert reserving.starts("gang")["message"] == "all 2 pods fit"
    start(cluster, 2, asking(9000), "gang-")
    scenarios.settled(cluster.kube, 2, running=2)


def test_two_gangs_do_not_start_for_one_room(cluster: Cluster, reserving: Reserving) -> None:
    reserving.reserve("one", ("main", 2, asking(9000)))
    reserving.answered("one", "Ready")
    reserving.reserve("two", ("main", 1, asking(9000)))
    answer = reserving.answered("two", "Retry")
    assert "default/one" not in answer["message"]
    reserving.evict("two")
    reserving.evict("one")
    reserving.starts("two")


def test_what_was_promised_and_never_used_is_free_after_its_time(cluster: Cluster, reserving: Reserving) -> None:
    reserving.reserve("one", ("main", 2, asking(9000)))
    reserving.answered("one", "Ready")
    reserving.reserve("two", ("main", 1, asking(9000)))
    reserving.starts("two")


def test_pods_that_have_their_shares_count_once(cluster: Cluster, reserving: Reserving) -> None:
    reserving.reserve("one", ("main", 1, asking(9000)))
    reserving.answered("one", "Ready")
    start(cluster, 1, asking(9000), "one-")
    scenarios.settled(cluster.kube, 1, running=1)
    reserving.reserve("two", ("main", 1, asking(9000)))
    reserving.answered("two", "Ready")


def test_a_gang_that_no_card_could_serve_is_rejected(cluster: Cluster, reserving: Reserving) -> None:
    reserving.reserve("large", ("launcher", 1, pod("w").needs(cpu="10m")), ("main", 1, asking(99_000)))
    answer = reserving.answered("large", "Rejected")
    assert answer["message"].startswith("pod set main: no GPU of this cluster can ever serve it")


def test_a_workload_that_cannot_be_read_stops_no_other(cluster: Cluster, reserving: Reserving) -> None:
    for name, pod_sets in {
        "odd-1": [{"name": "main", "count": "many", "template": 5}],
        "odd-2": [{"name": "main", "count": 1, "template": {"spec": {"containers": [{"resources": 7}]}}}],
        "odd-3": "none",
        "odd-4": [{"name": "main", "count": 1, "template": {"spec": {"nodeSelector": [], "containers": [5]}}}],
    }.items():
        status = {
            "conditions": [{"type": "QuotaReserved", "status": "True"}],
            "admission": {"podSetAssignments": [{"name": "main", "flavors": {}, "count": 1}]},
            "admissionChecks": [{"name": CHECK, "state": "Pending", "message": ""}],
        }
        reserving.create("workloads", name, {"spec": {"podSets": pod_sets}})
        cluster.kube.patch_merge(reserving.path("workloads", name, "status"), {"status": status})
    reserving.reserve("good", ("main", 1, asking(100)))
    reserving.answered("good", "Ready")
    for each in cluster.kube.list(reserving.path("workloads")).items:
        if each["metadata"]["name"].startswith("odd"):
            cluster.kube.delete(reserving.path("workloads", each["metadata"]["name"]))
    reserving.reserve("better", ("main", 1, asking(100)))
    reserving.answered("better", "Ready")


def test_the_allocators_token_answers_a_pending_check_and_writes_nothing_else(
    cluster: Cluster, reserving: Reserving, tmp_path: Any
) -> None:
    kubeconfig = tmp_path / "kubeconfig.yaml"
    kubeconfig.write_text(cluster.control_plane.kubeconfig(account("gpufraction-allocator")))
    thief = Kube.connect(kubeconfig=str(kubeconfig))
    reserving.reserve("one", ("main", 1, asking(100)))
    reserving.answered("one", "Ready")
    where = reserving.path("workloads", "one", "status")
    checks = cluster.kube.get(reserving.path("workloads", "one"))["status"]["admissionChecks"]
    written: list[JSON] = [
        {"admission": None},
        {"admissionChecks": []},
        {"admissionChecks": [{**each, "state": "Rejected"} for each in checks]},
        {"conditions": [{"type": "Finished", "status": "True"}]},
    ]
    for status in written:
        with pytest.raises(KubeInvalid, match="gpufraction-allocator-kueue"):
            thief.patch_merge(where, {"status": status})
    with pytest.raises(KubeForbidden):
        thief.patch_merge(reserving.path("workloads", "one"), {"spec": {"podSets": []}})
    with pytest.raises(KubeInvalid, match="gpufraction-allocator-kueue"):
        thief.patch_merge(
            reserving.path("admissionchecks", CHECK, "status"), {"status": {"conditions": [], "more": True}}
        )
