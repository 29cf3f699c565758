"""What a change of leaders costs while many pods wait: each pod is written once before anything is decided."""

from __future__ import annotations

import functools
import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from contract import names, pods
from playground import scenarios
from playground.cluster import Cluster
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube
from tests.builders import pod
from tests.cluster.system import invariants
from tests.stress.storm.storm import Storm

CARDS, WAITING = 16, 1000
_BARRED = re.compile(r"pending pods fenced.*pods=1000 left=0 seconds=\S+")


@pytest.mark.storm
@pytest.mark.timeout(600)
def test_a_leader_takes_over_a_thousand_pods_that_wait(two_replicas: Cluster) -> None:
    def create(number: int) -> None:
        kube = Kube.connect(kubeconfig=str(two_replicas.kubeconfig), user_agent="client")
        for each in range(number, CARDS + WAITING, 4):
            made = pod(f"pod-{each}").asks("gpufraction.io/gpu-memory", "20000Mi").tolerates("nvidia.com/gpu")
            kube.create(paths.pods("default"), made.manifest())

    with ThreadPoolExecutor(4) as clients:
        list(clients.map(create, range(4)))
    # A list of a thousand pods takes time that the cluster itself needs.
    wait = functools.partial(wait_for, timeout=240, every=1.0)
    wait(lambda: settled(two_replicas) == CARDS + WAITING, lambda: f"{settled(two_replicas)} run or wait")
    assert Storm(two_replicas, pods=0).kill_leader()
    logs = [two_replicas.programs[replica.name("allocator")].log for replica in two_replicas.replicas]
    lines: list[str] = []

    def barred() -> bool:
        lines[:] = [line for log in logs for line in _BARRED.findall(log.read_text())]
        return bool(lines)

    wait(barred, lambda: "it is not said that all are touched")
    assert touched(two_replicas) == WAITING + 1, "and the one by which the watch is known to be up to date"
    print(*lines, sep="\n")
    two_replicas.kube.delete(paths.pods("default", running(two_replicas)[0]))
    wait(lambda: len(running(two_replicas)) == CARDS, lambda: "the next is not placed")
    invariants.check(two_replicas)


def settled(cluster: Cluster) -> int:
    """Pods that run, or wait with a reason."""
    return sum(bool(scenarios.is_running(p) or scenarios.waits(p)) for p in scenarios.all_pods(cluster.kube))


def touched(cluster: Cluster) -> int:
    """Pods that a leader has written to."""
    return sum(names.FENCE in pods.annotations_of(p) for p in scenarios.all_pods(cluster.kube))


def running(cluster: Cluster) -> list[str]:
    """The names of the running pods."""
    return [p["metadata"]["name"] for p in scenarios.all_pods(cluster.kube) if scenarios.is_running(p)]
