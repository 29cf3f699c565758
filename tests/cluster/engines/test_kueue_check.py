"""Kueue's own program asks gpufraction whether all pods of a Workload fit, and starts the Workload when they do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from contract import names
from playground import scenarios
from playground.cluster import Cluster
from playground.engines import kueue
from playground.engines.kueue import GROUP_VERSION, KUEUE, Kueue
from playground.waiting import wait_for
from runtime.kubernetes import paths
from tests.builders import PodBuilder, pod
from tests.cluster.engines.programs import folder_of
from tests.clusters import real

pytestmark = [pytest.mark.engines, pytest.mark.timeout(300)]
JSON = dict[str, Any]
QUEUE = "kueue.x-k8s.io/queue-name"
MEMORY = str(names.GPU_MEMORY)
CHECK = "gpus"
V100 = {"gpu": "on"}
"""One node with two cards of 32 GiB."""


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, Kueue]]:
    """gpufraction with the check, and Kueue with a queue that has it and more quota than there are cards."""
    folder = folder_of(KUEUE.assets())
    pace = ("--assume-ttl", "2s", "--repair-every", "1s", "--fits-retry-after", "2s", "--fits-hold", "10s")
    directory = tmp_path_factory.mktemp("check")
    with (
        Cluster(
            directory=directory / "us",
            settings={"allocator": pace},
            control_plane=real,
            components=("claims", "kueue-check"),
        ) as cluster,
        kueue.running(cluster, folder, directory / "kueue", {}) as found,
    ):
        check_queue(found, {"cpu": "20", "memory": "40Gi", MEMORY: "200Gi"})
        yield cluster, found


def check_queue(found: Kueue, quota: Mapping[str, str]) -> None:
    """A queue `checked` with this quota on the node with cards. Its Workloads need our check."""
    found.create("admissionchecks", "AdmissionCheck", CHECK, {"controllerName": str(names.FITS)})
    found.flavor("v100", V100)
    found.queue("checked", "v100", quota)
    strategy = {"admissionChecksStrategy": {"admissionChecks": [{"name": CHECK}]}}
    found.kube.patch_merge(paths.path(GROUP_VERSION, "clusterqueues", None, "checked"), {"spec": strategy})
    wait_for(lambda: is_active(found), "the queue is not active: nobody answers its check", 90)


def is_active(found: Kueue) -> bool:
    """Whether the queue admits workloads; it does not before a program answers its check."""
    queue = found.kube.get(paths.path(GROUP_VERSION, "clusterqueues", None, "checked"))
    conditions = queue.get("status", {}).get("conditions", ())
    checks = queue["spec"].get("admissionChecksStrategy")
    return bool(checks) and any(each["type"] == "Active" and each["status"] == "True" for each in conditions)


def asking(gib: int) -> PodBuilder:
    return pod("p").asks(MEMORY, f"{gib}Gi").needs(cpu="10m", memory="16Mi")


def submit(cluster: Cluster, name: str, number: int, made: PodBuilder) -> str:
    """Create a Job of this many pods at once. Returns its uid."""
    spec = {**made.manifest()["spec"], "restartPolicy": "Never"}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": {QUEUE: "checked"}},
        "spec": {"parallelism": number, "completions": number, "template": {"spec": spec}},
    }
    return str(cluster.kube.create(paths.path("batch/v1", "jobs", "default"), job)["metadata"]["uid"])


def workloads(found: Kueue, uid: str) -> list[JSON]:
    """The Workload of a Job, once Kueue has created it."""
    return [w for w in found.workloads() if uid in {o["uid"] for o in w["metadata"].get("ownerReferences") or ()}]


def messages(found: Kueue, uid: str) -> list[str]:
    """The messages of the check and of the eviction that followed."""
    statuses = [each.get("status") or {} for each in workloads(found, uid)]
    entries = [e for status in statuses for part in ("admissionChecks", "conditions") for e in status.get(part) or ()]
    return [each.get("message", "") for each in entries]


def test_a_gang_that_fits_by_its_sum_only_starts_when_a_card_is_free(
    beside: tuple[Cluster, Kueue], cluster: Cluster
) -> None:
    taker = asking(20).spec(nodeSelector=V100).generated("taker-").manifest()
    name = cluster.kube.create(paths.pods("default"), taker)["metadata"]["name"]
    scenarios.settled(cluster.kube, 1, running=1)
    uid = submit(cluster, "gang", 2, asking(20))  # 44 GiB are free, and 40 requested

    wait_for(
        lambda: any(
            "1 of 2 pods fit; the next one of pod set main does not" in each for each in messages(beside[1], uid)
        ),
        lambda: f"it is not told why: {messages(beside[1], uid)}",
        60,
    )
    assert [each["metadata"]["name"] for each in scenarios.all_pods(cluster.kube)] == [name], "none of it is started"
    cluster.kube.delete(paths.pods("default", name))
    scenarios.settled(cluster.kube, 2, running=2)


def test_of_two_gangs_for_the_same_cards_one_starts_whole(beside: tuple[Cluster, Kueue], cluster: Cluster) -> None:
    uids = [submit(cluster, each, 2, asking(20)) for each in ("one", "two")]
    scenarios.settled(cluster.kube, 2, running=2)
    owners = {each["metadata"]["ownerReferences"][0]["uid"] for each in scenarios.all_pods(cluster.kube)}
    assert len(owners) == 1
    (other,) = set(uids) - owners
    wait_for(
        lambda: any("0 of 2 pods fit" in each for each in messages(beside[1], other)), "the other one is not told", 60
    )
    assert len(scenarios.all_pods(cluster.kube)) == 2


def test_what_no_card_could_serve_is_deactivated(beside: tuple[Cluster, Kueue], cluster: Cluster) -> None:
    uid = submit(cluster, "large", 1, asking(60))
    wait_for(
        lambda: any(each["spec"].get("active") is False for each in workloads(beside[1], uid)),
        lambda: f"it is still active: {messages(beside[1], uid)}",
        60,
    )
    assert any("no GPU of this cluster can ever serve it" in each for each in messages(beside[1], uid))


def test_a_plain_pod_is_judged_by_its_own_request_and_not_by_its_totals(cluster: Cluster) -> None:
    """18 GiB on each of two cards. Kueue's copy of the pod has 36 GiB in total, which no card has."""
    made = asking(18).asks("gpufraction.io/gpu-count", 2).generated("wide-").labelled(QUEUE, "checked")
    cluster.kube.create(paths.pods("default"), made.manifest())
    (ran,) = scenarios.settled(cluster.kube, 1, running=1)
    assert ran["spec"]["nodeName"] == "v100"
