"""How long programs let a pod wait, for each kind of owner, and what the commands say about it."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubectl_gpufraction.cluster import timelimits
from kubectl_gpufraction.cluster.timelimits import Owner, creator_of, next_owner, of_owners, of_program, owner_of
from tests.odd import VALUES, places, put
from tests.unit.kubectl_gpufraction.test_manners import ALSO, DEFAULT, NEW, RUNS, WAITS, called
from tests.unit.kubectl_gpufraction.test_tenants import NO, collection

JSON = dict[str, Any]
BEGAN, NOW = "2026-01-05T08:00:00Z", 1_767_600_060.0
START = NOW - 60


def document(name: str, spec: JSON, *, owner: tuple[str, str, str] | None = None, **status: Any) -> JSON:
    references = [dict(zip(("apiVersion", "kind", "name"), owner, strict=True)) | {"controller": True}] if owner else []
    return {"metadata": {"name": name, "ownerReferences": references}, "spec": spec, "status": status}


def progressing(updated: str = BEGAN, **fields: Any) -> JSON:
    return {"conditions": [{"type": "Progressing", "status": "True", "lastUpdateTime": updated, **fields}]}


def deployment(seconds: int | None = None, owner: tuple[str, str, str] | None = None, **fields: Any) -> JSON:
    spec = {} if seconds is None else {"progressDeadlineSeconds": seconds}
    return document("web", spec, owner=owner, **progressing(**fields))


def job(seconds: int | None, owner: tuple[str, str, str] | None = None) -> JSON:
    return document("train", {"activeDeadlineSeconds": seconds}, owner=owner, startTime=BEGAN)


def train_job(**suspended: str) -> JSON:
    """A TrainJob with a limit of 900 s, created at the beginning. `suspended`: its condition `Suspended`."""
    conditions = [{"type": "Suspended", **suspended}] if suspended else []
    made = document("tune", {"activeDeadlineSeconds": 900}, conditions=conditions)
    return {**made, "metadata": {**made["metadata"], "creationTimestamp": BEGAN}}


DEPLOYMENT, JOB = Owner("apps/v1", "Deployment", "web"), Owner("batch/v1", "Job", "train")
RAY_JOB, WORKFLOW = Owner("ray.io/v1", "RayJob", "tune"), Owner("argoproj.io/v1alpha1", "Workflow", "sweep")
TRAIN_JOB = Owner("trainer.kubeflow.org/v1alpha1", "TrainJob", "tune")
TASK_RUN = Owner("tekton.dev/v1", "TaskRun", "test")
DELETED = "it fails, and its pods are deleted"
KEPT = "it is marked as failed, and its pods keep their places in the queue"
TO_ZERO = (
    "it is marked as failed, and scaled to zero 30 s later, unless autoscaling.knative.dev/min-scale keeps its pods"
)
REVISION = ("serving.knative.dev/v1", "Revision", "embed-00001")
CASES: dict[str, tuple[Owner, JSON, list[tuple[str, str, float]]]] = {
    "a Deployment with Kubernetes' default": (
        DEPLOYMENT,
        deployment(),
        [("spec.progressDeadlineSeconds", KEPT, START + 600)],
    ),
    "a Deployment of its own time": (DEPLOYMENT, deployment(90), [("spec.progressDeadlineSeconds", KEPT, START + 90)]),
    "a Deployment that was marked already": (
        DEPLOYMENT,
        deployment(30, status="False", reason="ProgressDeadlineExceeded"),
        [("spec.progressDeadlineSeconds", KEPT, START)],
    ),
    "a Deployment that has finished": (DEPLOYMENT, deployment(reason="NewReplicaSetAvailable"), []),
    "a Deployment without a deadline": (DEPLOYMENT, deployment(2**31 - 1), []),
    "a Deployment that nobody has looked at yet": (DEPLOYMENT, document("web", {}), []),
    "a Deployment of Knative": (
        DEPLOYMENT,
        deployment(600, REVISION),
        [("the annotation serving.knative.dev/progress-deadline in the Service's template", TO_ZERO, START + 600)],
    ),
    "a Job": (JOB, job(600), [("spec.activeDeadlineSeconds", DELETED, START + 600)]),
    "a Job of a JobSet": (
        JOB,
        job(600, ("jobset.x-k8s.io/v1alpha2", "JobSet", "all")),
        [
            (
                "spec.replicatedJobs[].template.spec.activeDeadlineSeconds",
                DELETED,
                START + 600,
            )
        ],
    ),
    "a Job without a limit": (JOB, job(None), []),
    "a RayJob": (
        RAY_JOB,
        document("tune", {"activeDeadlineSeconds": 900, "preRunningDeadlineSeconds": 300}, startTime=BEGAN),
        [
            ("spec.preRunningDeadlineSeconds", "it fails", START + 300),
            ("spec.activeDeadlineSeconds", "it fails", START + 900),
        ],
    ),
    "a TrainJob": (TRAIN_JOB, train_job(), [("spec.activeDeadlineSeconds", DELETED, START + 900)]),
    "a TrainJob that was resumed": (
        TRAIN_JOB,
        train_job(status="False", lastTransitionTime="2026-01-05T08:00:30Z"),
        [("spec.activeDeadlineSeconds", DELETED, START + 930)],
    ),
    "a Workflow": (
        WORKFLOW,
        document("sweep", {"activeDeadlineSeconds": 900}, startedAt=BEGAN),
        [("spec.activeDeadlineSeconds", "it fails, and its pods are stopped", START + 900)],
    ),
    "a Workflow of a template": (
        WORKFLOW,
        document("sweep", {}, startedAt=BEGAN, storedWorkflowTemplateSpec={"activeDeadlineSeconds": 60}),
        [("spec.activeDeadlineSeconds", "it fails, and its pods are stopped", START + 60)],
    ),
    "a TaskRun": (
        TASK_RUN,
        document("test", {"timeout": "1h0m30s"}, startTime=BEGAN),
        [("timeout", "it fails, and its pod is deleted", START + 3630)],
    ),
    "a TaskRun without a limit": (TASK_RUN, document("test", {"timeout": "0s"}, startTime=BEGAN), []),
}


@pytest.mark.parametrize("name", CASES)
def test_the_limit_that_an_owner_gives_its_pods(name: str) -> None:
    owner, read, wanted = CASES[name]
    assert [(each.setting, each.what, each.ends) for each in of_owners([(owner, read)])] == wanted


def test_owners_are_followed_to_those_that_may_have_a_limit() -> None:
    replicaset = Owner("apps/v1", "ReplicaSet", "web-1")
    assert next_owner(replicaset, document("web-1", {}, owner=("apps/v1", "Deployment", "web"))) == DEPLOYMENT
    assert next_owner(replicaset, document("web-1", {}, owner=("example.org/v1", "Other", "x"))) is None
    assert next_owner(JOB, job(1, ("ray.io/v1", "RayJob", "tune"))) == RAY_JOB
    jobset = Owner("jobset.x-k8s.io/v1alpha2", "JobSet", "tune")
    assert next_owner(JOB, job(1, ("jobset.x-k8s.io/v1alpha2", "JobSet", "tune"))) == jobset
    assert next_owner(jobset, document("tune", {}, owner=(TRAIN_JOB.version, TRAIN_JOB.kind, "tune"))) == TRAIN_JOB
    assert next_owner(DEPLOYMENT, deployment(1, REVISION)) is None


def test_programs_without_an_owner_have_their_default_until_it_is_over() -> None:
    pod = {"metadata": {"labels": {"component": "singleuser-server", "hub.jupyter.org/username": "a"}}}
    (limit,) = of_program(creator_of(pod), START, NOW)
    assert limit.sentence(NOW) == (
        "The time of KubeSpawner ends at 2026-01-05T08:05:00Z: then it deletes this pod. c.KubeSpawner.start_timeout "
        "(300 s unless it was set) sets that time."
    )
    assert of_program(creator_of(pod), START, START + 300) == []
    assert of_program(creator_of({"metadata": {}}), START, NOW) == []


@pytest.mark.parametrize(("label", "seconds"), [("kubernetes_pod_operator", 120), ("kubernetes_executor", 600)])
def test_pods_of_airflow_have_the_default_of_what_created_them(label: str, seconds: int) -> None:
    (limit,) = of_program(creator_of({"metadata": {"labels": {label: "True"}}}), START, NOW)
    assert limit.ends == START + seconds


@given(data=st.data())
def test_an_owner_of_any_shape_has_its_limits_or_none(data: st.DataObject) -> None:
    owner, read, _ = data.draw(st.sampled_from(list(CASES.values())))
    odd = put(read, data.draw(st.sampled_from(places(read))), data.draw(VALUES))
    for limit in of_owners([(owner, odd)]):
        assert len(limit.sentence(NOW)) < 1500
        assert limit.sentence(NOW).isprintable()


# -- the commands -------------------------------------------------------------------------------------------------

APPS = "/apis/apps/v1/namespaces/default"
OWNED = copy.deepcopy(WAITS)
OWNED["metadata"]["ownerReferences"] = [
    {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-1", "uid": "set", "controller": True}
]
CHAIN: dict[str, tuple[int, Any]] = {
    "/api/v1/pods": collection(RUNS, OWNED, ALSO, NEW),
    DEFAULT: collection(RUNS, OWNED, ALSO, NEW),
    f"{APPS}/replicasets/web-1": (200, document("web-1", {}, owner=("apps/v1", "Deployment", "web"))),
    f"{APPS}/deployments/web": (200, deployment(600)),
}


def test_explain_and_waiting_name_what_ends_and_what_lengthens_it(tmp_path: Path) -> None:
    """The commands use this machine's clock, so the time has ended long ago."""
    ended = "The time of Deployment web ended "
    rest = f"ago: {KEPT}. spec.progressDeadlineSeconds (600 s) sets that time."
    lines = called(tmp_path, "explain", "waits", given=CHAIN)[1].splitlines()
    assert [line for line in lines if line.startswith(ended) and line.endswith(rest)] == [lines[2]]
    notes = called(tmp_path, "waiting", given=CHAIN)[1].splitlines()
    assert [line.startswith(f"default/waits: {ended}") for line in notes if ended in line] == [True]
    (row,) = json.loads(called(tmp_path, "explain", "waits", "-o", "json", given=CHAIN)[1])["items"]
    assert row["timeLimits"] == [
        {
            "who": "Deployment web",
            "setting": "spec.progressDeadlineSeconds",
            "ends": "2026-01-05T08:10:00Z",
            "length": "600 s",
        }
    ]


def test_who_may_not_read_the_owner_is_told_that_the_limit_is_unknown(tmp_path: Path) -> None:
    hidden = CHAIN | {f"{APPS}/deployments/web": NO}
    lines = called(tmp_path, "explain", "waits", given=hidden)[1].splitlines()
    assert "Whether Deployment web sets a time limit for its pods is unknown: you may not get deployments." in lines
    gone = {key: value for key, value in CHAIN.items() if "deployments/web" not in key}
    absent = gone | {f"{APPS}/deployments/web": (404, {"kind": "Status", "message": "not there"})}
    assert not [line for line in called(tmp_path, "explain", "waits", given=absent)[1].splitlines() if "time" in line]


def test_so_many_owners_are_read_and_the_others_counted(tmp_path: Path) -> None:
    pods, owners = [], dict[str, tuple[int, Any]]()
    for number in range(25):
        each = copy.deepcopy(OWNED)
        each["metadata"].update(name=f"waits-{number}", uid=f"u{number}")
        each["metadata"]["ownerReferences"][0].update(kind="Job", apiVersion="batch/v1", name=f"job-{number}")
        owners[f"/apis/batch/v1/namespaces/default/jobs/job-{number}"] = (200, job(600 + number))
        pods.append(each)
    given_ = {"/api/v1/pods": collection(*pods), DEFAULT: collection(*pods), **owners}
    notes = called(tmp_path, "waiting", given=given_)[1].splitlines()
    assert len([line for line in notes if "The time of Job train ended" in line]) == 5
    assert "15 more time limits: kubectl gpufraction explain POD names a pod's own" in notes
    assert "Time limits of 5 more pods were not checked" in notes


def test_the_owner_of_a_pod_is_its_controller() -> None:
    other = {"apiVersion": "v1", "kind": "Node", "name": "n"}
    assert owner_of({"metadata": {"ownerReferences": [other]}}) is None
    assert timelimits.owner_of({}) is None
