"""JobSet's and LeaderWorkerSet's own programs: the pods that they create start together or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contract import names, pods
from contract.reasons.pods import PodReason
from playground import scenarios
from playground.cluster import Cluster
from playground.engines import manager
from playground.engines.manager import Manager
from playground.engines.sets import JOBSET, JOBSET_VERSION, JOBSETS, LEADERWORKERSET, LEADERWORKERSET_VERSION, SETS
from playground.machinery.kubelet.podrun import EXIT_CODE, RUN_SECONDS
from playground.waiting import wait_for
from runtime.kubernetes import paths
from tests.builders import PodBuilder
from tests.cluster.engines.owned import (
    BOTH_WAIT,
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


def beside(us: Cluster, program: Manager, directory: Path) -> Iterator[Cluster]:
    with manager.running(program, us, folder_of(program.assets()), directory / "run", {}):
        yield us


@pytest.fixture(scope="module")
def jobset(us: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    yield from beside(us, JOBSET, tmp_path_factory.mktemp("jobset"))


@pytest.fixture(scope="module")
def leaderworkerset(us: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    yield from beside(us, LEADERWORKERSET, tmp_path_factory.mktemp("lws"))


@pytest.fixture(autouse=True)
def in_order(us: Cluster) -> Iterator[None]:
    """Each test leaves the cluster empty; nothing is allocated twice before and after."""
    yield
    cleared(us, JOBSETS, SETS)


# -- JobSet -----------------------------------------------------------------------------------------------------------


def set_of_jobs(cluster: Cluster, *replicated: str, made: PodBuilder, **spec: Any) -> None:
    """A JobSet with one Job of one pod for each name, or of two pods if there is only one name."""
    replicas = 2 if len(replicated) == 1 else 1
    job = {"parallelism": 1, "completions": 1, "backoffLimit": 0, "template": template(made, restartPolicy="Never")}
    jobs = [{"name": name, "replicas": replicas, "template": {"spec": job}} for name in replicated]
    document = {"metadata": {"name": "train"}, "spec": {"replicatedJobs": jobs, **spec}}
    cluster.kube.create(JOBSETS, {"apiVersion": JOBSET_VERSION, "kind": "JobSet", **document})


def status(cluster: Cluster) -> JSON:
    return dict(cluster.kube.get(f"{JOBSETS}/train").get("status") or {})


def ready(cluster: Cluster) -> int:
    """How many Jobs are ready, as the JobSet itself says."""
    return sum(each.get("ready", 0) for each in status(cluster).get("replicatedJobsStatus") or ())


def test_a_jobset_starts_once_both_of_its_jobs_fit(jobset: Cluster) -> None:
    occupy(jobset)
    set_of_jobs(jobset, "workers", made=worker("w").annotated(names.GANG_MINIMUM, "2"))
    wait_for(lambda: reasons(jobset) == BOTH_WAIT, lambda: f"{shown(jobset)}")
    message = scenarios.condition(members(jobset)[0])["message"]
    assert message.startswith("waiting: gang train (JobSet): 1 of 2 members fit; the second (train-workers-")
    assert (booked(jobset), ready(jobset)) == ([], 0)
    wait_for(lambda: message in events_of(jobset, f"{JOBSETS}/train"), "the JobSet has no Event that says why")
    leave(jobset)
    wait_for(lambda: running(jobset) == 2, lambda: f"{shown(jobset)}")
    wait_for(lambda: ready(jobset) == 2, lambda: f"{status(jobset)}")


def test_a_jobset_that_is_deleted_while_it_waits_leaves_nothing(jobset: Cluster) -> None:
    occupy(jobset)
    set_of_jobs(jobset, "workers", made=worker("w").annotated(names.GANG_MINIMUM, "2"))
    wait_for(lambda: reasons(jobset) == BOTH_WAIT, lambda: f"{shown(jobset)}")
    jobset.kube.delete(f"{JOBSETS}/train", {"propagationPolicy": "Background"})
    wait_for(lambda: not members(jobset), lambda: f"{shown(jobset)}")
    leave(jobset)
    jobset.kube.create(paths.pods("default"), worker("next").manifest())
    wait_for(lambda: shown(jobset) == {"next": "Running"}, lambda: f"{shown(jobset)}")


def test_a_jobset_that_is_suspended_gives_its_shares_back_and_resumes(jobset: Cluster) -> None:
    set_of_jobs(jobset, "workers", made=worker("w").annotated(names.GANG_MINIMUM, "2"))
    wait_for(lambda: running(jobset) == 2, lambda: f"{shown(jobset)}")
    jobset.kube.patch_merge(f"{JOBSETS}/train", {"spec": {"suspend": True}})
    wait_for(lambda: not members(jobset), lambda: f"{shown(jobset)}")
    occupy(jobset)
    jobset.kube.patch_merge(f"{JOBSETS}/train", {"spec": {"suspend": False}})
    wait_for(lambda: reasons(jobset) == BOTH_WAIT, lambda: f"{shown(jobset)}")
    leave(jobset)
    wait_for(lambda: running(jobset) == 2, lambda: f"{shown(jobset)}")


def test_a_jobset_that_restarts_starts_together_again(jobset: Cluster) -> None:
    made = worker("w").annotated(names.GANG_MINIMUM, "2").annotated(RUN_SECONDS, "3").annotated(EXIT_CODE, "1")
    set_of_jobs(jobset, "workers", made=made, failurePolicy={"maxRestarts": 1})
    wait_for(lambda: running(jobset) == 2, lambda: f"{shown(jobset)}")
    wait_for(lambda: status(jobset).get("restarts") == 1 and running(jobset) == 2, lambda: f"{status(jobset)}", 60)
    failed = {"type": "Failed", "status": "True"}
    wait_for(
        lambda: any(failed.items() <= each.items() for each in status(jobset).get("conditions") or ()),
        lambda: f"{status(jobset)}",
        60,
    )


def test_a_jobset_that_starts_in_order_is_no_gang_where_it_says_so(jobset: Cluster) -> None:
    made = worker("w").annotated(names.GANG_MINIMUM, "2").annotated(names.GANG, "none")
    set_of_jobs(jobset, "leader", "workers", made=made, startupPolicy={"startupPolicyOrder": "InOrder"})
    wait_for(lambda: running(jobset) == 2, lambda: f"{shown(jobset)}, {status(jobset)}", 60)


# -- LeaderWorkerSet --------------------------------------------------------------------------------------------------


def set_of_groups(cluster: Cluster, *, replicas: int = 1, policy: str = "LeaderCreated") -> None:
    """A LeaderWorkerSet whose groups are a leader and a worker."""
    groups = {"size": 2, "workerTemplate": template(worker("w"))}
    document = {
        "metadata": {"name": "serve"},
        "spec": {"replicas": replicas, "startupPolicy": policy, "leaderWorkerTemplate": groups},
    }
    cluster.kube.create(SETS, {"apiVersion": LEADERWORKERSET_VERSION, "kind": "LeaderWorkerSet", **document})


def ready_groups(cluster: Cluster) -> int:
    """How many groups are ready, as the LeaderWorkerSet itself says."""
    return int((cluster.kube.get(f"{SETS}/serve").get("status") or {}).get("readyReplicas", 0))


def test_a_group_starts_once_leader_and_worker_fit(leaderworkerset: Cluster) -> None:
    cluster = leaderworkerset
    occupy(cluster)
    set_of_groups(cluster)
    wait_for(lambda: reasons(cluster) == BOTH_WAIT, lambda: f"{shown(cluster)}")
    assert (booked(cluster), ready_groups(cluster)) == ([], 0)
    leave(cluster)
    wait_for(lambda: running(cluster) == 2, lambda: f"{shown(cluster)}")
    wait_for(lambda: ready_groups(cluster) == 1, "the set does not say that its group is ready")


def test_a_group_that_is_added_waits_beside_the_one_that_runs(leaderworkerset: Cluster) -> None:
    cluster = leaderworkerset
    set_of_groups(cluster)
    wait_for(lambda: running(cluster) == 2, lambda: f"{shown(cluster)}")
    cluster.kube.patch_merge(f"{SETS}/serve", {"spec": {"replicas": 2}})
    wait_for(lambda: reasons(cluster) == ["", "", *BOTH_WAIT], lambda: f"{shown(cluster)}")
    cluster.kube.patch_merge(f"{SETS}/serve", {"spec": {"replicas": 1}})
    wait_for(lambda: reasons(cluster) == ["", ""] and running(cluster) == 2, lambda: f"{shown(cluster)}")


def test_a_group_that_is_recreated_starts_together_again(leaderworkerset: Cluster) -> None:
    cluster = leaderworkerset
    set_of_groups(cluster)
    wait_for(lambda: running(cluster) == 2, lambda: f"{shown(cluster)}")
    before = {pods.uid(each) for each in members(cluster)}
    cluster.kube.delete(paths.pods("default", "serve-0-1"))
    wait_for(
        lambda: running(cluster) == 2 and not before & {pods.uid(each) for each in members(cluster)},
        lambda: f"{shown(cluster)}",
        60,
    )


def test_a_leader_that_its_workers_wait_for_starts_alone_and_they_follow(leaderworkerset: Cluster) -> None:
    cluster = leaderworkerset
    set_of_groups(cluster, policy="LeaderReady")
    wait_for(lambda: reasons(cluster) == [PodReason.GANG_INCOMPLETE], lambda: f"{shown(cluster)}")
    wait_for(lambda: running(cluster) == 2, lambda: f"{shown(cluster)}", 90)
