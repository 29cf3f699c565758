"""KubeRay's own operator: a Ray cluster's Events say why a worker waits, and nothing is left over."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from contract import names
from contract.reasons.pods import PodReason
from playground.cluster import Cluster
from playground.engines import controllers, ray
from playground.engines.ray import CLUSTERS, JOBS, KUBERAY, VERSION
from playground.waiting import wait_for
from tests.builders import pod
from tests.cluster.engines.owned import (
    booked,
    cleared,
    events_of,
    leave,
    members,
    occupy,
    reasons,
    running,
    shown,
    template,
    worker,
)
from tests.cluster.engines.programs import folder_of

pytestmark = [pytest.mark.engines, pytest.mark.timeout(300)]
JSON = dict[str, Any]
NO_ROOM = "Memory"
"""The reason of a pod for which no card has enough memory."""


@pytest.fixture(scope="module")
def kuberay(us: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("kuberay") / "run"
    with controllers.running(KUBERAY, us, folder_of(KUBERAY.assets()), directory):
        yield us


@pytest.fixture(autouse=True)
def in_order(us: Cluster) -> Iterator[None]:
    """Each test leaves the cluster empty; nothing is allocated twice before and after."""
    yield
    cleared(us, JOBS, CLUSTERS)


def spec(workers: int, *, together: bool = False) -> JSON:
    """A head without a share, and this many workers with a card each."""
    head, made = pod("head").spec(terminationGracePeriodSeconds=0), worker("gpu")
    made = made.annotated(names.GANG_MINIMUM, str(workers)) if together else made
    return ray.cluster(template(head), template(made), workers)


def start(cluster: Cluster, workers: int, *, together: bool = False) -> None:
    document = {"apiVersion": VERSION, "kind": "RayCluster", "metadata": {"name": "train"}}
    document["spec"] = spec(workers, together=together)
    cluster.kube.create(CLUSTERS, document)


def status(cluster: Cluster) -> JSON:
    return dict(cluster.kube.get(f"{CLUSTERS}/train").get("status") or {})


def is_ready(cluster: Cluster) -> bool:
    """Whether KubeRay says that all pods that it needs are ready."""
    return status(cluster).get("state") == "ready"


def scale(cluster: Cluster, workers: int) -> None:
    operation = {"op": "replace", "path": "/spec/workerGroupSpecs/0/replicas", "value": workers}
    cluster.kube.patch_json(f"{CLUSTERS}/train", [operation])


def told(cluster: Cluster) -> list[str]:
    return events_of(cluster, f"{CLUSTERS}/train")


def said(cluster: Cluster) -> str:
    return f"{shown(cluster)}, {status(cluster)}"


def test_a_ray_cluster_says_why_its_worker_waits_and_is_ready_once_it_runs(kuberay: Cluster) -> None:
    occupy(kuberay)
    start(kuberay, 2)
    wait_for(lambda: reasons(kuberay) == ["", "", NO_ROOM] and running(kuberay) == 2, lambda: said(kuberay), 60)
    assert (len(booked(kuberay)), is_ready(kuberay)) == (1, False)
    wait_for(lambda: bool(told(kuberay)), "the RayCluster has no Event")
    assert all(each.startswith("waiting: 0 of ") and "short of memory" in each for each in told(kuberay))
    leave(kuberay)
    wait_for(lambda: is_ready(kuberay), lambda: said(kuberay), 60)
    assert (len(booked(kuberay)), status(kuberay)["availableWorkerReplicas"]) == (2, 2)


def test_workers_start_together_where_their_template_says_so(kuberay: Cluster) -> None:
    occupy(kuberay)
    start(kuberay, 2, together=True)
    gated = PodReason.GANG_DOES_NOT_FIT
    wait_for(lambda: reasons(kuberay) == ["", gated, gated] and running(kuberay) == 1, lambda: said(kuberay), 60)
    assert booked(kuberay) == []
    leave(kuberay)
    wait_for(lambda: is_ready(kuberay), lambda: said(kuberay), 60)


def test_workers_that_are_added_wait_and_leave_again(kuberay: Cluster) -> None:
    start(kuberay, 1)
    wait_for(lambda: is_ready(kuberay), lambda: said(kuberay), 60)
    scale(kuberay, 4)
    wait_for(lambda: reasons(kuberay) == ["", "", "", NO_ROOM, NO_ROOM], lambda: said(kuberay), 60)
    wait_for(lambda: bool(told(kuberay)), "the RayCluster has no Event")
    scale(kuberay, 1)
    wait_for(lambda: reasons(kuberay) == ["", ""] and running(kuberay) == 2, lambda: said(kuberay), 60)


def test_a_ray_cluster_that_is_deleted_while_a_worker_waits_leaves_nothing(kuberay: Cluster) -> None:
    occupy(kuberay)
    start(kuberay, 2)
    wait_for(lambda: reasons(kuberay) == ["", "", NO_ROOM], lambda: said(kuberay), 60)
    kuberay.kube.delete(f"{CLUSTERS}/train", {"propagationPolicy": "Background"})
    wait_for(lambda: not members(kuberay), lambda: f"{shown(kuberay)}", 60)
    occupy(kuberay, "second")


def test_a_ray_cluster_that_is_suspended_gives_its_cards_back_and_resumes(kuberay: Cluster) -> None:
    start(kuberay, 2)
    wait_for(lambda: is_ready(kuberay), lambda: said(kuberay), 60)
    kuberay.kube.patch_merge(f"{CLUSTERS}/train", {"spec": {"suspend": True}})
    wait_for(lambda: not members(kuberay), lambda: said(kuberay), 60)
    occupy(kuberay)
    kuberay.kube.patch_merge(f"{CLUSTERS}/train", {"spec": {"suspend": False}})
    wait_for(lambda: reasons(kuberay) == ["", "", NO_ROOM], lambda: said(kuberay), 60)
    leave(kuberay)
    wait_for(lambda: is_ready(kuberay), lambda: said(kuberay), 60)


def test_what_kuberay_knows_of_a_share(kuberay: Cluster) -> None:
    """
    As docs/workloads/kuberay.md warns, KubeRay does not recognise a share, because its name does not end in `gpu`.
    """
    start(kuberay, 1)
    wait_for(lambda: is_ready(kuberay), lambda: said(kuberay), 60)
    assert status(kuberay)["desiredGPU"] == "0"
    (made,) = (each for each in members(kuberay) if each["metadata"]["labels"]["ray.io/node-type"] == "worker")
    (container,) = made["spec"]["containers"]
    assert "--num-gpus=1" in " ".join(container["args"])


DEADLINES = ("activeDeadlineSeconds", "preRunningDeadlineSeconds")


@pytest.mark.parametrize("deadline", DEADLINES)
@pytest.mark.parametrize("shuts_down", [True, False], ids=["shuts down", "stays"])
def test_a_ray_job_whose_deadline_ends_while_a_worker_waits_fails(
    kuberay: Cluster, deadline: str, shuts_down: bool
) -> None:
    """As docs/workloads/kuberay.md warns, the deadline includes the wait, and a cluster that stays keeps waiting."""
    occupy(kuberay)
    occupy(kuberay, "second")
    job = {"entrypoint": "python train.py", "rayClusterSpec": spec(1), "shutdownAfterJobFinishes": shuts_down}
    document = {"metadata": {"name": "train"}, "spec": {**job, deadline: 5}}
    kuberay.kube.create(JOBS, {"apiVersion": VERSION, "kind": "RayJob", **document})
    wait_for(lambda: reasons(kuberay) == ["", NO_ROOM], lambda: f"{shown(kuberay)}", 60)
    wait_for(lambda: _deployment(kuberay) == "Failed", lambda: f"{shown(kuberay)}", 60)
    if shuts_down:
        wait_for(lambda: not members(kuberay), lambda: f"{shown(kuberay)}", 60)
    leave(kuberay)
    if shuts_down:
        occupy(kuberay, "third")
    else:
        wait_for(lambda: len(booked(kuberay)) == 1, lambda: f"{shown(kuberay)}")


def _deployment(cluster: Cluster) -> str:
    return str((cluster.kube.get(f"{JOBS}/train").get("status") or {}).get("jobDeploymentStatus", ""))
