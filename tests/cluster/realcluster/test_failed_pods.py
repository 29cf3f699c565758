"""Kubernetes' own kubelet and a pod that the allocator has failed: the pod is not started, or is ended if it runs."""

from __future__ import annotations

import pytest

from allocator.scheduler.events import LatePod
from allocator.workers.fence import failing
from contract import names
from playground import scenarios
from playground.cluster import Cluster
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube
from tests.cluster.realcluster.hollow import JSON, create, found, t4

pytestmark = pytest.mark.realcluster


def fail(cluster: Cluster, name: str) -> None:
    """Fail the pod as the allocator does, with the allocator's rights."""
    annotations = found(cluster, name)["metadata"]["annotations"]
    seen = tuple(key for key in annotations if key.startswith(names.DEVICES_PREFIX))
    assert seen
    late = LatePod(f"default/{name}", found(cluster, name)["metadata"]["uid"], "its share is taken", seen)
    kube = Kube.connect(kubeconfig=str(cluster.directory / "kubeconfig-allocator"), user_agent="allocator")
    kube.patch_merge(paths.pods("default", name), failing(late))


def states(cluster: Cluster, name: str) -> list[str]:
    """The state of each container, as the kubelet reports it."""
    return [next(iter(c["state"]), "") for c in found(cluster, name)["status"].get("containerStatuses") or []]


def ended(cluster: Cluster, name: str) -> JSON:
    """The final status of the pod."""
    status: JSON = found(cluster, name)["status"]
    return {key: status.get(key) for key in ("phase", "reason")}


FAILED = {"phase": "Failed", "reason": "DeadlineExceeded"}


def test_one_that_runs_is_ended(hollow: Cluster) -> None:
    create(hollow, t4("late"))
    scenarios.settled(hollow.kube, 1, running=1)
    fail(hollow, "late")
    wait_for(lambda: states(hollow, "late") == ["terminated"], lambda: f"it is {found(hollow, 'late')['status']}")
    assert ended(hollow, "late") == FAILED


def test_one_that_has_not_started_is_not_started(hollow: Cluster) -> None:
    absent = {"configMapKeyRef": {"name": "absent", "key": "key"}}
    made = t4("late").manifest()
    made["spec"]["containers"][0]["env"] = [{"name": "ABSENT", "valueFrom": absent}]
    hollow.kube.create(paths.pods("default"), made)
    wait_for(lambda: states(hollow, "late") == ["waiting"], lambda: f"it is {found(hollow, 'late')['status']}")
    fail(hollow, "late")
    wait_for(lambda: ended(hollow, "late") == FAILED, lambda: f"it is {found(hollow, 'late')['status']}")
    hollow.kube.create(paths.configmaps("default"), {"metadata": {"name": "absent"}, "data": {"key": "value"}})
    try:
        # Meanwhile another pod of the node starts, which shows that the kubelet works.
        create(hollow, t4("next"))
        wait_for(lambda: scenarios.is_running(found(hollow, "next")), "the kubelet starts nobody")
        assert ended(hollow, "late") == FAILED
        assert "running" not in states(hollow, "late")
    finally:
        hollow.kube.delete(paths.configmaps("default", "absent"))
