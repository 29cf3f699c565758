"""
B1: a quota counts every percentage and every whole GPU, whichever replica is asked, and also while a pod waits; one of
which nobody can say how much it is does not come in.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from playground import scenarios
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import KubeForbidden
from tests.builders import PodBuilder, pod
from tests.cluster.hostile.attack import TENANT, Hostile
from tests.cluster.hostile.replicas import asked, asking

pytestmark = pytest.mark.hostile
MEMORY = "requests.gpufraction.io/gpu-memory"
ANY = pod("any").generated("by-percent-")
BY_PERCENT: dict[str, PodBuilder] = {
    "hami": ANY.asks("nvidia.com/gpu", 1).asks("nvidia.com/gpumem-percentage", 99),
    "whole": ANY.asks("nvidia.com/gpu", 1),
    "cores": ANY.asks("nvidia.com/gpu", 1).asks("nvidia.com/gpucores", 10),
    "nano": ANY.asks("nano-gpu/gpu-percent", 99),
    "elastic": ANY.asks("elasticgpu.io/gpu-core", 99),
    "native": ANY.asks("gpufraction.io/gpu-percent", 99),
    "kai": ANY.annotated("gpu-fraction", "0.99").container("main"),
    "gated": ANY.asks("gpufraction.io/gpu-percent", 99).gated("others.example/gate"),
}


@pytest.fixture
def quota(hostile: Hostile) -> Iterator[Hostile]:
    """A namespace that may have no GPU memory at all."""
    path = paths.path("v1", "resourcequotas", TENANT)
    hostile.kube.create(path, {"metadata": {"name": "none"}, "spec": {"hard": {MEMORY: "0"}}})
    try:
        wait_for(lambda: bool(hostile.kube.get(f"{path}/none").get("status", {}).get("hard")), "no status")
        yield hostile
    finally:
        hostile.kube.delete(f"{path}/none")


@pytest.mark.parametrize("leads", [True, False], ids=["the leader is asked", "a follower is asked"])
def test_a_quota_of_zero_is_not_passed_by_a_percentage(quota: Hostile, leads: bool) -> None:
    with asking(quota, leads=leads):
        for made in BY_PERCENT.values():
            with pytest.raises(KubeForbidden, match="exceeded quota"):
                quota.create(made)
    assert quota.pods() == []


def test_a_percentage_is_refused_while_nobody_can_say_how_much_it_is(hostile: Hostile) -> None:
    """The allocator beside the webhook that is asked stands still for a moment, as on a node that is overloaded."""
    with asking(hostile, leads=False) as number:
        paused = hostile.cluster.programs[hostile.cluster.replicas[number].name("allocator")].pid
        os.kill(paused, signal.SIGSTOP)
        try:
            for made in BY_PERCENT.values():
                with pytest.raises(KubeForbidden, match="the memory that a quota counts for it is not known now"):
                    hostile.create(made)
            waiting = hostile.create(pod("by-bytes").asks("gpufraction.io/gpu-memory", "1Gi"))
        finally:
            os.kill(paused, signal.SIGCONT)
        assert waiting["spec"]["schedulingGates"]
    scenarios.settled(hostile.kube, 1, running=1)


def test_what_waits_by_percent_is_counted_with_the_least_that_it_will_have(hostile: Hostile) -> None:
    with asking(hostile, leads=False) as number:
        before = asked(hostile, number).get("not-leading", 0)
        made = hostile.create(BY_PERCENT["hami"])
        assert asked(hostile, number)["not-leading"] == before + 1
    counted = made["spec"]["containers"][0]["resources"]["requests"]["gpufraction.io/gpu-memory"]
    assert counted not in ("", "0")
    scenarios.settled(hostile.kube, 1, running=1)
