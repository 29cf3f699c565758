"""A fake DaemonSet, and a node that reports almost no resources: another tenant's pod still gets a node requested."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import yaml

from contract import names
from playground.machinery.objects.nodes import NodeSpec
from playground.shapes import GpuNode, gpu_node
from playground.waiting import wait_for
from runtime.kubernetes import paths
from tests.builders import PodBuilder, pod
from tests.cluster.hostile.attack import NEIGHBOUR, TENANT, Hostile, hostile_cluster, unharmed
from tests.clusters import control_planes

pytestmark = [pytest.mark.hostile, pytest.mark.long]
LABELS = {"pool": "t4"}
GPUS = "2 x Tesla T4 15109MiB"
TINY = GpuNode(NodeSpec(name="tiny", cpu="100m", memory="200Mi", labels=LABELS, address="10.0.0.2"), GPUS)
NODES = (gpu_node("n1", GPUS, labels=LABELS), TINY)
POOL = {"name": "t4", "nodeSelector": {"matchLabels": LABELS}, "node": {"max": 5}}
FLAGS = ("--provisioning-after", "1s", "--provisioning-patience", "30s")


@pytest.fixture(scope="module", params=control_planes())
def pooled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hostile]:
    """A pool of which only the label is declared, with a node of 32 CPUs and one that reports almost nothing."""
    components = ("node-provisioning", "node-placeholders")
    directory = tmp_path_factory.mktemp("room")
    for attacked in hostile_cluster(request.param, directory, nodes=NODES, flags=FLAGS, components=components):
        document = {names.OPTIONS_FILE: yaml.safe_dump({"pools": [POOL]})}
        attacked.kube.patch_merge(paths.configmaps(names.NAMESPACE, names.OPTIONS), {"data": document})
        attacked.cluster.await_account(names.NAMESPACE)
        yield attacked


@pytest.fixture
def hostile(pooled: Hostile) -> Iterator[Hostile]:
    yield from unharmed(pooled)
    wait_for(lambda: not requested(pooled), lambda: f"left: {requested(pooled)}", 30.0)


def requested(hostile: Hostile) -> list[str]:
    """The placeholders that request nodes."""
    found = hostile.kube.list(paths.pods(names.NAMESPACE), {"labelSelector": str(names.POOL)}).items
    return [each["metadata"]["name"] for each in found]


def victim(name: str, cpu: str) -> PodBuilder:
    return pod(name).asks(str(names.GPU_MEMORY), "15000Mi").needs(cpu=cpu, memory="1Gi")


def made_up(name: str) -> PodBuilder:
    """A tenant's pod that claims a DaemonSet as its owner, and takes most of the node."""
    made = pod(name).container("main").needs(cpu="29", memory="200Gi").on("n1").host_port(80)
    return made.spec(terminationGracePeriodSeconds=0)


def test_another_tenants_pod_has_a_node_requested(hostile: Hostile) -> None:
    manifest = made_up("agent").manifest()
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "mine", "uid": "made-up", "controller": True}
    manifest["metadata"] |= {"ownerReferences": [owner], "finalizers": ["example.com/stay"]}
    hostile.kube.create(paths.pods(TENANT), manifest)
    try:
        for index in range(2):  # one for each card that has room
            hostile.create(victim(f"holds-{index}", "10m"), NEIGHBOUR)
        hostile.create(victim("waits", "8"), NEIGHBOUR)
        wait_for(lambda: requested(hostile), "no node is asked for", 30.0)
    finally:
        hostile.kube.patch_merge(paths.pods(TENANT, "agent"), {"metadata": {"finalizers": None}})
