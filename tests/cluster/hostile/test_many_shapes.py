"""A6: a tenant's 2,500 pods of as many shapes, none of which fits, and a neighbour who must not be affected."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from statistics import median

import pytest

from playground import scenarios
from playground.waiting import wait_for
from runtime.kubernetes import paths
from tests.builders import PodBuilder, pod
from tests.cluster.hostile.attack import DELAY, TENANT, Hostile

pytestmark = [pytest.mark.hostile, pytest.mark.storm, pytest.mark.timeout(1800)]
SHAPES = 2_500
CLIENTS = 4
SETTLED = 600.0
"""Seconds for storing and reading thousands of pods on a busy machine."""


def shape(number: int) -> PodBuilder:
    """A pod unlike any other, for which there is no node."""
    made = pod(f"shape-{number}").asks("gpufraction.io/gpu-memory", f"{number + 1}Mi")
    return made.spec(nodeSelector={"example.com/nowhere": "yes"})


def waiting(hostile: Hostile) -> int:
    return int(max(hostile.figures(replica).get("gpufraction_waiting_pods", 0) for replica in (0, 1)))


def served(hostile: Hostile, times: int = 7) -> float:
    """Seconds until a neighbour's pod is placed: the median, because the machine has other work too."""
    return median(hostile.neighbour_is_served() for _ in range(times))


def test_thousands_of_shapes_of_one_tenant_delay_nobody_else(hostile: Hostile) -> None:
    alone, during = served(hostile), list[float]()
    with ThreadPoolExecutor(CLIENTS) as clients:
        created = [clients.submit(hostile.create, shape(number)) for number in range(SHAPES)]
        while not all(each.done() for each in created):
            during.append(hostile.neighbour_is_served())
    assert [str(each.exception()) for each in created if each.exception()] == []
    wait_for(lambda: waiting(hostile) >= SHAPES, lambda: f"{waiting(hostile)} wait", SETTLED)
    while_reported = served(hostile)
    all_reported(hostile)
    figures = {
        "alone": alone,
        "they come": median(during),
        "they are told": while_reported,
        "they wait": served(hostile),
    }
    print("seconds until a neighbour's pod is placed:", {when: round(took, 2) for when, took in figures.items()})
    assert {when: took for when, took in figures.items() if took > alone + DELAY} == {}
    hostile.kube.delete(paths.pods(TENANT), timeout=SETTLED)  # the API server deletes them one by one
    wait_for(lambda: waiting(hostile) == 0, lambda: f"{waiting(hostile)} still wait", SETTLED)


def all_reported(hostile: Hostile) -> None:
    """Wait until each pod's condition says why it waits. A list of thousands is costly, so this lists seldom."""
    untold: list[str] = []

    def has_reason() -> bool:
        untold[:] = [made["metadata"]["name"] for made in hostile.pods() if not scenarios.waits(made)]
        return not untold

    wait_for(has_reason, lambda: f"{len(untold)} pods were not told, such as {untold[0]}", SETTLED, every=10)
