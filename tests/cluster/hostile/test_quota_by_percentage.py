"""
B1: a quota counts every percentage and every whole GPU, whichever replica is asked, even while a pod waits or the
allocator does not answer. No pod is refused because one process restarts.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from contract.encoding import quantity
from contract.names import GPU_MEMORY
from playground import scenarios
from playground.programs.probes import healthy
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import KubeError, KubeForbidden, KubeNotFound
from tests.builders import PodBuilder, pod
from tests.cluster.hostile.attack import NEIGHBOUR, TENANT, Hostile
from tests.cluster.hostile.replicas import asked, asking

JSON = dict[str, Any]
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


@contextlib.contextmanager
def silent(hostile: Hostile) -> Iterator[None]:
    """The allocator next to the asked webhook is paused, as on an overloaded node."""
    with asking(hostile, leads=False) as number:
        paused = hostile.cluster.programs[hostile.cluster.replicas[number].name("allocator")].pid
        os.kill(paused, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(paused, signal.SIGCONT)


@pytest.mark.long
def test_a_quota_of_zero_is_not_passed_while_the_allocator_does_not_answer(quota: Hostile) -> None:
    with silent(quota):
        for made in BY_PERCENT.values():
            with pytest.raises(KubeForbidden, match="exceeded quota"):
                quota.create(made)
    assert quota.pods() == []


def test_a_percentage_waits_and_is_counted_while_the_allocator_does_not_answer(hostile: Hostile) -> None:
    with silent(hostile):
        waiting = [hostile.create(BY_PERCENT["native"])]
        waiting.append(hostile.create(pod("by-bytes").asks("gpufraction.io/gpu-memory", "1Gi")))
    for each in waiting:
        counted = each["spec"]["containers"][0]["resources"]["requests"]["gpufraction.io/gpu-memory"]
        assert (each["spec"]["schedulingGates"], counted > "0") == ([{"name": "gpufraction.io/allocation"}], True)
    scenarios.settled(hostile.kube, len(waiting), running=len(waiting))


class Creator:
    """A user who creates bare pods in a namespace, one after another, and deletes them at once."""

    def __init__(self, attacked: Hostile, namespace: str) -> None:
        self._attacked, self._namespace = attacked, namespace
        self.created: list[JSON] = []
        self.refused: list[KubeError] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._create, daemon=True)

    def __enter__(self) -> Creator:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join(60)

    @property
    def tried(self) -> int:
        return len(self.created) + len(self.refused)

    def _create(self) -> None:
        for which in itertools.cycle(("whole", "native", "hami", "nano")):
            if self._stop.is_set():
                return
            try:
                made = self._attacked.create(BY_PERCENT[which], self._namespace)
                self.created.append(made)
                path = paths.pods(self._namespace, made["metadata"]["name"])
                with contextlib.suppress(KubeNotFound):  # a deletion that was sent again after a connection had ended
                    self._attacked.kube.delete(path, {"gracePeriodSeconds": 0})
            except KubeError as error:
                self.refused.append(error)


def _went_on(free: Creator, bound: Creator, before: tuple[int, int]) -> bool:
    """Whether both have created some pods since."""
    return free.tried > before[0] + 5 and bound.tried > before[1] + 5


@pytest.mark.long
@pytest.mark.parametrize("pause", [pytest.param(0.0, id="at once"), pytest.param(5.0, id="after five seconds")])
def test_no_pod_is_refused_while_the_allocators_restart_one_after_the_other(attacked: Hostile, pause: float) -> None:
    """Before, bare pods of whole GPUs and percentages were refused with 403, and nothing creates a bare pod again."""
    quota = paths.path("v1", "resourcequotas", NEIGHBOUR)
    attacked.kube.create(quota, {"metadata": {"name": "none"}, "spec": {"hard": {MEMORY: "0"}}})
    try:
        wait_for(lambda: bool(attacked.kube.get(f"{quota}/none").get("status", {}).get("hard")), "no status")
        with Creator(attacked, TENANT) as free, Creator(attacked, NEIGHBOUR) as bound:
            for replica in attacked.cluster.replicas:
                program = attacked.cluster.programs[replica.name("allocator")]
                program.kill()
                before = free.tried, bound.tried
                wait_for(partial(_went_on, free, bound, before), "nobody creates pods")
                time.sleep(pause)
                program.start()
                ready = f"{attacked.cluster.allocator_url(replica.number)}/readyz"
                wait_for(partial(healthy, ready), "the allocator is not ready again")
    finally:
        attacked.kube.delete(f"{quota}/none")
    assert free.refused == []
    assert bound.created == []
    assert all("exceeded quota" in str(error) for error in bound.refused), bound.refused[:3]
    counted = [each["spec"]["containers"][0]["resources"]["requests"][str(GPU_MEMORY)] for each in free.created]
    assert all(quantity.integer(amount) > 0 for amount in counted)
    waiting = sum(bool(each["spec"].get("schedulingGates")) for each in free.created)
    print(f"{len(free.created)} pods created, {waiting} of them behind the gate; {len(bound.refused)} beyond the quota")
    assert waiting > 0


@pytest.mark.long
def test_what_waits_by_percent_is_counted_with_the_least_that_it_will_have(hostile: Hostile) -> None:
    with asking(hostile, leads=False) as number:
        before = asked(hostile, number).get("not-leading", 0)
        made = hostile.create(BY_PERCENT["hami"])
        assert asked(hostile, number)["not-leading"] == before + 1
    counted = made["spec"]["containers"][0]["resources"]["requests"]["gpufraction.io/gpu-memory"]
    assert counted not in ("", "0")
    scenarios.settled(hostile.kube, 1, running=1)
