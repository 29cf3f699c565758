"""
A storm with preemption: priorities, disruption budgets, killed leaders and failing requests.

Every pod takes a whole card, so that each pod of higher priority needs exactly one eviction.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from contract import pods
from playground import scenarios
from playground.machinery.kubelet.podrun import RUN_SECONDS
from playground.shapes import gpu_node
from playground.waiting import wait_for
from runtime.kubernetes import paths
from tests.builders import PodBuilder, pod
from tests.cluster.system import invariants
from tests.cluster.trouble.conftest import Troubled
from tests.cluster.trouble.proxy import Drop, Late, Lose, Refuse
from tests.clusters import only_real
from tests.stress.storm.evictions import Witness, watching
from tests.stress.storm.storm import KEPT, Storm

CLASSES = {"low": 10, "middle": 100, "high": 1000}
CARDS, LEAST = 16, 4
GUARD = "guarded"
"""A label of pods of which a disruption budget requires `LEAST` to stay."""
WEATHER = ((0.04, Refuse(429, "TooManyRequests")), (0.02, Drop()), (0.03, Lose()), (0.03, Late(0.3)))


@pytest.fixture(params=only_real())
def preempting(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Troubled]:
    """Two replicas, each behind a proxy, that may evict."""
    troubled = Troubled(
        request.param,
        tmp_path_factory.mktemp("preempting"),
        nodes=tuple(gpu_node(f"n{i}", "4 x NVIDIA A10 23028MiB") for i in range(4)),
        flags=("--preemption",),
        components=("allocator-eviction",),
    )
    try:
        with troubled.cluster:
            kube = troubled.cluster.kube
            for name, value in CLASSES.items():
                kube.create(paths.priorityclasses(), {"metadata": {"name": name}, "value": value})
            selector = {"matchLabels": {GUARD: "yes"}}
            budget = {"metadata": {"name": GUARD}, "spec": {"minAvailable": LEAST, "selector": selector}}
            kube.create(paths.poddisruptionbudgets("default"), budget)
            yield troubled
    finally:
        for proxy in troubled.proxies.values():
            proxy.close()


def whole(name: str, priority: str, **spec: Any) -> PodBuilder:
    """A pod that takes a card."""
    made = pod(name).asks("gpufraction.io/gpu-memory", "20000Mi").tolerates("nvidia.com/gpu")
    return made.spec(priorityClassName=priority, terminationGracePeriodSeconds=1, **spec)


def mixed(name: str, rng: random.Random) -> PodBuilder:
    """A pod of some priority; some end by themselves, and some of the lowest priority are guarded."""
    priority = rng.choice(("low", "low", "low", "middle", "middle", "high"))
    if priority == "low" and rng.random() < 0.3:
        return whole(name, priority).labelled(GUARD, "yes").labelled(KEPT, "yes")
    if rng.random() < 0.4:
        return whole(name, priority, restartPolicy="Never").annotated(RUN_SECONDS, rng.choice(("1", "3")))
    return whole(name, priority)


@pytest.mark.storm
@pytest.mark.timeout(900)
def test_a_storm_with_preemption(preempting: Troubled) -> None:
    cluster = preempting.cluster
    strikes = iter(range(10**6))

    def strike(storm: Storm) -> bool:
        return preempting.cut_watches() > 0 if next(strikes) % 2 else storm.kill_leader()

    storm = Storm(cluster, pods=120, strike=strike, strike_every=1.5, seed=11, make=mixed)
    with watching(str(cluster.kubeconfig), storm.deletes, GUARD) as witness:
        storm.evicted = witness.evicted
        for gust in range(2):
            with preempting.weather(gust, *WEATHER) as faults:
                storm.blow()
            storm.settle(timeout=240)
            invariants.check(cluster)  # a quiet point
            assert (storm.refused, storm.strikes > 0, any(fault.hits for fault in faults)) == ([], True, True)
            judge(witness)
            exactly_as_many_go_as_are_needed(preempting, storm, witness, gust)


def judge(witness: Witness) -> None:
    """Judge what happened to the evicted pods."""
    evictions = witness.evictions()
    assert [each for each in evictions if each.priority >= each.highest_waiting] == [], "somebody more worthy waited"
    assert [each for each in evictions if each.guarded_left is not None and each.guarded_left < LEAST] == []
    assert len(evictions) <= witness.waited(CLASSES["low"]), "nobody has two go for it"


def exactly_as_many_go_as_are_needed(trouble: Troubled, storm: Storm, witness: Witness, gust: int) -> None:
    """Once no pod ends by itself any more, three pods with the highest priority arrive and three pods are evicted."""
    kube = trouble.cluster.kube

    def lasting() -> int:
        running = [p for p in scenarios.all_pods(kube) if scenarios.is_running(p)]
        return sum(RUN_SECONDS not in pods.annotations_of(p) for p in running)

    wait_for(lambda: lasting() == CARDS, lambda: f"{lasting()} run for good", timeout=240, every=0.5)
    before = witness.evicted()
    urgent = [f"urgent-{gust}-{number}" for number in range(3)]
    for name in urgent:
        kube.create(paths.pods("default"), whole(name, "system-node-critical").manifest())
        storm.created.append(name)
    storm.settle(timeout=120)

    def run() -> set[str]:
        return {p["metadata"]["name"] for p in scenarios.all_pods(kube) if scenarios.is_running(p)}

    wait_for(lambda: run() >= set(urgent), lambda: f"{set(urgent) - run()} do not run")
    assert len(witness.evicted() - before) == len(urgent)
