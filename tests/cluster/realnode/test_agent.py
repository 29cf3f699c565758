"""
What the agent finds and does on a real node: which container a process belongs to, what is added with the GPU, and what
outlives restarts.

The tests use the ids and control groups of real containers, and the agent's own CDI description, which real runtimes
read.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import replace

import pytest

from contract import names
from nodeagent.isolation.cdi import ISOLATION_VARIABLE
from nodeagent.isolation.preload import LIBRARY_IN_CONTAINER, PRELOAD_IN_CONTAINER
from playground import scenarios
from runtime.kubernetes import paths
from tests.cluster.realnode.cluster import NODE, RealNodeCluster, container
from tests.cluster.realnode.inside import Inside
from tests.cluster.realnode.test_container_view import CLOSED, share
from tests.cluster.realnode.ways import Way

pytestmark = [pytest.mark.realnode, pytest.mark.timeout(600)]
_PRELOAD = "/var/lib/gpufraction/preload"
_ELF = b"\x7fELF\x02" + bytes(13) + {"x86_64": 62, "aarch64": 183}[os.uname().machine].to_bytes(2, "little")
"""As much of a library as the agent reads."""


@pytest.fixture
def node(real: RealNodeCluster, way: Way) -> Iterator[RealNodeCluster]:
    """The node. Afterwards the agent is as it was."""
    yield real
    real.show_cards()
    real.start_agent()


def resources(node: RealNodeCluster) -> dict[str, str]:
    """Our resources in the node's capacity."""
    capacity = node.kube.get(paths.nodes(NODE))["status"]["capacity"]
    return {name: amount for name, amount in capacity.items() if name.startswith(names.GROUP)}


def with_library(seen: Inside) -> Inside:
    """The same container with the preloaded library."""
    # It shows the share as the whole card.
    ours = {ISOLATION_VARIABLE: "preload", "GPUFRACTION_MEMORY_FRACTION": "1"}
    environment = dict(sorted({**seen.environment, **ours}.items()))
    files = sorted((*seen.files, LIBRARY_IN_CONTAINER, PRELOAD_IN_CONTAINER))
    return replace(seen, environment=environment, files=tuple(files))


def test_memory_is_laid_to_its_container_which_is_warned_and_evicted_once(node: RealNodeCluster, way: Way) -> None:
    node.start_agent("--overuse-grace", "0s", "--overuse-slack", "0", "--evict-overuse", "1s")
    # It ends slowly, and several looks see it in the meantime.
    deaf = container(command=("sh", "-c", "trap '' TERM; echo done; while :; do sleep 1; done"), gpu_memory="4Gi")
    submitted = node.submit("deaf", deaf, terminationGracePeriodSeconds=4)
    node.submit("modest", container(gpu_memory="4Gi"))
    greedy, modest = (node.node.process_of(node.running(name)) for name in ("deaf", "modest"))
    node.show_cards(f"process 0 {greedy} {5 << 30}", f"process 0 {modest} {3 << 30}")
    node.await_deleted("deaf")
    events = node.events("deaf", submitted["metadata"]["uid"])
    reported = [line.partition("; ")[2] for line in events if line.startswith("GPUMemoryOveruse")]
    assert sorted(reported) == [
        "the pod is evicted as soon as its disruption budgets allow it",
        "the pod is evicted if this continues for 1 s",
    ]
    assert not any(line.startswith("GPUMemoryOveruse") for line in node.events("modest"))
    assert scenarios.is_running(node.running("modest"))


def test_what_runs_outlives_kubelet_runtime_and_agent(node: RealNodeCluster, way: Way) -> None:
    """
    Kubelet admits the pod again by the node's capacity, which nothing writes in the meantime.

    A runtime that was ended may restart its containers, as CRI-O was observed to do. They see what they saw before.
    """
    node.submit("a", container(gpu_memory="14Gi"))
    node.submit("b", container(gpu_memory="3Gi"))
    pod, before = node.running("b"), resources(node)
    assert set(before) == {names.GPU_MEMORY, names.GPU_CORES}
    node.stop_agent()
    node.restart_runtime()
    node.node.restart_kubelet()
    node.node.end(node.node.process_of(pod))
    assert node.inside("b", restart=1) == share(3072, 1)
    restarts = node.running("a")["status"]["containerStatuses"][0]["restartCount"]
    assert node.inside("a", restart=restarts) == share(14336, 0)
    assert resources(node) == before


def test_the_preloaded_library_comes_beside_the_gpu(node: RealNodeCluster, way: Way) -> None:
    if not way.kind:
        pytest.skip("devices that the toolkit makes up for itself stand no others beside them")
    name = f"libvgpu.so.{hashlib.sha256(_ELF).hexdigest()[:12]}"
    node.node.machine.write(f"{_PRELOAD}/{name}", _ELF)
    for file, text in (("current", name), ("ld.so.preload", LIBRARY_IN_CONTAINER)):
        node.node.machine.write(f"{_PRELOAD}/{file}", f"{text}\n")
    node.start_agent("--limiters-preload", _PRELOAD, "--limiters-cdi", "/var/run/cdi")
    node.await_gpunode(lambda status: status["isolation"] == ["preload", "watch"])
    node.submit("a", container(gpu_memory="4Gi"), container("idle"))
    assert node.inside("a") == with_library(share(4096, 0))
    assert node.inside("a", "idle") == CLOSED
