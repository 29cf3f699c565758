"""
A cluster of two nodes for the findings of `kubectl gpufraction check`, on each control plane.

The workloads of the manifests are applied too, alongside the programs that the playground runs, because the check reads
them. No node has their image, and nothing here pulls it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from contract import names
from playground.api.kinds.values import ADMIN
from playground.cluster import Cluster
from playground.programs import installing
from playground.shapes import DEMO
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube
from tests.cluster.checking.checked import IMAGE, Line, Want, check, healthy
from tests.clusters import control_planes

JSON = dict[str, Any]
_SETTINGS = {"allocator": ("--placement-node-policy", "binpack")}


def workloads() -> Iterator[JSON]:
    """The Deployments and the DaemonSet of the manifests, with an image from a registry."""
    for document in installing.shipped():
        if document["kind"] in ("Deployment", "DaemonSet"):
            made = deepcopy(document)
            # The check reads the changes that a test makes here; they are never rolled out.
            made["spec"] |= {"updateStrategy": {"type": "OnDelete"}} if document["kind"] == "DaemonSet" else {}
            for container in made["spec"]["template"]["spec"]["containers"]:
                container["image"] = IMAGE
            yield made


@pytest.fixture(scope="package", params=control_planes())
def running_cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The cluster, once its Deployments are Ready."""
    directory = tmp_path_factory.mktemp("checked")
    with Cluster(nodes=DEMO[:2], directory=directory, settings=_SETTINGS, control_plane=request.param) as cluster:
        for document in workloads():
            installing.apply(cluster.kube, document)
        path = paths.deployments(names.NAMESPACE)
        wait_for(
            lambda: all(
                (each.get("status") or {}).get("readyReplicas") == each["spec"]["replicas"]
                for each in cluster.kube.list(path).items
            ),
            "a Deployment is not Ready",
        )
        for each in cluster.kube.list(path).items:
            cluster.kube.patch_merge(
                paths.deployments(names.NAMESPACE, each["metadata"]["name"]), {"spec": {"paused": True}}
            )
        yield cluster


@pytest.fixture
def cluster(running_cluster: Cluster) -> Iterator[Cluster]:
    """The cluster, on which every finding is OK before the test and afterwards."""
    expect(running_cluster, healthy(running_cluster))
    yield running_cluster
    expect(running_cluster, healthy(running_cluster))


@dataclass(frozen=True, slots=True)
class BarePlane:
    """A control plane with a GPU node, where nothing is installed."""

    kubeconfig: Path
    kube: Kube


@pytest.fixture(params=control_planes())
def bare(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BarePlane]:
    """The cluster of a user who considers an installation."""
    plane = request.param(lambda node: ())
    plane.start()
    try:
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(plane.kubeconfig(ADMIN))
        kube = Kube.connect(kubeconfig=str(kubeconfig))
        plane.add_node(DEMO[0].spec)
        wait_for(lambda: kube.list(paths.nodes()).items, "the node does not join")
        yield BarePlane(kubeconfig, kube)
    finally:
        plane.stop()


def expect(cluster: Cluster, wanted: Want) -> None:
    """Wait until these are all findings, which may take until the cluster's programs have noticed the change."""
    found: list[Line] = []

    def same() -> bool:
        found[:] = check(cluster.kubeconfig)
        return found == wanted.lines

    def differs() -> str:
        differing = [each for each in found if each not in wanted.lines]
        missing = [each for each in wanted.lines if each not in found]
        return f"found {json.dumps(differing, indent=1)}, missing {json.dumps(missing, indent=1)}"

    wait_for(same, differs, 40.0, every=0.2)
    assert found == wanted.lines
