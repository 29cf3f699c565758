"""
Pods that are deleted while they wait and that a finalizer keeps, as for every pod of a Job. They get no card, and the
next pod in the queue gets it at once.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from contract import names, pods
from playground import scenarios
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import KubeNotFound
from tests.builders import pod
from tests.cluster.hostile.attack import DELAY, NEIGHBOUR, TENANT, Hostile

pytestmark = pytest.mark.hostile
FINALIZER = "example.com/kept"
MEMBERS = 4
VICTIM = paths.pods(NEIGHBOUR, "victim")
EVERY_CARD = 100
"""More whole cards than the cluster has."""


@pytest.fixture
def kept(hostile: Hostile) -> Iterator[Hostile]:
    """Afterwards no finalizer keeps any pod."""
    yield hostile
    for each in hostile.pods():
        if FINALIZER in each["metadata"].get("finalizers", ()):
            where = paths.pods(TENANT, each["metadata"]["name"])
            hostile.kube.patch_merge(where, {"metadata": {"finalizers": None}})
            try:
                hostile.kube.delete(where, {"gracePeriodSeconds": 0})
            except KubeNotFound:
                continue


def fill(hostile: Hostile) -> None:
    """Fill the cluster with pods of whole cards until one waits, and delete that one."""
    for number in range(EVERY_CARD):
        name = f"holder-{number:02}"
        hostile.create(pod(name).asks("nvidia.com/gpu", 1))
        path = paths.pods(TENANT, name)
        wait_for(
            lambda path=path: bool(  # type: ignore[misc]
                scenarios.waits(hostile.kube.get(path)) or hostile.kube.get(path)["spec"].get("nodeName")
            ),
            f"{name} is neither placed nor waiting",
        )
        if not hostile.kube.get(path)["spec"].get("nodeName"):
            hostile.kube.delete(path, {"gracePeriodSeconds": 0})
            return
    raise AssertionError("the cluster has more cards than this test knows")


def waiting(hostile: Hostile, name: str, namespace: str, priority: str = "") -> None:
    """A waiting pod for a whole card. A finalizer keeps the tenant's pods."""
    made = pod(name).asks("nvidia.com/gpu", 1)
    manifest = made.manifest()
    manifest["metadata"] |= {"namespace": namespace} | ({"finalizers": [FINALIZER]} if namespace == TENANT else {})
    hostile.kube.create(paths.pods(namespace), manifest)
    path = paths.pods(namespace, name)
    wait_for(lambda: scenarios.waits(hostile.kube.get(path)), f"{name} does not wait")


def free_one(hostile: Hostile) -> float:
    """End one holder. Returns when."""
    hostile.kube.delete(paths.pods(TENANT, "holder-00"), {"gracePeriodSeconds": 0})
    return time.monotonic()


def served(hostile: Hostile, since: float) -> float:
    """Seconds until the victim has a card."""
    wait_for(lambda: names.GATE not in pods.gates(hostile.kube.get(VICTIM)), "the victim waits on", 20, every=0.02)
    return time.monotonic() - since


def given(hostile: Hostile) -> list[str]:
    """The deleted pods that have a share or no longer have our gate."""
    return [
        each["metadata"]["name"]
        for each in hostile.pods()
        if each["metadata"]["name"].startswith("deleted")
        and (names.ALLOCATION in pods.annotations_of(each) or names.GATE not in pods.gates(each))
    ]


def test_a_card_goes_past_the_deleted_pods_to_who_waits_behind_them(kept: Hostile) -> None:
    fill(kept)
    for number in range(MEMBERS):
        waiting(kept, f"deleted-{number}", TENANT)
    waiting(kept, "victim", NEIGHBOUR)
    for number in range(MEMBERS):
        kept.kube.delete(paths.pods(TENANT, f"deleted-{number}"))
    time.sleep(0.5)
    assert len([each for each in kept.pods() if each["metadata"].get("deletionTimestamp")]) == MEMBERS
    assert served(kept, free_one(kept)) < DELAY
    # They do not get cards that become free later, even while no other pod waits.
    for number in (1, 2):
        kept.kube.delete(paths.pods(TENANT, f"holder-{number:02}"), {"gracePeriodSeconds": 0})
    time.sleep(1.5)
    assert given(kept) == []


def test_a_card_that_comes_free_in_the_moment_of_the_deletion_is_not_lost(kept: Hostile) -> None:
    fill(kept)
    waiting(kept, "deleted-0", TENANT)
    waiting(kept, "victim", NEIGHBOUR)
    kept.kube.delete(paths.pods(TENANT, "deleted-0"))
    # The deletion may reach the allocator while it decides, or while it writes the decision.
    assert served(kept, free_one(kept)) < DELAY
    assert given(kept) == []
