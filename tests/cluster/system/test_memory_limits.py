"""
Memory limits above requests: only where a node enforces them, booked by the request, and bounded where that is set.

The nodes enforce by the preloaded library, which is played: the agents find a file that looks like one.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contract import names, pods
from playground import scenarios
from playground.cluster import Cluster
from playground.tenants import limiter
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import KubeError
from tests.builders import PodBuilder, pod
from tests.cluster.system import invariants
from tests.clusters import control_planes

pytestmark = pytest.mark.system
JSON = dict[str, Any]
GIB = 1 << 30
KAI = "nvidia.com/container.main.gpu-memory"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the library, which is not there so far."""
    return tmp_path_factory.mktemp("library") / "library"


@pytest.fixture(scope="module", params=control_planes())
def limiting(
    request: pytest.FixtureRequest, library: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """A cluster whose agents look for a library in that folder."""
    directory = tmp_path_factory.mktemp("limiting")
    limiter.remove(library)
    with Cluster(
        directory=directory, settings={"nodeagent": limiter.agents(library)}, control_plane=request.param
    ) as cluster:
        yield cluster


def t4(name: str, memory: str = "4Gi", limit: str = "12Gi") -> PodBuilder:
    made = pod(name).asks("gpufraction.io/gpu-memory", memory).spec(nodeSelector={"gpushare": "true"})
    return made.asks("gpufraction.io/gpu-memory-limit", limit) if limit else made


def create(cluster: Cluster, *made: PodBuilder) -> None:
    for each in made:
        cluster.kube.create(paths.pods("default"), each.manifest())


def condition(cluster: Cluster, name: str) -> JSON:
    return scenarios.condition(cluster.kube.get(paths.pods("default", name)))


def await_reason(cluster: Cluster, name: str, reason: str) -> str:
    """What the pod that waits for this reason is told."""
    wait_for(
        lambda: condition(cluster, name).get("reason") == reason,
        lambda: f"{name} says {condition(cluster, name)}, not {reason}",
    )
    return str(condition(cluster, name)["message"])


def await_running(cluster: Cluster, *wanted: str) -> None:
    def running() -> set[str]:
        return {p["metadata"]["name"] for p in scenarios.all_pods(cluster.kube) if scenarios.is_running(p)}

    wait_for(lambda: running() >= set(wanted), lambda: f"{running()} run, not {wanted}")


def environment(cluster: Cluster, name: str) -> dict[str, str]:
    lines = scenarios.printed(cluster.kube, cluster.kube.get(paths.pods("default", name))).splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


def on_cards(cluster: Cluster, metric: str) -> dict[str, float]:
    """The metric by GPU of the node t4, where it is not 0."""
    found = invariants.figures(cluster).items()
    return {
        name.split('gpu="')[1][:-2]: value for name, value in found if name.startswith(f'{metric}{{node="t4"') and value
    }


def test_a_pod_bursts_only_where_its_limit_is_held(limiting: Cluster, library: Path) -> None:
    cluster = limiting
    quota = {"metadata": {"name": "gpus"}, "spec": {"hard": {"requests.gpufraction.io/gpu-memory": "100Gi"}}}
    cluster.kube.create(paths.path("v1", "resourcequotas", "default"), quota)
    create(cluster, t4("bursts"), t4("plain", "2Gi", ""), t4("is-its-request", "2Gi", "2Gi"))
    await_running(cluster, "plain", "is-its-request")
    told = await_reason(cluster, "bursts", "LimitNotHeld")
    assert "enforce no memory limit above the request" in told
    limiter.install(library)
    await_running(cluster, "bursts")
    assert "gpufraction.io/gpu-memory-limit" not in str(cluster.kube.get(paths.pods("default", "bursts"))["spec"])
    seen = environment(cluster, "bursts")
    assert {key: seen[key] for key in sorted(seen) if key.startswith(("NVIDIA_GPU", "CUDA_", "GPUFRACTION_M"))} == {
        "CUDA_DEVICE_MEMORY_LIMIT": "12288m",
        "CUDA_DEVICE_SM_LIMIT": "0",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "100",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=12288M",
        "GPUFRACTION_MEMORY_FRACTION": "0.333333",
        "NVIDIA_GPU_MEMORY_LIMIT": "12288",
        "NVIDIA_GPU_MEMORY_REQUEST": "4096",
    }
    used = cluster.kube.get(paths.path("v1", "resourcequotas", "default", "gpus"))["status"]["used"]
    assert used == {"requests.gpufraction.io/gpu-memory": "8Gi"}
    cluster.kube.delete(paths.path("v1", "resourcequotas", "default", "gpus"))
    assert sum(on_cards(cluster, "gpufraction_gpu_memory_allocated_bytes").values()) == 8 * GIB
    assert sum(on_cards(cluster, "gpufraction_gpu_memory_limits_bytes").values()) == 16 * GIB
    with pytest.raises(KubeError, match="cannot hold the memory limit") as refused:
        create(cluster, t4("too-far", limit="40Gi"))
    assert "wanted 40960" in str(refused.value)
    invariants.check(cluster)
    scenarios.clear(cluster.kube)


def test_kais_annotations_mean_the_same(limiting: Cluster, library: Path) -> None:
    cluster = limiting
    limiter.install(library)
    t4_only = {"nodeSelector": {"gpushare": "true"}, "schedulerName": "kai-scheduler"}
    create(
        cluster,
        pod("by-container").annotated(f"{KAI}.request", "4Gi").annotated(f"{KAI}.limit", "12Gi").spec(**t4_only),
        pod("short").annotated("gpu-memory", "4096").annotated("gpu-memory.limit", "12Gi").spec(**t4_only),
        pod("limit-alone").annotated(f"{KAI}.limit", "2Gi").spec(**t4_only),
    )
    await_running(cluster, "by-container", "short", "limit-alone")
    asked = ("NVIDIA_GPU_MEMORY_REQUEST", "NVIDIA_GPU_MEMORY_LIMIT")
    found = {
        name: [environment(cluster, name)[key] for key in asked] for name in ("by-container", "short", "limit-alone")
    }
    assert found == {"by-container": ["4096", "12288"], "short": ["4096", "12288"], "limit-alone": ["2048", "2048"]}
    invariants.check(cluster)
    scenarios.clear(cluster.kube)


def test_the_limits_of_a_card_add_up_to_no_more_than_the_option_says(limiting: Cluster, library: Path) -> None:
    cluster = limiting
    limiter.install(library)
    options = paths.configmaps(names.NAMESPACE, names.OPTIONS)

    def write(text: str, wanted: list[JSON]) -> None:
        cluster.kube.patch_merge(options, {"data": {names.OPTIONS_FILE: text}})
        wait_for(
            lambda: cluster.kube.get(paths.gpunodes("t4"))["status"]["options"] == wanted, "the option is not published"
        )

    write("memoryLimitRatio: 1.75", [{"name": "memoryLimitRatio", "value": "1.75"}])
    # Two limits of 12 GiB are within 1.75 times a card's 15109 MiB, three are not.
    create(cluster, *(t4(f"p{number}", "2Gi") for number in range(4)))
    await_running(cluster, *(f"p{number}" for number in range(4)))
    limits = on_cards(cluster, "gpufraction_gpu_memory_limits_bytes")
    assert list(limits.values()) == [24 * GIB, 24 * GIB]
    create(cluster, t4("p4", "2Gi"), t4("plain", "1Gi", ""))
    assert "memory limits would add up to too much" in await_reason(cluster, "p4", "LimitsInAll")
    await_running(cluster, "plain")
    invariants.check(cluster)
    write("", [])
    await_running(cluster, "p4")
    assert names.GATE not in pods.gates(cluster.kube.get(paths.pods("default", "p4")))
    invariants.check(cluster)
    scenarios.clear(cluster.kube)
