"""Why a pod waits is written where the program that created it looks, for exactly the programs of the table."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from allocator.queue.records import StatusUpdate
from allocator.workers.binder import EventRecorder
from allocator.workers.owners import owner_of
from contract.reasons.nodes import Code
from contract.reasons.pods import PodEventReason, PodReason
from runtime.kubernetes.client import Kube
from tests.wires import Answer, Script

JSON = dict[str, Any]
NEWS = StatusUpdate("team/p", "uid-1", False, Code.MEMORY.word, "waiting: 0 of 1 GPU nodes fit")
PLACED = StatusUpdate("team/p", "uid-1", True, PodReason.ALLOCATED, "1 GPU share")
WORKFLOW = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "name": "sweep", "uid": "uid-w"}
CLUSTER = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": "train", "uid": "uid-c"}
JOB = {"apiVersion": "batch/v1", "kind": "Job", "name": "train-workers-0", "uid": "uid-j"}
JOBSET = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": "train", "uid": "uid-s"}
NAME, UID = "jobset.sigs.k8s.io/jobset-name", "jobset.sigs.k8s.io/jobset-uid"
SERVICE = {"apiVersion": "serving.kserve.io/v1beta1", "kind": "InferenceService", "name": "serve", "uid": "uid-i"}
REPLICAS = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "serve-predictor-1", "uid": "uid-r"}
SCHEDULABLE = "gpufraction.io/Schedulable"


def owned(owner: JSON, **more: Any) -> JSON:
    return {"metadata": {"ownerReferences": [{**owner, "controller": True, **more}]}}


def of_jobset(**labels: str) -> JSON:
    """A pod of a Job of the JobSet. `labels`: others instead of those that JobSet writes."""
    made = owned(JOB)
    made["metadata"]["labels"] = {NAME: JOBSET["name"], UID: JOBSET["uid"], **labels}
    return made


def of_service(name: str = "serve", **more: Any) -> JSON:
    """A pod of a Deployment of KServe."""
    made = owned(REPLICAS, **more)
    made["metadata"]["labels"] = {"serving.kserve.io/inferenceservice": name}
    return made


def told(news: StatusUpdate, pod: JSON, service: Answer) -> list[tuple[str, JSON]]:
    """Path and body of what is asked and sent after the pod's condition. `service`: the answer about its service."""
    transport = Script(Answer(200, pod), service, Answer(201, {}), Answer(201, {}))
    recorder = EventRecorder(Kube(transport), clock=lambda: datetime(2030, 1, 1, tzinfo=UTC))
    assert recorder.tell(news, lambda seconds: False)
    return [(call.path, call.body) for call in transport.sent[1:]]


def written(news: StatusUpdate, *pods: JSON) -> list[JSON]:
    """What is sent in addition to the condition of each of these pods and its Event."""
    found = []
    for each in pods:
        transport = Script(Answer(200, each), holds=True)
        recorder = EventRecorder(Kube(transport), clock=lambda: datetime(2030, 1, 1, tzinfo=UTC))
        assert recorder.tell(news, lambda seconds: False)
        bodies = [call.body for call in transport.sent][1:]
        found += [body for body in bodies if body.get("involvedObject", {}).get("kind") != "Pod"]
    return found


WAITS = {"type": SCHEDULABLE, "status": "False", "reason": "Unschedulable", "message": NEWS.reason}
RUNS = {"type": SCHEDULABLE, "status": "True", "reason": "Allocated", "message": PLACED.reason}
TIME = {"lastTransitionTime": "2030-01-01T00:00:00Z"}


@pytest.mark.parametrize(
    ("news", "want"),
    [
        (NEWS, {**WAITS, **TIME}),
        (replace(NEWS, turned=False, event=False), WAITS),
        (PLACED, {**RUNS, **TIME}),
    ],
    ids=["it waits", "other figures", "it is placed"],
)
def test_a_pod_of_a_workflow_gets_a_condition_that_argo_shows(news: StatusUpdate, want: JSON) -> None:
    assert written(news, owned(WORKFLOW)) == [{"metadata": {"uid": "uid-1"}, "status": {"conditions": [want]}}]


def test_a_ray_cluster_gets_an_event_why_its_pod_waits() -> None:
    (event,) = written(NEWS, owned(CLUSTER))
    assert event["involvedObject"] == {**CLUSTER, "namespace": "team"}
    said = (event["reason"], event["message"], event["type"], event["metadata"]["namespace"])
    assert said == (PodEventReason.WAITING, NEWS.reason, "Normal", "team")


def test_a_jobset_gets_the_event_of_a_pod_that_its_job_controls() -> None:
    (event,) = written(NEWS, of_jobset())
    assert event["involvedObject"] == {**JOBSET, "namespace": "team"}


@pytest.mark.parametrize("labels", [{NAME: ""}, {UID: ""}, {NAME: "a/b"}, {UID: "\n"}, {NAME: "x" * 300}])
def test_labels_that_name_no_jobset_get_no_event(labels: dict[str, str]) -> None:
    assert written(NEWS, of_jobset(**labels)) == []


THERE = Answer(200, {"metadata": {"uid": SERVICE["uid"]}})
READ = "/apis/serving.kserve.io/v1beta1/namespaces/team/inferenceservices/serve"


def test_an_inference_service_gets_the_event_of_a_pod_of_its_deployment() -> None:
    (read, _), (_, event), (_, last) = told(NEWS, of_service(), THERE)
    assert (read, event["involvedObject"]) == (READ, {**SERVICE, "namespace": "team"})
    assert (event["reason"], event["message"]) == (PodEventReason.WAITING, NEWS.reason)
    assert last["involvedObject"]["kind"] == "Pod"


@pytest.mark.parametrize("status", [403, 404])
def test_an_inference_service_that_cannot_be_read_costs_the_pod_no_event(status: int) -> None:
    (read, _), (_, event) = told(NEWS, of_service(), Answer(status, {}))
    assert (read, event["involvedObject"]["kind"]) == (READ, "Pod")


@pytest.mark.parametrize(
    "news", [PLACED, replace(NEWS, turned=False, event=False)], ids=["it is placed", "other figures"]
)
def test_an_inference_service_is_not_read_without_a_new_reason(news: StatusUpdate) -> None:
    assert READ not in [path for path, _ in told(news, of_service(), THERE)]


def test_workers_that_wait_for_the_same_have_one_event_of_their_cluster() -> None:
    events = written(NEWS, owned(CLUSTER), owned(CLUSTER))
    others = written(replace(NEWS, reason="waiting: 0 of 2 GPU nodes fit"), owned(CLUSTER))
    first, second, third = (each["metadata"]["name"] for each in (*events, *others))
    assert first == second != third


@pytest.mark.parametrize(
    "news", [PLACED, replace(NEWS, turned=False, event=False)], ids=["it is placed", "other figures"]
)
def test_a_ray_cluster_gets_no_event_without_a_new_reason(news: StatusUpdate) -> None:
    assert written(news, owned(CLUSTER)) == []


STRANGERS: dict[str, JSON] = {
    "no owner": {"metadata": {}},
    "an owner that does not control it": owned(WORKFLOW, controller=False),
    "another program": owned({**WORKFLOW, "apiVersion": "batch/v1", "kind": "Job"}),
    "the kind in another group": owned(WORKFLOW, apiVersion="example.com/v1"),
    "a name that is none": owned(CLUSTER, name="Train\n"),
    "a uid that is none": owned(CLUSTER, uid="u" * 1_000),
    "no uid": owned(CLUSTER, uid=""),
    "a ReplicaSet of nobody": of_service(""),
    "a service whose name is none": of_service("serve/../x"),
    "the label of a service on a pod of another program": of_service(kind="Job", apiVersion="batch/v1"),
}


@pytest.mark.parametrize("stranger", STRANGERS.values(), ids=STRANGERS.keys())
def test_for_other_owners_nothing_more_is_written(stranger: JSON) -> None:
    assert written(NEWS, stranger) == []


@pytest.mark.parametrize("odd", [{}, {"metadata": None}, {"metadata": {"ownerReferences": None}}])
def test_a_pod_without_owners_has_none(odd: JSON) -> None:
    assert owner_of(odd) is None
