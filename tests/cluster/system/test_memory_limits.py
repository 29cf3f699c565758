"""
Memory limits above requests: they are allowed only on nodes that enforce them, allocated by the request, and bounded if
an option says so.

The nodes enforce them with the preloaded library, which is simulated: the agents find a file that looks like it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contract import names
from playground import scenarios
from playground.cluster import Cluster
from playground.tenants import limiter
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import KubeError
from tests.builders import PodBuilder, pod
from tests.cluster.system import invariants
from tests.clusters import control_planes

pytestmark = [pytest.mark.system, pytest.mark.long]
JSON = dict[str, Any]
GIB = 1 << 30
KAI = "nvidia.com/container.main.gpu-memory"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the library, which does not exist yet."""
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
        allow(cluster, "3")
        yield cluster


def allow(cluster: Cluster, ratio: str, *more: str) -> None:
    """Make the agents publish the option; none if it is empty."""
    text = "\n".join([*([f"memoryLimitRatio: {ratio}"] if ratio else []), *more])
    cluster.kube.patch_merge(paths.configmaps(names.NAMESPACE, names.OPTIONS), {"data": {names.OPTIONS_FILE: text}})
    count = len(more) + bool(ratio)

    def published(gpunode: JSON) -> bool:
        options = (gpunode.get("status") or {}).get("options") or []
        found = {each["name"]: each["value"] for each in options}
        return len(found) == count and float(found.get("memoryLimitRatio", 0)) == float(ratio or 0)

    def counted(node: JSON) -> bool:
        return (str(names.GPU_MEMORY_LIMIT) in node["status"]["allocatable"]) == bool(ratio)

    wait_for(lambda: all(map(published, cluster.kube.list(paths.gpunodes()).items)), "the option is not published", 30)
    wait_for(lambda: all(map(counted, cluster.kube.list(paths.nodes()).items)), "the capacities do not follow", 30)


def t4(name: str, memory: str = "4Gi", limit: str = "12Gi") -> PodBuilder:
    made = pod(name).asks("gpufraction.io/gpu-memory", memory).spec(nodeSelector={"gpushare": "true"})
    return made.asks("gpufraction.io/gpu-memory-limit", limit) if limit else made


def create(cluster: Cluster, *made: PodBuilder) -> None:
    for each in made:
        cluster.kube.create(paths.pods("default"), each.manifest())


def condition(cluster: Cluster, name: str) -> JSON:
    return scenarios.condition(cluster.kube.get(paths.pods("default", name)))


def await_reason(cluster: Cluster, name: str, reason: str) -> str:
    """The message of the pod, once it waits for this reason."""
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
    """The metric by GPU of the node t4, without zeros."""
    found = invariants.figures(cluster).items()
    return {
        name.split('gpu="')[1][:-2]: value for name, value in found if name.startswith(f'{metric}{{node="t4"') and value
    }


def test_a_pod_bursts_only_where_its_limit_is_held(limiting: Cluster, library: Path) -> None:
    cluster = limiting
    hard = {f"requests.{each}": "100Gi" for each in (names.GPU_MEMORY, names.GPU_MEMORY_LIMIT)}
    quota = {"metadata": {"name": "gpus"}, "spec": {"hard": hard}}
    cluster.kube.create(paths.path("v1", "resourcequotas", "default"), quota)
    create(cluster, t4("bursts"), t4("plain", "2Gi", ""), t4("is-its-request", "2Gi", "2Gi"))
    await_running(cluster, "plain", "is-its-request")
    message = await_reason(cluster, "bursts", "LimitNotHeld")
    assert "enforce no memory limit above the request" in message
    limiter.install(library)
    await_running(cluster, "bursts")
    (container,) = cluster.kube.get(paths.pods("default", "bursts"))["spec"]["containers"]
    counted = {"gpufraction.io/gpu-memory": "4Gi", "gpufraction.io/gpu-memory-limit": "12Gi"}
    assert container["resources"] == {"limits": counted, "requests": counted}
    seen = environment(cluster, "bursts")
    assert {key: seen[key] for key in sorted(seen) if key.startswith(("NVIDIA_GPU", "CUDA_", "GPUFRACTION_M"))} == {
        "CUDA_DEVICE_MEMORY_LIMIT": "12288m",
        "CUDA_DEVICE_SM_LIMIT": "0",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "100",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=12288M",
        "GPUFRACTION_MEMORY_FRACTION": "0.333333",
        "GPUFRACTION_MEMORY_LIMIT_MIB": "12288",
        "GPUFRACTION_MEMORY_MIB": "4096",
    }
    used = cluster.kube.get(paths.path("v1", "resourcequotas", "default", "gpus"))["status"]["used"]
    assert used == {"requests.gpufraction.io/gpu-memory": "8Gi", "requests.gpufraction.io/gpu-memory-limit": "12Gi"}
    cluster.kube.delete(paths.path("v1", "resourcequotas", "default", "gpus"))
    assert sum(on_cards(cluster, "gpufraction_gpu_memory_allocated_bytes").values()) == 8 * GIB
    assert sum(on_cards(cluster, "gpufraction_gpu_memory_limits_bytes").values()) == 16 * GIB
    with pytest.raises(KubeError, match="do not allow a memory limit this far above the request") as refused:
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
    variables = ("GPUFRACTION_MEMORY_MIB", "GPUFRACTION_MEMORY_LIMIT_MIB")
    found = {
        name: [environment(cluster, name)[key] for key in variables]
        for name in ("by-container", "short", "limit-alone")
    }
    assert found == {"by-container": ["4096", "12288"], "short": ["4096", "12288"], "limit-alone": ["2048", "2048"]}
    invariants.check(cluster)
    scenarios.clear(cluster.kube)


def test_a_limit_is_at_most_the_options_multiple_of_its_own_request(limiting: Cluster, library: Path) -> None:
    cluster = limiting
    limiter.install(library)
    allow(cluster, "1.5")
    with pytest.raises(KubeError, match="do not allow a memory limit this far above the request"):
        create(cluster, t4("far"))
    create(cluster, t4("near", limit="6Gi"))
    await_running(cluster, "near")
    # A running pod keeps its limit. Without the option no other pod gets one.
    allow(cluster, "")
    with pytest.raises(KubeError, match="do not allow a memory limit this far above the request"):
        create(cluster, t4("none", limit="4097Mi"))
    assert environment(cluster, "near")["GPUFRACTION_MEMORY_LIMIT_MIB"] == "6144"
    invariants.check(cluster)
    scenarios.clear(cluster.kube)
    allow(cluster, "3")


def test_limits_in_all_refuse_pods_that_burst_and_no_others(limiting: Cluster, library: Path) -> None:
    """If cards promise twice what they have, the sum of limits reaches its bound sooner."""
    cluster = limiting
    limiter.install(library)
    allow(cluster, "1.75", "deviceMemoryScaling: 2")
    create(cluster, *(t4(f"p{number}", "7Gi", "12Gi") for number in range(4)))
    await_running(cluster, *(f"p{number}" for number in range(4)))
    create(cluster, t4("p4", "7Gi", "12Gi"), *(t4(f"plain{number}", "7Gi", "") for number in range(2)))
    assert "memory limits would exceed their maximum sum" in await_reason(cluster, "p4", "LimitsInAll")
    await_running(cluster, "plain0", "plain1")
    scenarios.clear(cluster.kube)
    allow(cluster, "3")
