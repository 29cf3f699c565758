"""A1: pods that are made to crash the allocator, stored without admission or before the bound, affect no others."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from contract import names
from contract.encoding import codec
from contract.model import FractionRequest, PodRequest
from playground import scenarios
from playground.waiting import wait_for
from runtime.kubernetes import paths
from tests.builders import PodBuilder, container, pod
from tests.cluster.hostile.attack import Hostile

pytestmark = [pytest.mark.hostile, pytest.mark.timeout(600)]
JSON = dict[str, Any]
CONTAINERS = 1_050
"""Deeper than Python's limit for nested calls."""
MEMORY = str(names.GPU_MEMORY)
POLICY = "gpufraction-pod-create"
BEFORE = "before"
"""A namespace that admission does not see, like every namespace before the installation."""


@contextlib.contextmanager
def unguarded(attacked: Hostile) -> Iterator[None]:
    """Without the policy that reserves some fields for admission."""
    path = paths.path("admissionregistration.k8s.io/v1", "validatingadmissionpolicybindings")
    binding = attacked.kube.get(f"{path}/{POLICY}")
    attacked.kube.delete(f"{path}/{POLICY}")
    try:
        yield
    finally:
        kept = {key: binding["metadata"][key] for key in ("name", "labels") if key in binding["metadata"]}
        attacked.kube.create(path, {**binding, "metadata": kept})


@pytest.fixture
def before(attacked: Hostile) -> Iterator[Hostile]:
    """The cluster with a namespace for pods from before the installation. Afterwards it is empty and in order."""
    if not any(each["metadata"]["name"] == BEFORE for each in attacked.kube.list(paths.namespaces()).items):
        attacked.kube.create(paths.namespaces(), {"metadata": {"name": BEFORE}})
        attacked.cluster.await_account(BEFORE)
    yield attacked
    for each in attacked.pods(BEFORE):
        attacked.kube.delete(paths.pods(BEFORE, each["metadata"]["name"]), {"gracePeriodSeconds": 0})
    reaches(attacked, "gpufraction_unreadable_pods", 0.0)
    assert attacked.footprint.killed == []


def reaches(attacked: Hostile, metric: str, wanted: float) -> None:
    """Wait until both replicas' metric says so."""

    def found() -> list[float]:
        return [attacked.figures(replica).get(metric, -1.0) for replica in range(2)]

    wait_for(lambda: found() == [wanted] * 2, lambda: f"{metric} is {found()}, not {wanted}", 90)


def of_many(name: str) -> PodBuilder:
    """A pod of which each container requests 1 MiB, as admission once allowed it."""
    amounts = {"limits": {MEMORY: "1Mi"}, "requests": {MEMORY: "1Mi"}}
    made = [container(f"c{at}", resources=amounts) for at in range(CONTAINERS)]
    fractions = tuple(FractionRequest(f"c{at}", memory=1 << 20) for at in range(CONTAINERS))
    request = codec.request_to_text(PodRequest("native", fractions))
    return pod(name).spec(containers=made).annotated(names.REQUEST, request).gated()


def condition(attacked: Hostile, name: str) -> JSON:
    return scenarios.condition(attacked.kube.get(paths.pods(BEFORE, name)))


@pytest.mark.long
def test_a_stored_pod_of_a_thousand_containers_crashes_no_program(before: Hostile) -> None:
    pids = before.pids()
    with unguarded(before):
        before.create_once_allowed(of_many("many"), BEFORE)
    wait_for(
        lambda: "found 1050 containers" in condition(before, "many").get("message", ""),
        lambda: f"told {condition(before, 'many')}",
    )
    before.neighbour_is_served()
    assert before.pids() == pids
    programs = [before.cluster.programs[name] for name in ("allocator", "allocator-1")]
    for program in programs:
        program.kill()
    for program in programs:
        program.start()
    reaches(before, "gpufraction_unreadable_pods", 1.0)
    before.neighbour_is_served()
    assert [program.alive() for program in programs] == [True, True]


ODD: dict[str, JSON] = {
    "a request of another shape": {str(names.REQUEST): '{"v":1,"dialect":"native","containers":[[1]]}'},
    "a request nested beyond reading": {str(names.REQUEST): '{"v":1,"containers":' + "[" * 100_000},
    "a number beyond counting": {
        str(names.REQUEST): '{"v":1,"dialect":"native","containers":[{"name":"main","count":1,"memory":1e999}]}'
    },
    "half a character": {str(names.REQUEST): '{"v":1,"dialect":"\\ud800","containers":[{"name":"\\ud800","count":1}]}'},
    "an allocation and a gate": {str(names.ALLOCATION): '{"v":1,"id":"","node":{},"containers":null}'},
}


def test_whatever_stands_in_our_annotations_ends_nobody(before: Hostile) -> None:
    pids = before.pids()
    with unguarded(before):
        for at, annotations in enumerate(ODD.values()):
            for gated in (True, False):
                made = pod(f"odd-{at}-{'waits' if gated else 'runs'}").asks(MEMORY, "1Mi")
                for name, text in annotations.items():
                    made = made.annotated(name, text)
                before.create_once_allowed(made.gated() if gated else made, BEFORE)
    before.neighbour_is_served()
    assert before.pids() == pids
