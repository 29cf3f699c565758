"""A cluster with Kubernetes' own kubelets, hollow: the kubelets themselves decide what they refuse, keep and write."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from playground import scenarios
from playground.cluster import Cluster
from playground.machinery.kubelet.gpuruntime import NodeGpus
from playground.machinery.objects.nodes import NodeSpec
from playground.realapi.components import CONTROLLERS, KUBELETS, SCHEDULER
from playground.realapi.real import Real
from tests.cluster.system import invariants
from tests.clusters import assets_with

VENDOR = NodeSpec("vendor", labels={"vendor": "true"})
"""A node on which a vendor's device plugin offers two GPUs."""
PACE = ("--assume-ttl", "2s", "--repair-every", "1s", "--placement-node-policy", "binpack")


@pytest.fixture(scope="package")
def hollow_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The demo's three nodes and the vendor's node, each with its own kubelet. Nothing is simulated by the tests."""
    assets = assets_with(KUBELETS, SCHEDULER, CONTROLLERS)
    if isinstance(assets, str):
        pytest.skip(assets)

    def plane(gpus_of: Callable[[str], NodeGpus]) -> Real:
        return Real(assets, gpus_of=gpus_of, hollow=True, offers={VENDOR.name: {"nvidia.com/gpu": "2"}})

    directory = tmp_path_factory.mktemp("hollow")
    with Cluster(directory=directory, settings={"allocator": PACE}, control_plane=plane) as cluster:
        cluster.control_plane.add_node(VENDOR)
        yield cluster


@pytest.fixture
def hollow(hollow_cluster: Cluster) -> Iterator[Cluster]:
    """The same cluster, empty. Afterwards the invariants hold, with the test's pods and again without them."""
    yield hollow_cluster
    invariants.check(hollow_cluster, looking=False)
    scenarios.clear(hollow_cluster.kube)
    invariants.check(hollow_cluster, looking=False)
