"""
Placement that depends on volumes: a pod with a share goes where its volume is, and waits if it cannot use the volume.

On the real control plane the controller of volumes and kube-scheduler do their part. No provisioner runs, so a test
creates the volumes that one would create.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from contract import names
from contract.scheduling import node_pin
from playground import scenarios
from playground.cluster import Cluster
from playground.waiting import wait_for
from runtime.kubernetes import paths
from tests.builders import PodBuilder
from tests.cluster.system import rules
from tests.cluster.system.rules import (
    HOST,
    SPACE,
    ZONE,
    Disks,
    asking,
    await_nodes,
    await_waiting,
    create,
    end,
    mounting,
)

pytestmark = pytest.mark.system
ALONE = ("ReadWriteOncePod",)


@pytest.fixture
def disks(cluster: Cluster) -> Iterator[Disks]:
    """Two zones: all nodes except the last in `a`, the last in `b`. Pods are deleted before the claims they use."""
    *most, last = (node.spec.name for node in cluster.nodes)
    made = Disks(cluster.kube)
    with rules.labelled(cluster.kube, {**dict.fromkeys(most, "a"), last: "b"}):
        try:
            yield made
        finally:
            scenarios.clear(cluster.kube)
            made.remove()


def notebook(name: str, *claims: str) -> PodBuilder:
    return asking(name, name, **mounting(*claims))


def zone_of(cluster: Cluster, node: str) -> str:
    return str(cluster.kube.get(paths.path("v1", "nodes", name=node))["metadata"]["labels"][ZONE])


@pytest.mark.parametrize("last", [False, True], ids=["the first node", "the last node"])
def test_a_pod_runs_where_its_volume_is(cluster: Cluster, disks: Disks, last: bool) -> None:
    node = cluster.nodes[-1 if last else 0].spec.name
    disks.bound("data", "disk", reach=(HOST, node))
    create(cluster, notebook("notebook", "data"))
    assert await_nodes(cluster, "notebook") == [node]


@pytest.mark.parametrize("zone", ["a", "b"])
def test_a_pod_runs_in_the_zone_of_its_volume(cluster: Cluster, disks: Disks, zone: str) -> None:
    disks.bound("data", "disk", reach=(ZONE, zone))
    create(cluster, notebook("notebook", "data"))
    assert [zone_of(cluster, node) for node in await_nodes(cluster, "notebook")] == [zone]


@pytest.mark.parametrize("zone", ["a", "b"])
def test_a_pod_runs_in_the_zone_that_its_volume_is_labelled_with(cluster: Cluster, disks: Disks, zone: str) -> None:
    disks.bound("data", "disk", labels={ZONE: zone})
    create(cluster, notebook("notebook", "data"))
    assert [zone_of(cluster, node) for node in await_nodes(cluster, "notebook")] == [zone]


def test_a_pod_whose_volumes_are_in_two_zones_waits(cluster: Cluster, disks: Disks) -> None:
    disks.bound("here", "disk-a", reach=(ZONE, "a"))
    disks.bound("there", "disk-b", reach=(ZONE, "b"))
    create(cluster, notebook("notebook", "here", "there"))
    await_waiting(cluster, "notebook", f"{len(cluster.nodes)} because of a volume that the node cannot reach")


@pytest.mark.parametrize("zone", ["a", "b"])
def test_a_claim_that_waits_for_its_pod_takes_a_volume_that_is_there(cluster: Cluster, disks: Disks, zone: str) -> None:
    disks.storage_class("local", delayed=True)
    disks.volume("disk", reach=(ZONE, zone), storage_class="local")
    disks.claim("data", storage_class="local")
    create(cluster, notebook("notebook", "data"))
    assert [zone_of(cluster, node) for node in await_nodes(cluster, "notebook")] == [zone]


def test_node_name_counts_as_affinity_while_a_claim_is_not_bound(cluster: Cluster, disks: Disks) -> None:
    disks.storage_class("local", delayed=True)
    disks.volume("disk", reach=(ZONE, "b"), storage_class="local")
    disks.claim("data", storage_class="local")

    create(cluster, notebook("disk", "data").annotated(names.PLACEMENT, "nodeName"))
    (node,) = await_nodes(cluster, "disk")
    assert zone_of(cluster, node) == "b"
    assert node_pin.is_pinned(cluster.kube.get(paths.pods(SPACE, "disk"))["spec"], node)


@pytest.mark.parametrize("zone", ["a", "b"])
def test_a_volume_is_made_in_a_zone_that_the_class_allows(cluster: Cluster, disks: Disks, zone: str) -> None:
    disks.storage_class("zonal", delayed=True, zones=(zone,), provisioner="example.com/disks")
    disks.claim("data", storage_class="zonal")
    create(cluster, notebook("notebook", "data"))

    def runs() -> bool:
        return scenarios.is_running(cluster.kube.get(paths.pods(SPACE, "notebook")))

    # kube-scheduler says for which node, and binds the pod once the volume exists.
    wait_for(lambda: runs() or disks.selected_node("data"), "nobody wants the volume")
    selected = disks.selected_node("data")
    if selected:
        assert zone_of(cluster, selected) == zone
    disks.bind("data", "made", reach=(ZONE, zone), storage_class="zonal")
    assert [zone_of(cluster, node) for node in await_nodes(cluster, "notebook")] == [zone]


def test_a_class_that_makes_no_volume_anywhere_makes_a_pod_wait(cluster: Cluster, disks: Disks) -> None:
    disks.storage_class("far", delayed=True, zones=("c",), provisioner="example.com/disks")
    disks.claim("data", storage_class="far")
    create(cluster, notebook("notebook", "data"))
    words = f"{len(cluster.nodes)} because of a claim for which no volume can be bound there"
    await_waiting(cluster, "notebook", words)


def test_a_pod_waits_until_its_claim_is_there(cluster: Cluster, disks: Disks) -> None:
    create(cluster, notebook("notebook", "data"))
    await_waiting(cluster, "notebook", "because of a PersistentVolumeClaim that does not exist")
    disks.bound("data", "disk", reach=(ZONE, "b"))
    assert [zone_of(cluster, node) for node in await_nodes(cluster, "notebook")] == ["b"]


def test_a_pod_waits_until_its_claim_is_bound(cluster: Cluster, disks: Disks) -> None:
    disks.claim("data")
    create(cluster, notebook("notebook", "data"))
    await_waiting(cluster, "notebook", "because of a PersistentVolumeClaim that is not bound yet")
    disks.bind("data", "disk", reach=(ZONE, "b"))
    assert [zone_of(cluster, node) for node in await_nodes(cluster, "notebook")] == ["b"]


def test_a_volume_for_one_pod_is_waited_for_while_a_pod_on_another_node_has_it(cluster: Cluster, disks: Disks) -> None:
    node = cluster.nodes[0].spec.name
    disks.bound("data", "disk", modes=ALONE)
    create(cluster, rules.without_share("first", node, **mounting("data")))
    await_nodes(cluster, "first")
    create(cluster, notebook("second", "data"))
    await_waiting(cluster, "second", f"{len(cluster.nodes)} because of a volume that another pod uses and cannot share")
    end(cluster, "first")
    await_nodes(cluster, "second")
