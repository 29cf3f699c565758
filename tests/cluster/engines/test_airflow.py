"""Airflow's own programs: a task says why its pod waits and goes on with room, and what waits too long is given up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from contract import names
from playground import scenarios
from playground.cluster import Cluster
from playground.engines import airflow
from playground.engines.airflow import Airflow
from playground.machinery.kubelet.podrun import RUN_SECONDS
from playground.waiting import wait_for
from runtime.kubernetes import paths
from tests.cluster.engines.owned import cleared, explained, leave, occupy, shown, there
from tests.cluster.engines.programs import folder_of

pytestmark = [pytest.mark.engines, pytest.mark.timeout(300)]
JSON = dict[str, Any]
NO_ROOM = "Memory"
"""The reason of a pod that no card has the memory for."""
SHORT, QUEUED = 10, 20
"""Seconds of the time limits of an operator and of the executor, for which tests need not wait long."""
_HEAD = f"""
from datetime import timedelta

from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator
from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG
from kubernetes.client import models as k8s

limits = k8s.V1ResourceRequirements(limits={{"{names.GPU_MEMORY}": "10000Mi"}})
train = dict(
    namespace="default",
    image="train",
    container_resources=limits,
    node_selector={{"gpushare": "true"}},
    termination_grace_period=0,
    annotations={{"{RUN_SECONDS}": "1"}},
    get_logs=False,
)
base = k8s.V1Container(name="base", resources=limits)
spec = k8s.V1PodSpec(containers=[base], node_selector={{"gpushare": "true"}}, termination_grace_period_seconds=0)
worker = dict(executor="KubernetesExecutor", executor_config={{"pod_override": k8s.V1Pod(spec=spec)}})


def work():
    print("trained")

"""


def by_the_operator(name: str, more: str = "schedule_timeout_seconds=600") -> str:
    """A DAG whose task trains in a pod of the KubernetesPodOperator, on a card of the node t4, which has two."""
    return (
        f'{_HEAD}\nwith DAG("{name}"):\n    KubernetesPodOperator(task_id="{name}", name="{name}", **train, {more})\n'
    )


def by_the_executor(name: str) -> str:
    """A DAG whose task trains in its worker's pod."""
    return f'{_HEAD}\nwith DAG("{name}"):\n    PythonOperator(task_id="{name}", python_callable=work, **worker)\n'


def sweep(name: str, count: int) -> str:
    """A DAG that trains so many times at once."""
    each = f'KubernetesPodOperator.partial(task_id="{name}", name="{name}", **train, schedule_timeout_seconds=600)'
    return f'{_HEAD}\nwith DAG("{name}"):\n    {each}.expand(arguments=[[str(n)] for n in range({count})])\n'


DEFERRED = "schedule_timeout_seconds=600, deferrable=True"
"""A task that leaves the wait for its pod to the triggerer."""
DAGS = {
    **{each: by_the_operator(each) for each in ("waits", "ended")},
    **{f"{each}-deferred": by_the_operator(f"{each}-deferred", DEFERRED) for each in ("waits", "ended")},
    "limited": by_the_operator("limited", f"schedule_timeout_seconds={SHORT}"),
    "limited-deferred": by_the_operator("limited-deferred", f"schedule_timeout_seconds={SHORT}, deferrable=True"),
    "retried": by_the_operator(
        "retried", f"schedule_timeout_seconds={SHORT}, retries=9, retry_delay=timedelta(seconds=1)"
    ),
    "sweep": sweep("sweep", 4),
    **{each: by_the_executor(each) for each in ("worker", "stuck", "lost", "marked")},
}


@pytest.fixture(scope="module")
def flow(us: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airflow]:
    settings = {
        "SCHEDULER__TASK_QUEUED_TIMEOUT": str(QUEUED),
        "SCHEDULER__TASK_QUEUED_TIMEOUT_CHECK_INTERVAL": "1",
    }
    folder = folder_of(airflow.assets())
    with airflow.running(us, folder, tmp_path_factory.mktemp("airflow") / "run", DAGS, settings) as found:
        yield found


@pytest.fixture
def full(us: Cluster) -> Iterator[Cluster]:
    """Two pods have both cards; afterwards the cluster is empty, and nothing was booked twice."""
    occupy(us)
    occupy(us, "second")
    yield us
    cleared(us)


def pods_of(cluster: Cluster, dag: str) -> list[JSON]:
    """The pods that Airflow has created for the DAG."""
    return [each for each in there(cluster) if (each["metadata"].get("labels") or {}).get("dag_id") == dag]


def states(cluster: Cluster, dag: str) -> list[str]:
    """What each pod of the DAG waits for, or its phase."""
    return sorted(scenarios.waits(each) or each["status"]["phase"] for each in pods_of(cluster, dag))


def said(flow: Airflow, cluster: Cluster, dag: str) -> str:
    return f"{shown(cluster)}, {flow.state(dag)}, {flow.tail()}"


def start(flow: Airflow, cluster: Cluster, dag: str) -> None:
    """Its task's pod waits then."""
    flow.start(dag)
    wait_for(lambda: states(cluster, dag) == [NO_ROOM], lambda: said(flow, cluster, dag), 60)


def reaches(flow: Airflow, cluster: Cluster, dag: str, state: str) -> None:
    wait_for(lambda: flow.state(dag) == state, lambda: said(flow, cluster, dag), 60)


@pytest.mark.parametrize("dag", ["waits", "waits-deferred"])
def test_a_tasks_log_says_why_its_pod_waits_and_it_goes_on_with_room(flow: Airflow, full: Cluster, dag: str) -> None:
    start(flow, full, dag)
    message = scenarios.condition(pods_of(full, dag)[0])["message"]
    wait_for(lambda: f"The Pod has an Event: {message}" in flow.log(dag), lambda: flow.log(dag), 30)
    leave(full)
    reaches(flow, full, dag, "success")
    wait_for(lambda: not pods_of(full, dag), lambda: f"{shown(full)}", 30)


@pytest.mark.parametrize("dag", ["limited", "limited-deferred"])
def test_a_task_that_waits_beyond_the_operators_limit_fails_and_leaves_nothing(
    flow: Airflow, full: Cluster, dag: str
) -> None:
    """As `explain` warns before."""
    start(flow, full, dag)
    told = explained(full)
    assert "KubernetesPodOperator" in told
    assert "schedule_timeout_seconds of the operator" in told
    reaches(flow, full, dag, "failed")
    assert f"too long to be scheduled on the cluster, giving up. More than {SHORT}s" in flow.log(dag)
    wait_for(lambda: not pods_of(full, dag), lambda: f"{shown(full)}", 30)
    leave(full)
    occupy(full, "third")


def test_a_task_with_retries_waits_again_with_another_pod(flow: Airflow, full: Cluster) -> None:
    start(flow, full, "retried")
    (first,) = pods_of(full, "retried")
    wait_for(
        lambda: states(full, "retried") == [NO_ROOM] and pods_of(full, "retried") != [first],
        lambda: said(flow, full, "retried"),
        60,
    )
    leave(full)
    reaches(flow, full, "retried", "success")


@pytest.mark.parametrize("dag", ["ended", "ended-deferred"])
def test_a_task_that_is_marked_as_failed_while_it_waits_deletes_its_pod(flow: Airflow, full: Cluster, dag: str) -> None:
    start(flow, full, dag)
    wait_for(lambda: "The Pod has an Event" in flow.log(dag), lambda: flow.log(dag), 30)
    flow.fail(dag)
    wait_for(lambda: not pods_of(full, dag), lambda: said(flow, full, dag), 60)
    leave(full)
    occupy(full, "third")


def test_more_trainings_than_cards_go_through_them(flow: Airflow, full: Cluster) -> None:
    flow.start("sweep")
    wait_for(lambda: states(full, "sweep") == [NO_ROOM] * 4, lambda: said(flow, full, "sweep"), 90)
    leave(full)
    leave(full, "second")
    wait_for(lambda: flow.run("sweep") == "success", lambda: said(flow, full, "sweep"), 90)


def test_a_worker_that_waits_works_once_it_has_its_share(flow: Airflow, full: Cluster) -> None:
    start(flow, full, "worker")
    assert flow.state("worker") == "queued"
    leave(full)
    wait_for(lambda: states(full, "worker") == ["Running"], lambda: said(flow, full, "worker"), 30)
    assert flow.work(pods_of(full, "worker")[0]) == 0
    reaches(flow, full, "worker", "success")
    assert "trained" in flow.log("worker")


def test_a_worker_beyond_the_executors_limit_is_replaced_twice_and_fails(flow: Airflow, full: Cluster) -> None:
    """As `explain` warns before."""
    start(flow, full, "stuck")
    told = explained(full)
    assert "KubernetesExecutor" in told
    assert "task_queued_timeout in [scheduler]" in told
    seen = set[str]()

    def failed() -> bool:
        seen.update(each["metadata"]["uid"] for each in pods_of(full, "stuck"))
        return flow.state("stuck") == "failed"

    wait_for(failed, lambda: said(flow, full, "stuck"), 5 * QUEUED)
    assert len(seen) == 3
    wait_for(lambda: not pods_of(full, "stuck"), lambda: f"{shown(full)}", 30)
    audit = "\n".join(flow.audit("stuck"))
    assert f"Task was in queued state for longer than {QUEUED}.0 seconds" in audit
    leave(full)
    occupy(full, "third")


def test_a_worker_whose_waiting_pod_is_deleted_gets_another_after_the_limit(flow: Airflow, full: Cluster) -> None:
    """The executor only logs that the pod is gone; the task stays queued."""
    start(flow, full, "lost")
    (first,) = pods_of(full, "lost")
    full.kube.delete(paths.pods("default", first["metadata"]["name"]))
    wait_for(lambda: not pods_of(full, "lost"), lambda: said(flow, full, "lost"), 30)
    leave(full)
    assert flow.state("lost") == "queued"
    wait_for(lambda: states(full, "lost") == ["Running"], lambda: said(flow, full, "lost"), 3 * QUEUED)
    assert flow.work(pods_of(full, "lost")[0]) == 0
    reaches(flow, full, "lost", "success")


def test_a_worker_whose_task_is_marked_as_failed_keeps_its_place_and_ends(flow: Airflow, full: Cluster) -> None:
    """As docs/workloads/airflow.md warns: it gets its share, and its program finds that the task has failed."""
    start(flow, full, "marked")
    flow.fail("marked")
    reaches(flow, full, "marked", "failed")
    assert states(full, "marked") == [NO_ROOM]
    leave(full)
    wait_for(lambda: states(full, "marked") == ["Running"], lambda: said(flow, full, "marked"), 30)
    assert flow.work(pods_of(full, "marked")[0]) != 0
    assert flow.state("marked") == "failed"
