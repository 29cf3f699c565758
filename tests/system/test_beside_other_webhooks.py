"""Another mutating webhook changes the pod after ours: we are called again, and the pod keeps its one share."""

from __future__ import annotations

from typing import Any

import pytest

from contract import names
from playground import scenarios
from playground.cluster import Cluster
from runtime import kubepaths
from tests.builders import PodBuilder, pod
from tests.system import sidecars

pytestmark = pytest.mark.system


@pytest.mark.parametrize("pin", ["auto", "affinity"])
def test_a_container_that_another_webhook_adds_sees_no_gpu(cluster: Cluster, pin: str) -> None:
    builder = pod("meshed").labelled("sidecar", "yes").asks("nano-gpu/gpu-percent", 20).annotated(names.PLACEMENT, pin)
    with sidecars.registered(cluster.kube):
        # A configuration takes a moment until every API server calls it.
        scenarios.wait_for(
            lambda: len(_create(cluster, builder, dry_run=True)["spec"]["containers"]) == 2,
            lambda: "the other webhook is not called",
        )
        _create(cluster, builder)
    (found,) = scenarios.settled(cluster.kube, 1)
    assert [c["name"] for c in found["spec"]["containers"]] == ["main", "proxy"]
    assert len(scenarios.held(found)) == 1
    assert "GPU 0: Tesla T4" in scenarios.printed(cluster.kube, found, "main")
    proxy = scenarios.printed(cluster.kube, found, "proxy")
    assert f"NVIDIA_VISIBLE_DEVICES={names.NO_DEVICES}" in proxy.splitlines()
    assert "UUID" not in proxy


def _create(cluster: Cluster, builder: PodBuilder, *, dry_run: bool = False) -> dict[str, Any]:
    manifest = builder.manifest()
    return cluster.kube.create(kubepaths.pods("default"), manifest, {"dryRun": "All"} if dry_run else None)
