"""What a user may write instead of a pod's name, and which pods that selects."""

from __future__ import annotations

from typing import Any

import pytest

from kubectl_gpufraction.cluster import targets
from kubectl_gpufraction.cluster.targets import BadTarget, Target

JSON = dict[str, Any]
READ = {
    "x": Target("pod", "mine", "x"),
    "pod/x": Target("pod", "mine", "x"),
    "po/x": Target("pod", "mine", "x"),
    "team/x": Target("pod", "team", "x"),
    "deployment/x": Target("deployment", "mine", "x"),
    "deploy/x": Target("deployment", "mine", "x"),
    "deployments.apps/x": Target("deployment", "mine", "x"),
    "sts/x": Target("statefulset", "mine", "x"),
    "rs/x": Target("replicaset", "mine", "x"),
    "ds/x": Target("daemonset", "mine", "x"),
    "Job/x": Target("job", "mine", "x"),
    "job.batch/x": Target("job", "mine", "x"),
    "team/deployment/x": Target("deployment", "team", "x"),
}


@pytest.mark.parametrize(("text", "want"), READ.items(), ids=READ.keys())
def test_what_is_named(text: str, want: Target) -> None:
    assert targets.read(text, "mine") == want


@pytest.mark.parametrize("text", ["", "/", "a/", "/a", "a/b/c", "a/pod/b/c", "team/gateway/x"])
def test_what_names_nothing_is_refused_with_what_would(text: str) -> None:
    with pytest.raises(BadTarget) as refused:
        targets.read(text, "mine")
    assert str(refused.value) == (
        f"{text!r}: give POD, NAMESPACE/POD, KIND/NAME or NAMESPACE/KIND/NAME; KIND is one of pod, deployment, "
        "replicaset, statefulset, daemonset, job"
    )


def owned(name: str, uid: str, owner: str = "") -> JSON:
    owners = [{"uid": "somebody"}, {"uid": owner, "controller": True}] if owner else []
    return {"metadata": {"name": name, "uid": uid, "ownerReferences": owners}}


def test_the_pods_of_a_deployment_are_those_of_its_replicasets() -> None:
    sets = [owned("web-1", "r1", "d1"), owned("web-2", "r2", "d1"), owned("other-1", "r3", "d2")]
    pods = [owned("b", "p2", "r2"), owned("a", "p1", "r1"), owned("c", "p3", "r3"), owned("d", "p4")]
    found = targets.pods_of(owned("web", "d1"), sets, pods)
    assert [pod["metadata"]["name"] for pod in found] == ["a", "b"]


def test_the_pods_of_a_job_are_its_own() -> None:
    pods = [owned("a", "p1", "j1"), owned("b", "p2", "j2")]
    assert targets.pods_of(owned("train", "j1"), [], pods) == pods[:1]


TROUBLES = {
    "nothing": ({}, ""),
    "all is well": ({"conditions": [{"type": "Available", "status": "True", "message": "fine"}]}, ""),
    "refused": ({"conditions": [{"type": "ReplicaFailure", "status": "True", "message": "too much"}]}, "too much"),
    "over": ({"conditions": [{"type": "ReplicaFailure", "status": "False", "message": "too much"}]}, ""),
}


@pytest.mark.parametrize(("status", "want"), TROUBLES.values(), ids=TROUBLES.keys())
def test_why_there_are_no_pods(status: JSON, want: str) -> None:
    assert targets.trouble({"status": status}) == want
