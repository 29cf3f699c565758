"""KServe's own program in its mode Standard: an InferenceService's Events say why its pods wait, and it goes on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from contract import names
from playground import scenarios
from playground.cluster import Cluster
from playground.engines import kserve
from playground.engines.kserve import CONTAINER, KSERVE, RUNTIMES, SERVICES
from playground.waiting import wait_for
from runtime.kubernetes import paths
from tests.cluster.engines.owned import (
    booked,
    cleared,
    events_of,
    explained,
    leave,
    members,
    occupy,
    owned,
    reasons,
    running,
    shown,
    there,
)
from tests.cluster.engines.programs import folder_of

pytestmark = [pytest.mark.engines, pytest.mark.timeout(300)]
JSON = dict[str, Any]
NO_ROOM = "Memory"
"""The reason of a pod that no card has the memory for."""
DEPLOYMENTS = paths.path("apps/v1", "deployments", "default")
POLICIES = paths.path("admissionregistration.k8s.io/v1", "mutatingadmissionpolicies")
BINDINGS = paths.path("admissionregistration.k8s.io/v1", "mutatingadmissionpolicybindings")
SAMPLE = Path(__file__).resolve().parents[3] / "samples" / "workloads" / "kserve.yaml"
SHORT = 8
"""Seconds of a progress deadline that tests need not wait long for."""
A_CARD = {"limits": {str(names.GPU_MEMORY): "10000Mi"}}
"""Of the node t4, which has two."""
THERE = {"nodeSelector": {"gpushare": "true"}, "terminationGracePeriodSeconds": 0}
MODEL = {"name": CONTAINER, "image": "serve", "resources": A_CARD}
OWN = {**THERE, "containers": [MODEL]}
"""A predictor with a container of its own."""
FORMATS = ("toy", "huggingface")
"""Formats of models for which there is a runtime."""
OF_A_RUNTIME = {**THERE, "model": {"modelFormat": {"name": "toy"}, "resources": A_CARD}}
"""A predictor with a model for which there is a runtime."""


@pytest.fixture(scope="module")
def serving(us: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with kserve.running(us, folder_of(KSERVE.assets()), tmp_path_factory.mktemp("kserve") / "run"):
        for name in FORMATS:
            us.kube.create(RUNTIMES, kserve.runtime(name, {"containers": [{"name": CONTAINER, "image": "serve:v0"}]}))
        yield us
        for name in FORMATS:
            us.kube.delete(f"{RUNTIMES}/{name}")


@pytest.fixture(autouse=True)
def in_order(us: Cluster) -> Iterator[None]:
    """Each test leaves the cluster empty; nothing is booked twice before and after."""
    yield
    cleared(us, SERVICES)


@pytest.fixture
def short(serving: Cluster) -> Iterator[None]:
    """
    A policy gives KServe's Deployments a short progress deadline.

    KServe reverts what anybody writes there, and compares with what the API server's admission makes of its own.
    """
    rule = {
        "apiGroups": ["apps"],
        "apiVersions": ["v1"],
        "operations": ["CREATE", "UPDATE"],
        "resources": ["deployments"],
    }
    expression = f"Object{{spec: Object.spec{{progressDeadlineSeconds: {SHORT}}}}}"
    spec = {
        "matchConstraints": {"resourceRules": [rule]},
        "matchConditions": [
            {
                "name": "kserve",
                "expression": "'serving.kserve.io/inferenceservice' in object.spec.template.metadata.labels",
            }
        ],
        "failurePolicy": "Fail",
        "reinvocationPolicy": "Never",
        "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}}],
    }
    head = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": "short"}}
    serving.kube.create(POLICIES, {**head, "kind": "MutatingAdmissionPolicy", "spec": spec})
    serving.kube.create(BINDINGS, {**head, "kind": "MutatingAdmissionPolicyBinding", "spec": {"policyName": "short"}})
    wait_for(lambda: deadline_of_a_trial(serving) == SHORT, "the policy is not in force", 30)
    yield
    for path in (BINDINGS, POLICIES):
        serving.kube.delete(f"{path}/short")
    wait_for(lambda: deadline_of_a_trial(serving) == 600, "the policy is still in force", 30)


def deadline_of_a_trial(cluster: Cluster) -> int:
    """The deadline that a Deployment of KServe would have."""
    labels = {"serving.kserve.io/inferenceservice": "trial"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", "image": "trial"}]}}
    spec = {"selector": {"matchLabels": labels}, "template": template}
    trial = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "trial"}, "spec": spec}
    return int(cluster.kube.create(DEPLOYMENTS, trial, {"dryRun": "All"})["spec"]["progressDeadlineSeconds"])


def serve(cluster: Cluster, predictor: JSON, **fields: Any) -> None:
    cluster.kube.create(SERVICES, kserve.service("serve", {**predictor, **fields}))


def change(cluster: Cluster, **fields: Any) -> None:
    """Of the predictor."""
    cluster.kube.patch_merge(f"{SERVICES}/serve", {"spec": {"predictor": fields}})


def conditions(cluster: Cluster) -> dict[str, tuple[str, str]]:
    """Status and reason of each condition of the InferenceService."""
    found = (cluster.kube.get(f"{SERVICES}/serve").get("status") or {}).get("conditions") or ()
    return {each["type"]: (each["status"], each.get("reason", "")) for each in found}


def ready(cluster: Cluster) -> str:
    """Whether the InferenceService is ready."""
    return conditions(cluster).get("Ready", ("", ""))[0]


def why(cluster: Cluster) -> tuple[str, str]:
    return conditions(cluster).get("PredictorReady", ("", ""))


def said(cluster: Cluster) -> str:
    return f"{shown(cluster)}, {conditions(cluster)}"


def waits_with_its_reason(cluster: Cluster) -> bool:
    """Whether a pod waits for memory, and an Event of the InferenceService has its reason word for word."""
    waiting = [each for each in there(cluster) if owned(each) and scenarios.waits(each) == NO_ROOM]
    said = {scenarios.condition(each)["message"] for each in waiting}
    return bool(said) and said <= set(events_of(cluster, f"{SERVICES}/serve"))


@pytest.mark.parametrize("predictor", [OWN, OF_A_RUNTIME], ids=["a container of its own", "a runtime"])
def test_a_service_says_why_it_waits_and_is_ready_once_there_is_room(serving: Cluster, predictor: JSON) -> None:
    occupy(serving)
    occupy(serving, "second")
    serve(serving, predictor)
    wait_for(lambda: waits_with_its_reason(serving), lambda: said(serving), 30)
    wait_for(lambda: why(serving) == ("False", "MinimumReplicasUnavailable"), lambda: said(serving), 30)
    leave(serving)
    wait_for(lambda: ready(serving) == "True" and running(serving) == 1, lambda: said(serving), 30)


def test_a_service_that_is_deleted_while_it_waits_leaves_nothing(serving: Cluster) -> None:
    occupy(serving)
    occupy(serving, "second")
    serve(serving, OWN)
    wait_for(lambda: reasons(serving) == [NO_ROOM], lambda: said(serving), 30)
    serving.kube.delete(f"{SERVICES}/serve", {"propagationPolicy": "Background"})
    wait_for(lambda: not members(serving), lambda: f"{shown(serving)}", 30)
    leave(serving)
    occupy(serving, "third")


def test_a_service_that_is_scaled_waits_with_the_pod_that_does_not_fit(serving: Cluster) -> None:
    """By KServe's HorizontalPodAutoscaler, which looks every 15 s."""
    occupy(serving)
    serve(serving, OWN, minReplicas=1, maxReplicas=2)
    wait_for(lambda: ready(serving) == "True", lambda: said(serving), 30)
    change(serving, minReplicas=2)
    wait_for(lambda: waits_with_its_reason(serving), lambda: said(serving), 60)
    assert (running(serving), len(booked(serving))) == (1, 1)
    wait_for(lambda: ready(serving) == "False", lambda: said(serving), 30)
    change(serving, minReplicas=1, maxReplicas=1)
    wait_for(lambda: reasons(serving) == [""] and ready(serving) == "True", lambda: said(serving), 60)
    change(serving, minReplicas=2, maxReplicas=2)
    wait_for(lambda: reasons(serving) == ["", NO_ROOM], lambda: said(serving), 60)
    leave(serving)
    wait_for(lambda: running(serving) == 2 and ready(serving) == "True", lambda: said(serving), 60)


def test_a_service_that_is_stopped_while_it_waits_gives_its_place_up(serving: Cluster) -> None:
    occupy(serving)
    occupy(serving, "second")
    serve(serving, OWN)
    wait_for(lambda: reasons(serving) == [NO_ROOM], lambda: said(serving), 30)
    stop = {"metadata": {"annotations": {"serving.kserve.io/stop": "true"}}}
    serving.kube.patch_merge(f"{SERVICES}/serve", stop)
    wait_for(lambda: not members(serving), lambda: said(serving), 30)
    leave(serving)
    stop["metadata"]["annotations"]["serving.kserve.io/stop"] = "false"
    serving.kube.patch_merge(f"{SERVICES}/serve", stop)
    wait_for(lambda: ready(serving) == "True", lambda: said(serving), 30)


def test_a_service_beyond_its_deadline_keeps_its_place_and_starts(serving: Cluster, short: None) -> None:
    """As `explain` says before. The InferenceService shows the same before and after."""
    occupy(serving)
    occupy(serving, "second")
    serve(serving, OWN)
    wait_for(lambda: reasons(serving) == [NO_ROOM], lambda: said(serving), 30)
    told = explained(serving)
    assert "it is marked as failed, and its pods keep their places in the queue. KServe" in told
    wait_for(lambda: has_timed_out(serving), lambda: said(serving), 60)
    (pod,) = members(serving)
    wait_for(lambda: why(serving) == ("False", "MinimumReplicasUnavailable"), lambda: said(serving), 30)
    leave(serving)
    wait_for(lambda: ready(serving) == "True", lambda: said(serving), 30)
    assert [each["metadata"]["uid"] for each in members(serving)] == [pod["metadata"]["uid"]]


def has_timed_out(cluster: Cluster) -> bool:
    """Whether the Deployment says that its deadline has passed."""
    (found,) = cluster.kube.list(DEPLOYMENTS).items
    states = (found.get("status") or {}).get("conditions") or ()
    return "ProgressDeadlineExceeded" in {each["reason"] for each in states}


def test_a_new_revision_waits_while_the_older_one_serves(serving: Cluster, short: None) -> None:
    """Beyond the deadline the InferenceService is not ready, although the older revision serves."""
    occupy(serving)
    serve(serving, OWN)
    wait_for(lambda: ready(serving) == "True", lambda: said(serving), 30)
    change(serving, containers=[{**MODEL, "image": "serve:2"}])
    wait_for(lambda: waits_with_its_reason(serving), lambda: said(serving), 30)
    assert (running(serving), ready(serving)) == (1, "True")
    wait_for(lambda: why(serving) == ("False", "ProgressDeadlineExceeded"), lambda: said(serving), 60)
    assert reasons(serving) == ["", NO_ROOM]
    leave(serving)
    wait_for(lambda: ready(serving) == "True" and len(members(serving)) == 1, lambda: said(serving), 60)


def test_with_recreate_a_new_revision_takes_the_room_of_the_older_one(serving: Cluster) -> None:
    occupy(serving)
    serve(serving, OWN, deploymentStrategy={"type": "Recreate"})
    wait_for(lambda: ready(serving) == "True", lambda: said(serving), 30)
    (first,) = booked(serving)
    change(serving, containers=[{**MODEL, "image": "serve:2"}])
    wait_for(lambda: booked(serving) not in ([], [first]) and running(serving) == 1, lambda: said(serving), 60)
    wait_for(lambda: ready(serving) == "True", lambda: said(serving), 30)


def test_kserve_reverts_a_longer_deadline_of_its_deployment(serving: Cluster) -> None:
    serve(serving, OWN)
    wait_for(lambda: ready(serving) == "True", lambda: said(serving), 30)
    (found,) = cluster_deployments(serving)
    before = found["metadata"]["generation"]
    serving.kube.patch_merge(f"{DEPLOYMENTS}/{found['metadata']['name']}", {"spec": {"progressDeadlineSeconds": 3600}})
    wait_for(lambda: cluster_deployments(serving)[0]["metadata"]["generation"] >= before + 2, lambda: said(serving), 30)
    assert cluster_deployments(serving)[0]["spec"]["progressDeadlineSeconds"] == 600


def cluster_deployments(cluster: Cluster) -> list[JSON]:
    return list(cluster.kube.list(DEPLOYMENTS).items)


def test_the_sample_is_placed_as_kserve_creates_its_pod(serving: Cluster) -> None:
    """Its older name of the mode too; the model is not fetched, since nothing runs in the pods."""
    serving.kube.create(SERVICES, yaml.safe_load(SAMPLE.read_text()))
    wait_for(lambda: running(serving) == 1, lambda: f"{shown(serving)}", 30)
    (pod,) = members(serving)
    (container,) = (each for each in pod["spec"]["containers"] if each["name"] == CONTAINER)
    assert container["image"] == "serve:v0.15.2-gpu"
    assert "--gpu-memory-utilization=$(GPUFRACTION_MEMORY_FRACTION)" in container["args"]
