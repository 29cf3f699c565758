"""The samples, one by one: the result of each, as the API server reports it."""

from __future__ import annotations

import pytest

from playground import scenarios
from playground.cluster import Cluster
from playground.scenarios import SCENARIOS, Scenario
from playground.waiting import wait_for
from runtime.kubernetes import paths

pytestmark = pytest.mark.system


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.title)
def test_a_sample_goes_in_unchanged(cluster: Cluster, scenario: Scenario) -> None:
    scenarios.submit(cluster.kube, scenario)
    found = scenarios.settled(cluster.kube, scenario.pods)
    assert (scenarios.outcome(found), scenarios.missing_lines(cluster.kube, scenario, found)) == (scenario.want, [])


def test_every_sample_has_its_outcome() -> None:
    assert {sample for s in SCENARIOS for sample in (s.sample, *s.before)} == {
        path.name for path in scenarios.SAMPLES.glob("*.yaml")
    }


def test_deleting_one_running_pod_starts_exactly_one_that_waited(cluster: Cluster) -> None:
    scenario = next(s for s in SCENARIOS if s.sample == "4paradigm-vgpu.yaml")
    scenarios.submit(cluster.kube, scenario)
    before = scenarios.settled(cluster.kube, 10)
    waited = {p["metadata"]["uid"] for p in before if scenarios.waits(p)}
    ran = {p["metadata"]["uid"] for p in before if scenarios.is_running(p)}
    victim = next(p for p in before if scenarios.is_running(p))["metadata"]
    cluster.kube.delete(paths.pods("default", victim["name"]))
    wait_for(
        lambda: victim["uid"] not in {p["metadata"]["uid"] for p in scenarios.all_pods(cluster.kube)},
        lambda: f"{victim['name']} is still there",
    )
    after = scenarios.settled(cluster.kube, 10, running=6)
    running = {p["metadata"]["uid"] for p in after if scenarios.is_running(p)}
    assert len(running) == 6
    assert running >= ran - {victim["uid"]}
    assert len(running & waited) == 1
