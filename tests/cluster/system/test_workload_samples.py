"""
The workloads' samples on a cluster: their pods get shares, on both control planes.

Kinds that a control plane serves are applied unchanged. For other kinds, the tests create the pods that their
controllers would create.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contract import names
from playground import scenarios
from playground.cluster import Cluster
from playground.programs import installing
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube, KubeForbidden, KubeNotFound
from tests.builders import pod
from tests.unit.manifests import workload_kinds as workloads
from tests.unit.manifests.kube import documents

pytestmark = pytest.mark.system
JSON = dict[str, Any]
WITH_PODS = [path for path in workloads.FILES if workloads.stated(path)]
_numbers = itertools.count()


def is_served(kube: Kube, document: JSON) -> bool:
    """Whether the control plane serves the object's kind."""
    try:
        version = document["apiVersion"]
        found = kube.get(f"/apis/{version}" if "/" in version else f"/api/{version}")
    except KubeNotFound:
        return False
    return document["kind"] in {each["kind"] for each in found["resources"]}


def submit(kube: Kube, sample: Path) -> list[JSON]:
    """Apply the sample. Returns what was created."""
    made = []
    for document in documents(sample):
        served = not workloads.is_foreign(document) and is_served(kube, document)
        for each in [document] if served else workloads.pods_of(document):
            made.append(kube.create(installing.path_of(each), each))
    return made


def remove(kube: Kube, made: list[JSON]) -> None:
    """Delete what was created, controllers first, so that none creates a pod while its pods are deleted."""
    for each in made:
        if each["kind"] == "StatefulSet":
            kube.patch_merge(installing.path_of(each, named=True), {"spec": {"replicas": 0}})
            wait_for(lambda: not scenarios.all_pods(kube), "the StatefulSet's pods are still there")
    scenarios.remove(kube, made)


@pytest.fixture
def applied(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[list[JSON]]:
    """The pods of the sample that the test names, once each runs or waits."""
    made = submit(cluster.kube, request.param)
    try:
        yield scenarios.settled(cluster.kube, workloads.stated(request.param))
    finally:
        remove(cluster.kube, made)


@pytest.mark.parametrize("applied", WITH_PODS, ids=[path.stem for path in WITH_PODS], indirect=True)
def test_every_pod_gets_its_share_and_its_fraction_of_the_card(applied: list[JSON]) -> None:
    assert [pod["metadata"]["name"] for pod in applied if not scenarios.is_running(pod)] == []
    for each in applied:
        assert scenarios.held(each)
        container = each["spec"]["containers"][0]
        fraction = each["metadata"]["annotations"][names.per_container(names.MEMORY_FRACTION_PREFIX, container["name"])]
        assert 0 < float(fraction) <= 1
        assert str(names.MEMORY_FRACTION) in {entry["name"] for entry in container["env"]}


@pytest.mark.parametrize("applied", [workloads.FOLDER / "pytorchjob.yaml"], ids=["pytorchjob"], indirect=True)
def test_no_two_ranks_share_a_card(applied: list[JSON]) -> None:
    held = [uuid for pod in applied for uuid in scenarios.held(pod)]
    assert len(held) == len(set(held)) == 3


def team(cluster: Cluster, recipe: str) -> str:
    """A separate served namespace with the objects of a recipe. Returns its name."""
    name = f"recipe-{next(_numbers)}"
    cluster.label_namespace(name)
    for document in documents(workloads.FOLDER / recipe):
        document["metadata"]["namespace"] = name
        installing.apply(cluster.kube, document)
    return name


def create(kube: Kube, namespace: str, name: str, priority: str = "", **limits: str) -> JSON:
    made = pod(name).manifest()
    made["metadata"]["namespace"] = namespace
    if priority:
        made["spec"]["priorityClassName"] = priority
    amounts = {f"gpufraction.io/{key.replace('_', '-')}": value for key, value in limits.items()}
    made["spec"]["containers"][0]["resources"] = {"limits": amounts} if amounts else {}
    return kube.create(paths.pods(namespace), made)


def refused(kube: Kube, namespace: str, message: str, priority: str = "", **limits: str) -> None:
    """Wait until such a pod is refused with this message. A new object takes effect a moment after its creation."""
    lines: list[str] = []

    def done() -> bool:
        try:
            name = create(kube, namespace, f"probe-{next(_numbers)}", priority, **limits)["metadata"]["name"]
        except KubeForbidden as error:
            lines[:] = [str(error)]
            return message in str(error)
        kube.delete(paths.pods(namespace, name))
        return False

    wait_for(done, lambda: f"not refused with {message!r}: {lines}")


def test_a_teams_quota_holds_what_its_pods_have_together(cluster: Cluster) -> None:
    name = team(cluster, "quota-team.yaml")
    try:
        create(cluster.kube, name, "large", gpu_memory="30Gi", gpu_cores="50")
        refused(cluster.kube, name, "exceeded quota: gpu-shares", gpu_memory="11Gi")
        refused(cluster.kube, name, "exceeded quota: gpu-shares", gpu_memory="1Gi", gpu_cores="80", gpu_count="2")
        create(cluster.kube, name, "small", gpu_memory="10Gi", gpu_cores="50")
        scenarios.settled(cluster.kube, 2, name)
    finally:
        scenarios.clear(cluster.kube, name)


def test_a_limit_range_bounds_a_container_and_gives_others_nothing(cluster: Cluster) -> None:
    name = team(cluster, "quota-containers.yaml")
    try:
        refused(cluster.kube, name, "maximum gpufraction.io/gpu-memory usage per Container is 12Gi", gpu_memory="13Gi")
        create(cluster.kube, name, "fits", gpu_memory="4Gi")
        plain = create(cluster.kube, name, "plain")
        assert str(names.ALLOCATION) not in plain["metadata"].get("annotations", {})
        assert names.GATE not in {gate["name"] for gate in plain["spec"].get("schedulingGates") or []}
        wait_for(lambda: all(map(scenarios.is_running, scenarios.all_pods(cluster.kube, name))), "a pod does not run")
    finally:
        scenarios.clear(cluster.kube, name)


def test_a_quota_of_one_priority_does_not_bind_another(cluster: Cluster) -> None:
    name = team(cluster, "quota-priorities.yaml")
    try:
        refused(cluster.kube, name, "exceeded quota: gpu-shares-urgent", "gpu-urgent", gpu_memory="17Gi")
        create(cluster.kube, name, "fits", gpu_memory="17Gi")
        create(cluster.kube, name, "urgent", "gpu-urgent", gpu_memory="16Gi")
        scenarios.settled(cluster.kube, 2, name)
    finally:
        scenarios.clear(cluster.kube, name)
        cluster.kube.delete(paths.path("scheduling.k8s.io/v1", "priorityclasses", None, "gpu-urgent"))
