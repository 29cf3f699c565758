"""Helpers of the tests with hollow kubelets."""

from __future__ import annotations

from typing import Any

from contract import names
from playground.cluster import Cluster
from playground.realapi.hollow import HollowKubelets
from playground.realapi.real import Real
from runtime.kubernetes import paths
from runtime.kubernetes.client import KubeNotFound
from tests.builders import PodBuilder, pod

JSON = dict[str, Any]
T4 = 15109
CAPACITY = {"gpufraction.io/gpu-memory": f"{2 * T4}Mi", "gpufraction.io/gpu-cores": "200"}


def create(cluster: Cluster, builder: PodBuilder, namespace: str = "default") -> JSON:
    return cluster.kube.create(paths.pods(namespace), builder.manifest())


def t4(name: str, mib: int = 1024, namespace: str = "default") -> PodBuilder:
    """A pod for the node with two T4."""
    return pod(name, namespace).asks("gpufraction.io/gpu-memory", f"{mib}Mi").spec(nodeSelector={"gpushare": "true"})


def found(cluster: Cluster, name: str) -> JSON:
    return cluster.kube.get(paths.pods("default", name))


def status_of(cluster: Cluster, node: str) -> JSON:
    try:
        status: JSON = cluster.kube.get(paths.nodes(node)).get("status", {})
    except KubeNotFound:
        return {}
    return status


def ours_of(cluster: Cluster, node: str) -> list[JSON]:
    """Our resources in the node's capacity and allocatable."""
    status = status_of(cluster, node)
    return [
        {name: value for name, value in status.get(part, {}).items() if name.startswith(names.GROUP)}
        for part in ("capacity", "allocatable")
    ]


def kubelets(cluster: Cluster) -> HollowKubelets:
    plane = cluster.control_plane
    assert isinstance(plane, Real)
    assert plane.hollow is not None
    return plane.hollow
