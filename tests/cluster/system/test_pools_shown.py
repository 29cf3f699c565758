"""What tenants and administrators see while a pod waits for a node of a pool, if no program serves the request."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from contract import names
from kubectl_gpufraction.__main__ import main
from playground import scenarios
from playground.cluster import DEFAULT_COMPONENTS, Cluster
from playground.waiting import wait_for
from runtime.kubernetes import paths
from tests.builders import pod
from tests.clusters import control_planes

pytestmark = [pytest.mark.system, pytest.mark.long]
JSON = dict[str, Any]
NODE = {"gpus": 2, "model": "Tesla T4", "gpuMemory": "15109Mi", "cpu": 30, "memory": "250Gi", "max": 3}
POOL = {"name": "t4", "nodeSelector": {"matchLabels": {"pool": "t4"}}, "node": NODE}


@pytest.fixture(params=control_planes())
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    """A cluster without nodes in which nodes are requested, and that serves no ProvisioningRequests."""
    with Cluster(
        nodes=(),
        directory=tmp_path,
        settings={"allocator": ("--provisioning-after", "1s")},
        control_plane=request.param,
        components=(*DEFAULT_COMPONENTS, "node-provisioning"),
    ) as cluster:
        path = paths.configmaps(names.NAMESPACE, names.OPTIONS)
        cluster.kube.patch_merge(path, {"data": {names.OPTIONS_FILE: yaml.safe_dump({"pools": [POOL]})}})
        yield cluster


def shown(cluster: Cluster, *arguments: str) -> str:
    out = io.StringIO()
    main([*arguments, "--kubeconfig", str(cluster.kubeconfig)], out=out, err=out, environment={})
    return out.getvalue()


def states(cluster: Cluster) -> list[str]:
    """The states of the pools; none before an allocator has written them."""
    text = shown(cluster, "pools", "-o", "json")
    return [row["state"] for row in json.loads(text)["items"]] if text.startswith("{") else []


def test_why_no_node_can_be_requested_is_shown(cluster: Cluster) -> None:
    wait_for(lambda: states(cluster) == ["no node"], lambda: shown(cluster, "pools"), 30.0)
    cluster.kube.create(paths.pods("default"), pod("waits").asks(str(names.GPU_MEMORY), "8Gi").manifest())
    wait_for(lambda: states(cluster) == ["could not be asked"], lambda: shown(cluster, "pools"), 30.0)
    assert "No nodes can be requested: ProvisioningRequests are not served" in shown(cluster, "pools")
    wait_for(lambda: "a node of pool t4 would" in shown(cluster, "explain", "waits"), "the pod is not told", 30.0)
    scenarios.clear(cluster.kube)
    wait_for(lambda: states(cluster) == ["no node"], lambda: shown(cluster, "pools"), 30.0)
