"""A new node with the startup taint: pods wait until the agent has published the GPUs and removed the taint."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from contract import names
from playground import scenarios
from playground.cluster import Cluster
from playground.shapes import gpu_node
from playground.waiting import wait_for
from runtime.kubernetes import paths
from tests.builders import pod
from tests.clusters import control_planes

pytestmark = pytest.mark.system
JSON = dict[str, Any]
STARTUP = f"{names.STARTUP_TAINT}=true:NoSchedule"
OTHER = "nvidia.com/gpu=present:NoSchedule"
WORKER = pod("p").asks("gpufraction.io/gpu-memory", "4Gi").tolerates("nvidia.com/gpu")
NODES = (gpu_node("new", "2 x Tesla T4 15109MiB", taints=(OTHER, STARTUP)),)


@pytest.fixture(scope="module", params=control_planes(long=True))
def starting(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of one starting node, whose agent may remove the taint."""
    directory = tmp_path_factory.mktemp("starting")
    with Cluster(
        directory=directory, nodes=NODES, components=("startup-taint",), control_plane=request.param
    ) as cluster:
        yield cluster


def taints(cluster: Cluster) -> set[str]:
    """The keys of the node's taints."""
    return {taint["key"] for taint in cluster.kube.get(paths.nodes("new"))["spec"].get("taints") or ()}


def put_on_again(cluster: Cluster) -> None:
    node = cluster.kube.get(paths.nodes("new"))
    again = [*node["spec"]["taints"], {"key": str(names.STARTUP_TAINT), "effect": "NoSchedule"}]
    cluster.kube.patch_merge(paths.nodes("new"), {"spec": {"taints": again}})


def test_the_taint_goes_when_the_gpus_are_published_and_the_others_stay(starting: Cluster) -> None:
    wait_for(lambda: taints(starting) == {"nvidia.com/gpu"}, lambda: f"the node has {taints(starting)}")
    assert starting.kube.get(paths.gpunodes("new"))["status"]["summary"]["healthy"] == 2


def test_a_taint_that_is_put_on_again_goes_again_and_pods_run(starting: Cluster) -> None:
    wait_for(lambda: taints(starting) == {"nvidia.com/gpu"}, lambda: f"the node has {taints(starting)}")
    put_on_again(starting)
    starting.kube.create(paths.pods("default"), WORKER.manifest())
    scenarios.settled(starting.kube, 1, running=1)
    # The allocator may still have had the node without the taint when it placed the pod.
    wait_for(lambda: taints(starting) == {"nvidia.com/gpu"}, lambda: f"the node has {taints(starting)}")
    scenarios.clear(starting.kube)


def test_a_pod_waits_for_the_startup_taint_and_runs_once_an_agent_removes_it(
    starting: Cluster,
) -> None:
    wait_for(lambda: taints(starting) == {"nvidia.com/gpu"}, lambda: f"the node has {taints(starting)}")
    agent = starting.programs["nodeagent-new"]
    agent.kill()
    put_on_again(starting)
    # The allocator may still have the node without the taint.
    dry_run = {"dryRun": "All"}
    wait_for(
        lambda: bool(
            starting.kube.create(paths.pods("default"), WORKER.manifest(), dry_run)["spec"].get("schedulingGates")
        ),
        "the pod would still be placed",
    )
    starting.kube.create(paths.pods("default"), WORKER.manifest())
    (waiting,) = scenarios.settled(starting.kube, 1)
    messages = [
        each["message"] for each in waiting["status"]["conditions"] if each["type"] == names.ALLOCATED_CONDITION
    ]
    assert "until the node's GPUs are published" in messages[0]
    agent.start()
    scenarios.settled(starting.kube, 1, running=1)
    assert taints(starting) == {"nvidia.com/gpu"}
    scenarios.clear(starting.kube)
