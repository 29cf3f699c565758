"""Pods that contain far more than any user needs: many containers, many expressions, much text."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from contract import names
from contract.bounds import MOST_SELECTING
from contract.model import MOST_SHARING
from playground import scenarios
from playground.waiting import PATIENCE, wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import KubeInvalid
from tests.builders import PodBuilder, container, pod
from tests.cluster.hostile.attack import TENANT, Hostile

pytestmark = pytest.mark.hostile
MEMORY = str(names.GPU_MEMORY)
PODS = {"Real": (150, 150), "Embedded": (6, 2)}
"""Large waiting pods, and pods ten times larger. The embedded API server is Python and takes seconds for each."""
UNSERVED = "unserved"


def of_containers(number: int) -> PodBuilder:
    """A pod whose containers request 1 MiB each."""
    resources = {"limits": {MEMORY: "1Mi"}}
    return pod("many").spec(containers=[container(f"c{at}", resources=resources) for at in range(number)])


def selecting(number: int) -> dict[str, Any]:
    """Required node affinity with this many expressions, all of them different."""
    return {"matchExpressions": [{"key": f"k{at}", "operator": "DoesNotExist"} for at in range(number)]}


def placed(hostile: Hostile, name: str, within: float = PATIENCE) -> None:
    """Wait until a pod has its node, for at most this many seconds."""
    path = paths.pods(TENANT, name)
    wait_for(
        lambda: bool(hostile.kube.get(path)["spec"].get("nodeName")),
        lambda: f"not placed: {scenarios.shown([hostile.kube.get(path)])}",
        within,
    )


def test_a_pod_of_a_thousand_containers_is_refused(hostile: Hostile) -> None:
    """
    A1: each of 1,050 containers requests a share. The answer says how many may do so; a pod with that many is placed.
    """
    with pytest.raises(
        KubeInvalid, match=r"spec.containers: found 1050 containers; a pod with a GPU share has at most 256"
    ):
        hostile.create(of_containers(1_050))
    with pytest.raises(KubeInvalid, match=r"found 65 containers that request a share; request a share in at most 64"):
        hostile.create(of_containers(MOST_SHARING + 1))
    assert hostile.pods() == []
    hostile.create(of_containers(MOST_SHARING))
    placed(hostile, "many")


def test_eight_thousand_expressions_are_refused(hostile: Hostile) -> None:
    """A4: one pod with 8,000 expressions of node affinity; a pod with the allowed number is placed."""
    made = pod("large").asks(MEMORY, "1Mi")
    with pytest.raises(
        KubeInvalid, match=r"found 8000 expressions and values; a pod with a GPU share has at most 1000"
    ):
        hostile.create(made.affinity(selecting(8_000)))
    hostile.create(made.affinity(selecting(MOST_SELECTING - 10)))
    placed(hostile, "large")


def test_annotations_without_room_for_the_share_are_refused(hostile: Hostile) -> None:
    """A4: annotations of 255 KiB leave no room for the share's annotation, which the refusal names."""
    made = pod("long").asks(MEMORY, "1Mi").annotated("example.com/notes", "x" * (255 << 10))
    with pytest.raises(KubeInvalid, match=r"Kubernetes takes 262144 in all: shorten .*example.com/notes"):
        hostile.create(made)


@pytest.mark.storm
@pytest.mark.timeout(600)
def test_pods_at_the_bound_that_wait_fit_into_memory_also_after_a_restart(attacked: Hostile) -> None:
    """A4: many waiting pods, each with as much affinity as admission allows."""
    with removed_afterwards(attacked, TENANT):
        for at in range(number(attacked)):
            attacked.create_once_allowed(wanting(at, MOST_SELECTING - 10))
        survives(attacked, {"gpufraction_waiting_pods": float(number(attacked))})


@pytest.mark.storm
@pytest.mark.timeout(600)
def test_pods_stored_before_the_bound_get_a_condition_and_are_not_kept(attacked: Hostile) -> None:
    """A4: many gated pods with 8,000 expressions each, stored without admission and its policy."""
    path = paths.path("admissionregistration.k8s.io/v1", "validatingadmissionpolicybindings")
    binding = attacked.kube.get(f"{path}/gpufraction-pod-create")
    attacked.kube.delete(f"{path}/gpufraction-pod-create")
    attacked.kube.create(paths.namespaces(), {"metadata": {"name": UNSERVED}})
    attacked.cluster.await_account(UNSERVED)
    try:
        for at in range(number(attacked, larger=True)):
            attacked.create_once_allowed(wanting(at, 8_000).gated(), UNSERVED)
    finally:
        kept = {key: binding["metadata"][key] for key in ("name", "labels") if key in binding["metadata"]}
        attacked.kube.create(path, {**binding, "metadata": kept})
    with removed_afterwards(attacked, UNSERVED):
        survives(attacked, {"gpufraction_unreadable_pods": float(number(attacked, larger=True))})


def number(attacked: Hostile, *, larger: bool = False) -> int:
    """How many pods this control plane can store in a minute or two."""
    return PODS[type(attacked.cluster.control_plane).__name__][larger]


def wanting(at: int, expressions: int) -> PodBuilder:
    """A pod that fits on no node of the cluster, different from every other pod."""
    own = [{"key": f"pod{at}-{n}", "operator": "DoesNotExist"} for n in range(expressions)]
    nowhere = {"key": "zone", "operator": "In", "values": ["nowhere"]}
    return pod(f"p{at}").asks(MEMORY, "1Mi").affinity({"matchExpressions": [nowhere, *own]})


@contextlib.contextmanager
def removed_afterwards(attacked: Hostile, namespace: str) -> Iterator[None]:
    """Delete the namespace's pods in any case, so that files that share the cluster do not wait for them."""
    try:
        yield
    finally:
        for each in attacked.pods(namespace):
            attacked.kube.delete(paths.pods(namespace, each["metadata"]["name"]), {"gracePeriodSeconds": 0})
        reaches(attacked, {"gpufraction_waiting_pods": 0.0, "gpufraction_unreadable_pods": 0.0})


def survives(attacked: Hostile, figures: dict[str, float]) -> None:
    """The leader reaches these figures, also after a restart of both replicas, within its memory; others are served."""
    programs = [attacked.cluster.programs[name] for name in ("allocator", "allocator-1")]
    reaches(attacked, figures)
    assert attacked.footprint.killed == []
    attacked.neighbour_is_served()
    for program in programs:
        program.kill()
    for program in programs:
        program.start()
    reaches(attacked, figures)
    attacked.neighbour_is_served(within=180)  # the new leader first fences every waiting pod, and each is large
    peaks = {name: f"{peak >> 20} MiB" for name, peak in attacked.footprint.peaks.items() if "allocator" in name}
    print(peaks)
    assert attacked.footprint.killed == []


def reaches(attacked: Hostile, figures: dict[str, float]) -> None:
    """Wait until the metrics of a replica say this."""

    def found() -> list[dict[str, float]]:
        seen = []
        for replica in range(2):
            with contextlib.suppress(OSError):
                seen.append({name: attacked.figures(replica).get(name, -1) for name in figures})
        return seen

    wait_for(lambda: figures in found(), lambda: f"wanted {figures}, found {found()}", 90)
