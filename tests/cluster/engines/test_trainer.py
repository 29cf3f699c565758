"""Kubeflow Trainer's own program with JobSet's: the nodes of a TrainJob start together, and nothing is left over."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from contract import names
from playground import scenarios
from playground.cluster import Cluster
from playground.engines import manager, trainer
from playground.engines.sets import JOBSET, JOBSETS
from playground.engines.trainer import JOBS, RUNTIMES, TRAINER, VERSION
from playground.waiting import wait_for
from tests.builders import pod
from tests.cluster.engines.owned import (
    BOTH_WAIT,
    booked,
    cleared,
    events_of,
    explained,
    leave,
    members,
    occupy,
    reasons,
    running,
    shown,
    template,
)
from tests.cluster.engines.programs import folder_of

pytestmark = [pytest.mark.engines, pytest.mark.timeout(900)]
JSON = dict[str, Any]


@pytest.fixture(scope="module")
def kubeflow(us: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = folder_of(TRAINER.assets())
    directory = tmp_path_factory.mktemp("kubeflow")
    with (
        manager.running(JOBSET, us, folder_of(JOBSET.assets()), directory / "jobset", {}),
        manager.running(TRAINER, us, folder, directory / "trainer", {}),
    ):
        made = pod("node").annotated(names.GANG_MINIMUM, "2").container("node")
        made = made.spec(nodeSelector={"gpushare": "true"}, terminationGracePeriodSeconds=0)
        us.kube.create(RUNTIMES, trainer.runtime("two", 2, template(made, restartPolicy="Never")))
        yield us
        us.kube.delete(f"{RUNTIMES}/two")


@pytest.fixture(autouse=True)
def in_order(us: Cluster) -> Iterator[None]:
    """Each test leaves the cluster empty; nothing is allocated twice before and after."""
    yield
    cleared(us, JOBS)


def train(cluster: Cluster, **spec: Any) -> None:
    """A TrainJob on two nodes, with a card each."""
    runtime = {"apiGroup": VERSION.partition("/")[0], "kind": "TrainingRuntime", "name": "two"}
    limits = {"limits": {str(names.GPU_MEMORY): "10000Mi"}}
    document = {"apiVersion": VERSION, "kind": "TrainJob", "metadata": {"name": "train"}}
    document["spec"] = {"runtimeRef": runtime, "trainer": {"resourcesPerNode": limits}, **spec}
    cluster.kube.create(JOBS, document)


def status(cluster: Cluster) -> JSON:
    return dict(cluster.kube.get(f"{JOBS}/train").get("status") or {})


def ready(cluster: Cluster) -> int:
    """How many Jobs are ready, as the TrainJob itself says."""
    return sum(each.get("ready", 0) for each in status(cluster).get("jobsStatus") or ())


def said(cluster: Cluster) -> str:
    return f"{shown(cluster)}, {status(cluster)}"


def test_the_nodes_of_a_trainjob_start_once_both_fit(kubeflow: Cluster) -> None:
    occupy(kubeflow)
    train(kubeflow)
    wait_for(lambda: reasons(kubeflow) == BOTH_WAIT, lambda: said(kubeflow), 60)
    assert (booked(kubeflow), ready(kubeflow)) == ([], 0)
    message = scenarios.condition(members(kubeflow)[0])["message"]
    wait_for(lambda: message in events_of(kubeflow, f"{JOBSETS}/train"), "its JobSet has no Event that says why")
    leave(kubeflow)
    wait_for(lambda: running(kubeflow) == 2 and ready(kubeflow) == 1, lambda: said(kubeflow), 60)


def test_a_trainjob_that_is_deleted_while_it_waits_leaves_nothing(kubeflow: Cluster) -> None:
    occupy(kubeflow)
    train(kubeflow)
    wait_for(lambda: reasons(kubeflow) == BOTH_WAIT, lambda: said(kubeflow), 60)
    kubeflow.kube.delete(f"{JOBS}/train", {"propagationPolicy": "Background"})
    wait_for(lambda: not members(kubeflow), lambda: f"{shown(kubeflow)}", 60)
    occupy(kubeflow, "second")


def test_a_trainjob_that_is_suspended_gives_its_cards_back_and_resumes(kubeflow: Cluster) -> None:
    train(kubeflow)
    wait_for(lambda: running(kubeflow) == 2, lambda: said(kubeflow), 60)
    kubeflow.kube.patch_merge(f"{JOBS}/train", {"spec": {"suspend": True}})
    wait_for(lambda: not members(kubeflow), lambda: said(kubeflow), 60)
    occupy(kubeflow)
    kubeflow.kube.patch_merge(f"{JOBS}/train", {"spec": {"suspend": False}})
    wait_for(lambda: reasons(kubeflow) == BOTH_WAIT, lambda: said(kubeflow), 60)
    leave(kubeflow)
    wait_for(lambda: running(kubeflow) == 2, lambda: said(kubeflow), 60)


def test_a_trainjob_whose_deadline_ends_while_it_waits_fails_and_leaves_nothing(kubeflow: Cluster) -> None:
    """As docs/workloads/kubeflow-trainer.md warns, the deadline includes the wait; `explain` says when it ends."""
    occupy(kubeflow)
    train(kubeflow, activeDeadlineSeconds=30)
    wait_for(lambda: reasons(kubeflow) == BOTH_WAIT, lambda: said(kubeflow), 60)
    told = explained(kubeflow, members(kubeflow)[0]["metadata"]["name"])
    assert "The time of TrainJob train ends in" in told
    assert "then it fails, and its pods are deleted. spec.activeDeadlineSeconds (30 s) sets that time." in told
    wait_for(lambda: _failed(kubeflow) == "DeadlineExceeded", lambda: said(kubeflow), 90)
    wait_for(lambda: not members(kubeflow), lambda: said(kubeflow), 60)
    occupy(kubeflow, "second")


def _failed(cluster: Cluster) -> str:
    """The reason for which the TrainJob says that it failed."""
    found = [each["reason"] for each in status(cluster).get("conditions") or () if each["type"] == "Failed"]
    return found[0] if found else ""
