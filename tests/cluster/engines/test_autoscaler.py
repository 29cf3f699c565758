"""Cluster Autoscaler's own program alongside gpufraction: what makes it add a node by itself, and what does not."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from contract import names
from playground import scenarios
from playground.cluster import DEFAULT_COMPONENTS, Cluster
from playground.waiting import wait_for
from runtime.kubernetes import paths
from tests.builders import pod
from tests.cluster.engines import autoscaler, fleet
from tests.cluster.engines.autoscaler import Autoscaler, Group
from tests.cluster.engines.programs import folder_of
from tests.cluster.system import invariants
from tests.clusters import real

pytestmark = [pytest.mark.engines, pytest.mark.timeout(300)]
JSON = dict[str, Any]
T4 = Group("t4", labels={"pool": "t4"}, taints=("nvidia.com/gpu=present:NoSchedule",))
PLAIN = Group("plain", most=3, labels={"pool": "plain"})
MEMORY = str(names.GPU_MEMORY)
SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"


@contextlib.contextmanager
def installed(directory: Path, *flags: str, webhook: Sequence[str] = ()) -> Iterator[Cluster]:
    """A real control plane with gpufraction and no nodes. `flags`: of the allocator."""
    folder_of(autoscaler.assets())
    pace = ("--assume-ttl", "2s", "--repair-every", "1s")
    with Cluster(
        nodes=(),
        directory=directory,
        settings={"allocator": (*pace, *flags), "webhook": webhook},
        control_plane=real,
        components=(*DEFAULT_COMPONENTS, "startup-taint"),
    ) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with installed(tmp_path_factory.mktemp("engines")) as cluster:
        yield cluster


@contextlib.contextmanager
def beside(
    cluster: Cluster,
    directory: Path,
    *groups: Group,
    gpu_label: str = "",
    flags: Sequence[str] = (),
    delay: float = 0.0,
) -> Iterator[Autoscaler]:
    """The autoscaler with these groups at zero; nodes of the group t4 have two GPUs."""
    folder = autoscaler.assets()
    assert isinstance(folder, Path)
    agents = fleet.following(
        cluster, directory / "fleet", {"t4": "2 x Tesla T4 15109MiB"}, delay=delay, flags=("--startup-taint=true",)
    )
    started = autoscaler.running(cluster, folder, directory / "autoscaler", groups, gpu_label=gpu_label, flags=flags)
    with started as found, agents:
        try:
            yield found
        finally:
            scenarios.clear(cluster.kube)
        invariants.check(cluster)


@pytest.fixture
def scaler(cluster: Cluster, tmp_path: Path) -> Iterator[Autoscaler]:
    """The autoscaler with a group of GPU nodes and a group of other nodes."""
    with beside(cluster, tmp_path, T4, PLAIN) as found:
        yield found


def one_node_each(group: Group) -> JSON:
    """A pod template without a GPU resource, of which every pod needs its own node of the group."""
    labels = {"asks-for": group.name}
    term = {"labelSelector": {"matchLabels": labels}, "topologyKey": "kubernetes.io/hostname"}
    apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    made = pod("any").container("main").needs(cpu="100m").spec(affinity=apart, nodeSelector=dict(group.labels))
    return {"metadata": {"labels": labels}, "spec": made.tolerates("nvidia.com/gpu").manifest()["spec"]}


def test_a_request_for_nodes_adds_that_many_from_zero_with_published_gpus(cluster: Cluster, scaler: Autoscaler) -> None:
    scaler.request("three", one_node_each(T4), 3)
    wait_for(lambda: len(scaler.nodes()) == 3, lambda: f"{len(scaler.nodes())} nodes; {scaler.program.tail()}")
    wait_for(lambda: scaler.is_provisioned("three"), "the request is not said to be served")
    wait_for(lambda: len(gpunodes(cluster)) == 3, "GPUs are not published")
    scaler.after_loops(5)
    assert len(scaler.nodes(T4.name)) == 3, "a request is served once"


def test_nodes_of_a_deleted_request_go_and_their_gpus_with_them(cluster: Cluster, scaler: Autoscaler) -> None:
    scaler.request("two", one_node_each(T4), 2)
    wait_for(lambda: len(scaler.nodes()) == 2, lambda: f"{len(scaler.nodes())} nodes; {scaler.program.tail()}")
    scaler.after_loops(8)
    assert len(scaler.nodes()) == 2, "the request keeps its nodes"
    scaler.forget_requests()
    wait_for(lambda: not scaler.nodes(), lambda: f"empty nodes stay: {scaler.program.tail()}")
    wait_for(lambda: not gpunodes(cluster), "GPUNodes stay")


def test_a_request_for_more_nodes_than_its_group_may_have_brings_none(scaler: Autoscaler) -> None:
    scaler.request("four", one_node_each(PLAIN), 4)
    scaler.after_loops(5)
    assert scaler.nodes() == []
    assert not scaler.is_provisioned("four")


def test_an_ordinary_pod_that_fits_nowhere_brings_one_node_and_runs_there(cluster: Cluster, scaler: Autoscaler) -> None:
    made = pod("ordinary").container("main").needs(cpu="1", memory="1Gi")
    cluster.kube.create(paths.pods("default"), made.manifest())
    wait_for(
        lambda: scenarios.is_running(cluster.kube.get(paths.pods("default", "ordinary"))),
        lambda: f"it does not run: {scaler.program.tail()}",
    )
    assert len(scaler.nodes()) == len(scaler.nodes(PLAIN.name)) == 1


def test_a_pod_that_waits_for_a_share_brings_no_node_by_itself(cluster: Cluster, scaler: Autoscaler) -> None:
    made = pod("waits").asks(MEMORY, "3Gi").needs(cpu="1", memory="1Gi").tolerates("nvidia.com/gpu")
    cluster.kube.create(paths.pods("default"), made.manifest())
    scenarios.settled(cluster.kube, 1, "default")
    scaler.after_loops(5)
    assert scaler.nodes() == []


def gpunodes(cluster: Cluster) -> list[JSON]:
    return list(cluster.kube.list(paths.path(names.GPUNODE_GROUP_VERSION, names.GPUNODE_PLURAL)).items)


def ordinary(cluster: Cluster, name: str, group: Group) -> None:
    """A pod that kube-scheduler can place only on a node of the group."""
    made = pod(name).container("main").needs(cpu="1", memory="1Gi").spec(nodeSelector=dict(group.labels))
    cluster.kube.create(paths.pods("default"), made.tolerates("nvidia.com/gpu").manifest())


def runs(cluster: Cluster, name: str) -> bool:
    return scenarios.is_running(cluster.kube.get(paths.pods("default", name)))


def test_with_the_startup_taint_the_autoscaler_adds_no_second_node(cluster: Cluster, tmp_path: Path) -> None:
    tainted = replace(T4, taints=(*T4.taints, f"{names.STARTUP_TAINT}:NoSchedule"))
    with beside(cluster, tmp_path, tainted, delay=10.0) as scaler:
        ordinary(cluster, "one", T4)
        wait_for(lambda: len(scaler.nodes()) == 1, lambda: f"no node comes: {scaler.program.tail()}")
        scaler.after_loops(5)
        assert gpunodes(cluster) == []
        assert not runs(cluster, "one")
        wait_for(lambda: runs(cluster, "one"), lambda: f"it does not run: {scaler.program.tail()}")
        assert len(gpunodes(cluster)) == len(scaler.nodes()) == 1
        (node,) = scaler.nodes()
        assert names.STARTUP_TAINT not in {each["key"] for each in node["spec"]["taints"]}


UNREADY = "cloud.test/accelerator"
LABELLED = replace(T4, labels={**T4.labels, UNREADY: "t4"})
"""A cloud's GPU nodes with the device plugin turned off: they have the cloud's label, and no `nvidia.com/gpu`."""


@pytest.mark.parametrize(
    ("flags", "comes"),
    [((), False), (("--ok-total-unready-count=1000",), True), (("--max-total-unready-percentage=100",), True)],
    ids=["by default", "with ok-total-unready-count", "with max-total-unready-percentage"],
)
def test_gpu_nodes_without_the_plugin_stop_scale_up_unless_a_flag_allows_it(
    cluster: Cluster, tmp_path: Path, flags: tuple[str, ...], comes: bool
) -> None:
    grown = ("--max-node-startup-time=2s", *flags)  # until then a node counts as starting: 15 minutes by default
    with beside(cluster, tmp_path, LABELLED, PLAIN, gpu_label=UNREADY, flags=grown) as scaler:
        scaler.request("five", one_node_each(LABELLED), 5)
        wait_for(lambda: len(scaler.nodes()) == 5, lambda: f"{len(scaler.nodes())} nodes; {scaler.program.tail()}")
        wait_for(lambda: len(gpunodes(cluster)) == 5, "GPUs are not published")
        scaler.after_loops(4)
        ordinary(cluster, "other", PLAIN)
        if comes:
            wait_for(lambda: runs(cluster, "other"), lambda: f"it does not run: {scaler.program.tail()}")
        else:
            scaler.after_loops(8)
            assert scaler.nodes(PLAIN.name) == []


def test_a_node_goes_when_its_shares_can_move_and_they_move_once(cluster: Cluster, tmp_path: Path) -> None:
    """Two nodes have one share each; the second node has room for both."""
    with beside(cluster, tmp_path, T4) as scaler:
        two_nodes_with_a_share_each(cluster, scaler, {str(names.PLACEMENT): "nodeName"})
        wait_for(lambda: len(scaler.nodes()) == 1, lambda: f"both nodes stay: {scaler.program.tail()}")
        (left,) = scaler.nodes()
        moved = scenarios.settled(cluster.kube, 2, "default", running=2)
        assert {each["spec"]["nodeName"] for each in moved} == {left["metadata"]["name"]}


STAYS = {"its author's annotation": (SAFE_TO_EVICT, "false"), "a pin by affinity": (str(names.PLACEMENT), "affinity")}


@pytest.mark.parametrize("annotation", STAYS.values(), ids=STAYS.keys())
def test_a_share_keeps_its_node_by(cluster: Cluster, tmp_path: Path, annotation: tuple[str, str]) -> None:
    with beside(cluster, tmp_path, T4) as scaler:
        two_nodes_with_a_share_each(cluster, scaler, dict([annotation]))
        scaler.after_loops(15)
        assert len(scaler.nodes()) == 2


def test_by_our_setting_shares_keep_their_node_and_an_empty_one_goes(tmp_path: Path) -> None:
    blocking = installed(tmp_path / "us", "--placement-scale-down", "block")
    with blocking as cluster, beside(cluster, tmp_path, T4) as scaler:
        two_nodes_with_a_share_each(cluster, scaler, {})
        scaler.after_loops(15)
        assert len(scaler.nodes()) == 2
        deployment = paths.path("apps/v1", "deployments", "default", "shares")
        cluster.kube.patch_merge(deployment, {"spec": {"replicas": 1}})
        wait_for(lambda: len(scaler.nodes()) == 1, lambda: f"the empty node stays: {scaler.program.tail()}")
        (left,) = scenarios.settled(cluster.kube, 1, "default", running=1)
        assert {left["spec"]["nodeName"]} == {each["metadata"]["name"] for each in scaler.nodes()}


def test_the_volumes_that_limiters_need_do_not_keep_a_node(tmp_path: Path) -> None:
    """By default the autoscaler keeps a node with a pod that has an emptyDir."""
    limiting = installed(tmp_path / "us", webhook=("--limiter-cache=true",))
    with limiting as cluster, beside(cluster, tmp_path, T4) as scaler:
        two_nodes_with_a_share_each(cluster, scaler, {str(names.PLACEMENT): "nodeName"})
        assert all(each["spec"]["volumes"] for each in cluster.kube.list(paths.pods("default")).items)
        wait_for(lambda: len(scaler.nodes()) == 1, lambda: f"both nodes stay: {scaler.program.tail()}")
        scenarios.settled(cluster.kube, 2, "default", running=2)


def two_nodes_with_a_share_each(cluster: Cluster, scaler: Autoscaler, annotations: dict[str, str]) -> None:
    """A Deployment whose pods are on one node each; the request for the nodes is deleted."""
    scaler.request("two", one_node_each(T4), 2)
    wait_for(lambda: len(gpunodes(cluster)) == 2, lambda: f"{len(scaler.nodes())} nodes; {scaler.program.tail()}")
    made = pod("p").asks(MEMORY, "3Gi").needs(cpu="10m", memory="16Mi").tolerates("nvidia.com/gpu")
    created = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "shares"},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": "shares"}},
            "template": {
                "metadata": {"labels": {"app": "shares"}, "annotations": annotations},
                "spec": made.manifest()["spec"],
            },
        },
    }
    deployments = paths.path("apps/v1", "deployments", "default")
    cluster.kube.create(deployments, created)
    (first,) = scenarios.settled(cluster.kube, 1, "default", running=1)
    node = paths.path("v1", "nodes", name=first["spec"]["nodeName"])
    cluster.kube.patch_merge(node, {"spec": {"unschedulable": True}})
    cluster.kube.patch_merge(f"{deployments}/shares", {"spec": {"replicas": 2}})
    both = scenarios.settled(cluster.kube, 2, "default", running=2)
    assert len({each["spec"]["nodeName"] for each in both}) == 2
    cluster.kube.patch_merge(node, {"spec": {"unschedulable": None}})
    scaler.forget_requests()


def test_a_pin_by_the_label_hostname_would_keep_the_node_as_well(cluster: Cluster, tmp_path: Path) -> None:
    """The other kind of pin that kube-scheduler knows, here set by the pods' author, in addition to our `nodeName`."""
    with beside(cluster, tmp_path, T4) as scaler:
        scaler.request("two", one_node_each(T4), 2)
        wait_for(lambda: len(gpunodes(cluster)) == 2, lambda: f"{len(scaler.nodes())} nodes; {scaler.program.tail()}")
        made = pod("p").asks(MEMORY, "3Gi").needs(cpu="10m", memory="16Mi").tolerates("nvidia.com/gpu")
        for number, node in enumerate(sorted(each["metadata"]["name"] for each in scaler.nodes())):
            body = made.spec(nodeSelector={"kubernetes.io/hostname": node}).manifest()["spec"]
            labels = {"app": f"shares-{number}"}
            spec = {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": body}}
            created = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": labels["app"]}, "spec": spec}
            cluster.kube.create(paths.path("apps/v1", "deployments", "default"), created)
        scenarios.settled(cluster.kube, 2, "default", running=2)
        scaler.forget_requests()
        scaler.after_loops(15)
        assert len(scaler.nodes()) == 2


@pytest.mark.parametrize(
    "group",
    [T4, replace(LABELLED, resources={"nvidia.com/gpu": "2"})],
    ids=["without the cloud's label", "with the device plugin"],
)
def test_gpu_nodes_without_the_label_or_with_the_plugin_allow_scale_up(
    cluster: Cluster, tmp_path: Path, group: Group
) -> None:
    """The solutions that need no flag. With the plugin, GPUs are shared by holder pods (`gpufraction.io/ownership`)."""
    with beside(cluster, tmp_path, group, PLAIN, gpu_label=UNREADY, flags=("--max-node-startup-time=2s",)) as scaler:
        scaler.request("five", one_node_each(group), 5)
        wait_for(lambda: len(scaler.nodes()) == 5, lambda: f"{len(scaler.nodes())} nodes; {scaler.program.tail()}")
        wait_for(lambda: len(gpunodes(cluster)) == 5, "GPUs are not published")
        scaler.after_loops(4)
        ordinary(cluster, "other", PLAIN)
        wait_for(lambda: runs(cluster, "other"), lambda: f"it does not run: {scaler.program.tail()}")


KNOWING = replace(T4, resources={MEMORY: "30218Mi", str(names.GPU_CORES): "200", str(names.GPU_COUNT): "2"})
"""A group whose template says what its nodes will offer, as an administrator writes it for such buffers."""


def test_the_template_of_a_buffer_is_not_pinned_and_adds_its_nodes(cluster: Cluster, tmp_path: Path) -> None:
    """A node has room for the first of two. The template must not come back pinned to that node."""
    with beside(cluster, tmp_path, KNOWING) as scaler:
        scaler.request("one", one_node_each(KNOWING), 1)
        wait_for(lambda: len(gpunodes(cluster)) == 1, lambda: f"no node: {scaler.program.tail()}")
        made = pod("warm").asks(MEMORY, "3Gi").needs(cpu="7", memory="1Gi").tolerates("nvidia.com/gpu")
        spec = {**made.manifest()["spec"], "nodeSelector": dict(KNOWING.labels)}
        template = {"metadata": {"name": "warm"}, "template": {"metadata": {"labels": {"a": "b"}}, "spec": spec}}
        cluster.kube.create(paths.path("v1", "podtemplates", "default"), template)
        buffers = paths.path(autoscaler.BUFFER_VERSION, "capacitybuffers", "default")
        wanted = {"podTemplateRef": {"name": "warm"}, "replicas": 2}
        body = {"apiVersion": autoscaler.BUFFER_VERSION, "kind": "CapacityBuffer", "metadata": {"name": "warm"}}
        cluster.kube.create(buffers, {**body, "spec": wanted})
        try:
            wait_for(lambda: len(scaler.nodes()) == 2, lambda: f"{len(scaler.nodes())} nodes; {scaler.program.tail()}")
            scaler.after_loops(5)
            assert len(scaler.nodes()) == 2
        finally:
            cluster.kube.delete(buffers)
            cluster.kube.delete(paths.path("v1", "podtemplates", "default"))
