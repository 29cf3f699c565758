"""Names that are nearly right: the pod is refused if it would hold a whole card, and otherwise the name is reported."""

from __future__ import annotations

from typing import Any

import pytest

from playground import scenarios
from playground.cluster import Cluster
from runtime.kubernetes import paths
from runtime.kubernetes.client import KubeInvalid
from tests.builders import PodBuilder, pod

pytestmark = pytest.mark.system

BESIDE = {
    "HAMi's memory": (
        pod("p").asks("nvidia.com/gpu", 1).asks("nvidia.com/gpu-mem", 3000),
        "nvidia.com/gpu-mem",
        "nvidia.com/gpumem",
    ),
    "nano-gpu's percent": (
        pod("p").asks("nvidia.com/gpu", 1).asks("nano-gpu/gpu-percentage", 20),
        "nano-gpu/gpu-percentage",
        "nano-gpu/gpu-percent",
    ),
    "our own": (
        pod("p").asks("gpufraction.io/gpu-count", 1).asks("gpufraction.io/gpu-mem", "1Gi"),
        "gpufraction.io/gpu-mem",
        "gpufraction.io/gpu-memory",
    ),
    "our own alone": (
        pod("p").asks("gpufraction.io/gpumemory", "1Gi"),
        "gpufraction.io/gpumemory",
        "gpufraction.io/gpu-memory",
    ),
}


@pytest.mark.parametrize(("made", "found", "near"), BESIDE.values(), ids=BESIDE.keys())
def test_a_misspelt_resource_does_not_hold_a_whole_card(
    cluster: Cluster, made: PodBuilder, found: str, near: str
) -> None:
    with pytest.raises(KubeInvalid) as refused:
        create(cluster, made)
    assert f"[{found}]: found an unknown resource; did you mean {near}?" in str(refused.value)
    assert scenarios.all_pods(cluster.kube) == []


def test_alone_it_waits_for_a_resource_that_no_node_has(cluster: Cluster) -> None:
    made = create(cluster, pod("alone").asks("aliyun.com/gpumem", 2))
    assert "schedulingGates" not in made["spec"]
    assert made["spec"]["containers"][0]["resources"]["limits"] == {"aliyun.com/gpumem": "2"}


def test_other_vendors_names_are_left_alone(cluster: Cluster) -> None:
    for resource in ("nvidia.com/mig-1g.5gb", "nvidia.com/gpu.shared", "elasticgpu.io/pgpu"):
        made = create(cluster, pod(f"p-{resource.split('/')[1].replace('.', '-')}").asks(resource, 1))
        assert made["spec"]["containers"][0]["resources"]["limits"] == {resource: "1"}


def create(cluster: Cluster, made: PodBuilder) -> dict[str, Any]:
    return cluster.kube.create(paths.pods("default"), made.manifest())
