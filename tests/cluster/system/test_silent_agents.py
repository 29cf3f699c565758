"""
An agent ends: its node takes no new pods, running pods continue, and a waiting pod is placed when the agent is back.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from playground import scenarios
from playground.cluster import Cluster
from playground.shapes import gpu_node
from playground.waiting import wait_for
from runtime.kubernetes import paths
from tests.builders import PodBuilder, pod
from tests.cluster.system import invariants
from tests.clusters import control_planes

pytestmark = pytest.mark.system
SETTINGS = {"nodeagent": ("--heartbeat", "10s"), "allocator": ("--agent-silence", "1s")}


@pytest.fixture(params=control_planes(long=True))
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    nodes = (gpu_node("t4", "1 x Tesla T4 15109MiB"),)
    with Cluster(nodes=nodes, directory=tmp_path, settings=SETTINGS, control_plane=request.param) as cluster:
        yield cluster
        invariants.check(cluster)


def share(name: str) -> PodBuilder:
    return pod(name).asks("gpufraction.io/gpu-memory", "2Gi")


def test_a_node_without_its_agent_takes_no_new_pods_until_it_is_back(cluster: Cluster) -> None:
    kube = cluster.kube
    kube.create(paths.pods("default"), share("runs").manifest())
    scenarios.settled(kube, 1, running=1)
    [name] = [name for name in cluster.programs if name.startswith("nodeagent")]
    agent = cluster.programs[name]
    agent.terminate()
    agent.wait()

    def silent() -> list[str]:
        found = kube.list(paths.events("default")).items
        return [each["involvedObject"]["name"] for each in found if each["reason"] == "AgentSilent"]

    wait_for(lambda: silent() == ["t4"], lambda: f"Events: {silent()}", 60.0)
    kube.create(paths.pods("default"), share("waits").manifest())

    def why() -> str:
        return str(scenarios.condition(kube.get(paths.pods("default", "waits"))).get("message", ""))

    wait_for(lambda: "1 whose agent has not reported for too long" in why(), lambda: f"it reads {why()!r}")
    assert scenarios.is_running(kube.get(paths.pods("default", "runs")))
    agent.start()
    scenarios.settled(kube, 2, running=2)
    assert silent() == ["t4"], "one Event for one silence"
