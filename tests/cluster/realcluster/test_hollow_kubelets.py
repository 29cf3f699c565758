"""
Kubernetes' own kubelet with gpufraction: what it keeps of the node's status, which pods it accepts, and what it says
when it refuses one.

The kubelets are hollow: complete kubelets without containers. They read and write what any node's kubelet does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from contract import names
from playground import scenarios
from playground.cluster import Cluster, account
from playground.machinery.objects.nodes import NodeSpec
from playground.programs.process import Program
from playground.scenarios import SCENARIOS, Scenario
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import KubeNotFound
from tests.builders import pod
from tests.cluster.realcluster.conftest import VENDOR
from tests.cluster.realcluster.hollow import CAPACITY, JSON, T4, create, found, kubelets, ours_of, status_of, t4
from tests.cluster.system import invariants
from tests.unit.nodeagent import fakelibrary

pytestmark = pytest.mark.realcluster
# -- the node -----------------------------------------------------------------------------------------------------


def test_capacity_survives_the_kubelets_own_writes(hollow: Cluster) -> None:
    path = paths.nodes("t4", "status")
    cpu = status_of(hollow, "t4")["capacity"]["cpu"]
    hollow.kube.patch_merge(path, {"status": {"capacity": {"cpu": "7"}, "allocatable": {"cpu": "7"}}})
    wait_for(lambda: status_of(hollow, "t4")["capacity"]["cpu"] == cpu, "the kubelet has not written")
    assert ours_of(hollow, "t4") == [CAPACITY, CAPACITY]


def test_capacity_and_pods_survive_a_restart_of_the_kubelet(hollow: Cluster) -> None:
    create(hollow, t4("stays"))
    scenarios.settled(hollow.kube, 1)
    kubelets(hollow).restart("t4")
    # Its runtime has forgotten the container, so the kubelet admits the pod again and restarts it.
    wait_for(lambda: restarts(hollow, "stays") == 1, lambda: str(found(hollow, "stays")["status"]))
    assert scenarios.is_running(found(hollow, "stays"))
    assert ours_of(hollow, "t4") == [CAPACITY, CAPACITY]


def restarts(cluster: Cluster, name: str) -> int:
    pod = found(cluster, name)
    containers = pod["status"].get("containerStatuses") or []
    return sum(c["restartCount"] for c in containers) if scenarios.is_running(pod) else 0


def test_capacity_that_a_kubelet_zeroes_comes_back(hollow: Cluster) -> None:
    """A kubelet does this when it starts on a node on which no device plugin was ever registered."""
    create(hollow, t4("stays"))
    scenarios.settled(hollow.kube, 1)
    none = {name: "0" for name in CAPACITY}
    hollow.kube.patch_merge(paths.nodes("t4", "status"), {"status": {"capacity": none, "allocatable": none}})
    wait_for(lambda: ours_of(hollow, "t4") == [CAPACITY, CAPACITY], lambda: str(ours_of(hollow, "t4")))
    assert scenarios.is_running(found(hollow, "stays"))


@pytest.fixture
def agent(hollow: Cluster, tmp_path: Path) -> Iterator[Callable[..., None]]:
    """Starts additional node agents with the account that the manifests give them."""
    started = []

    def start(node: str, *flags: str, **environment: str) -> None:
        kubeconfig = tmp_path / f"kubeconfig-{node}"
        kubeconfig.write_text(hollow.control_plane.kubeconfig(account("gpufraction-nodeagent", node=node)))
        program = Program(
            f"nodeagent-{node}",
            ["nodeagent", "run", "--node", node, "--listen", "", "--interval", "1s", *flags],
            log=tmp_path / f"nodeagent-{node}.log",
            environment={"KUBECONFIG": str(kubeconfig), **environment},
        )
        started.append(program)
        program.start()

    yield start
    for program in started:
        program.terminate()
        program.wait()


def gpunode(cluster: Cluster, name: str) -> JSON:
    try:
        status: JSON = cluster.kube.get(paths.gpunodes(name)).get("status", {})
    except KubeNotFound:
        return {}
    return status


@pytest.fixture
def cloud_node(hollow: Cluster) -> Iterator[str]:
    """One more node during a test, with a name as clouds give them."""
    name = "ip-10-0-0-1.eu-central-1.compute.internal"
    hollow.control_plane.add_node(NodeSpec(name))
    wait_for(lambda: bool(status_of(hollow, name)), lambda: f"{name} is not registered")
    yield name
    scenarios.clear(hollow.kube)
    kubelets(hollow).kill(name)
    hollow.kube.delete(paths.nodes(name))
    wait_for(lambda: not gpunode(hollow, name), "the GPUNode outlives its Node")


def test_what_nvml_says_becomes_capacity(
    hollow: Cluster, cloud_node: str, agent: Callable[..., None], tmp_path: Path
) -> None:
    library, script = fakelibrary.built(tmp_path), tmp_path / "script"
    script.write_text("driver 550.54.15\ncuda 12040\ngpu GPU-0001 Tesla T4\nmemory 0 15842934784 0 0\n")
    agent(cloud_node, "--nvml-library", str(library), **{"FAKE_NVML_SCRIPT": str(script)})
    want = {"gpufraction.io/gpu-memory": f"{T4}Mi", "gpufraction.io/gpu-cores": "100"}
    wait_for(lambda: ours_of(hollow, cloud_node) == [want, want], lambda: str(gpunode(hollow, cloud_node)))
    wait_for(lambda: "gpus" in gpunode(hollow, cloud_node), lambda: str(gpunode(hollow, cloud_node)))
    (gpu,) = gpunode(hollow, cloud_node)["gpus"]
    assert (gpu["uuid"], gpu["model"], gpu["memoryBytes"]) == ("GPU-0001", "Tesla T4", T4 << 20)
    named = {"nodeSelector": {"kubernetes.io/hostname": cloud_node}}
    create(hollow, pod("there").asks("gpufraction.io/gpu-memory", "14Gi").spec(**named))
    (there,) = scenarios.settled(hollow.kube, 1, running=1)
    assert scenarios.held(there) == {"GPU-0001": 14 << 30}


# -- pods ---------------------------------------------------------------------------------------------------------


# A hollow kubelet's images all run as root. A kubelet does not start them if the pod forbids that.
ROOTLESS = "openshift-gpushare.yaml"


@pytest.mark.parametrize("scenario", [s for s in SCENARIOS if s.sample != ROOTLESS], ids=lambda s: s.title)
def test_a_kubelet_takes_what_a_sample_becomes(hollow: Cluster, scenario: Scenario) -> None:
    scenarios.submit(hollow.kube, scenario)
    pods = scenarios.settled(hollow.kube, scenario.pods)
    assert scenarios.outcome(pods) == scenario.want


@pytest.mark.parametrize("placement", ["nodeName", "affinity"])
def test_a_kubelet_takes_a_pod_however_it_was_pinned(hollow: Cluster, placement: str) -> None:
    made = create(hollow, t4("pinned").annotated(names.PLACEMENT, placement))
    assert ("nodeName" in made["spec"]) == (placement == "nodeName")
    (there,) = scenarios.settled(hollow.kube, 1)
    assert scenarios.outcome([there]) == scenarios.Outcome(running=1, nodes=("t4",), gpus=1)
    # The kubelet has counted what the pod requests.
    (container,) = there["status"]["containerStatuses"]
    assert container["resources"]["requests"]["gpufraction.io/gpu-memory"] == "1Gi"


def test_a_pod_beyond_capacity_is_refused_and_its_share_comes_back(hollow: Cluster) -> None:
    create(hollow, t4("first", 10_000))
    scenarios.settled(hollow.kube, 1)
    agent = hollow.programs["nodeagent-t4"]
    agent.kill()
    try:
        less = {"gpufraction.io/gpu-memory": "10000Mi", "cpu": "7"}
        path = paths.nodes("t4", "status")
        hollow.kube.patch_merge(path, {"status": {"capacity": less, "allocatable": less}})
        # Once the kubelet has repaired the CPU, it has read the capacity.
        wait_for(lambda: status_of(hollow, "t4")["capacity"]["cpu"] == "1", "the kubelet has not looked")
        create(hollow, t4("beyond", 10_000))
        wait_for(lambda: found(hollow, "beyond")["status"]["phase"] == "Failed", lambda: str(found(hollow, "beyond")))
        status = found(hollow, "beyond")["status"]
        assert (status["reason"], status["message"]) == (
            "OutOfgpufraction.io/gpu-memory",
            "Pod was rejected: Node didn't have enough resource: gpufraction.io/gpu-memory, "
            f"requested: {10_000 << 20}, used: {10_000 << 20}, capacity: {10_000 << 20}",
        )
        invariants.check(hollow, looking=False)
        assert invariants.figures(hollow)['gpufraction_reservations{state="confirmed"}'] == 1
    finally:
        agent.start()
    wait_for(lambda: ours_of(hollow, "t4") == [CAPACITY, CAPACITY], lambda: str(ours_of(hollow, "t4")))
    hollow.kube.delete(paths.pods("default", "beyond"))
    wait_for(lambda: len(scenarios.all_pods(hollow.kube)) == 1, "it is still there")
    create(hollow, t4("again", 10_000))
    assert scenarios.outcome(scenarios.settled(hollow.kube, 2, running=2)).gpus == 2


ENDS = {
    "deleted": None,
    "deleted at once": {"gracePeriodSeconds": 0},
    "deleted, and what it owns first": {"propagationPolicy": "Foreground"},
}


@pytest.mark.parametrize("how", ENDS.values(), ids=ENDS.keys())
def test_a_pod_that_ends_gives_its_share_to_who_waits(hollow: Cluster, how: JSON | None) -> None:
    for name in ("one", "two"):
        create(hollow, t4(name, 10_000))
    scenarios.settled(hollow.kube, 2, running=2)
    create(hollow, t4("waits", 10_000))
    scenarios.settled(hollow.kube, 3, running=2)
    assert scenarios.waits(found(hollow, "waits")) == "Memory"
    hollow.kube.delete(paths.pods("default", "one"), how)
    wait_for(lambda: scenarios.is_running(found(hollow, "waits")), lambda: str(found(hollow, "waits")))


def test_a_static_pod_is_the_nodes_own(hollow: Cluster) -> None:
    """Its mirror pod shows what the node's administrator wrote into a file. There was no admission and no share."""
    manifest = kubelets(hollow).static_pods("v100") / "static.json"
    manifest.write_text(json.dumps(pod("static").asks("gpufraction.io/gpu-memory", "1Gi").manifest()))
    try:
        wait_for(lambda: len(scenarios.all_pods(hollow.kube)) == 1, "the kubelet has not shown it")
        wait_for(lambda: scenarios.is_running(found(hollow, "static-v100")), "it does not run")
        mirror = found(hollow, "static-v100")
        assert not any(key.startswith(names.GROUP) for key in mirror["metadata"]["annotations"])
        assert "env" not in mirror["spec"]["containers"][0]
        invariants.check(hollow, looking=False)
        assert invariants.figures(hollow)['gpufraction_reservations{state="confirmed"}'] == 0
    finally:
        manifest.unlink()
    wait_for(lambda: not scenarios.all_pods(hollow.kube), "the mirror is left")


@pytest.mark.timeout(300)  # kube-controller-manager waits for 40 s before it removes the pods of a deleted node
def test_a_node_that_is_deleted_gives_back_all_that_was_on_it(hollow: Cluster) -> None:
    create(hollow, t4("lost"))
    scenarios.settled(hollow.kube, 1)
    kubelets(hollow).kill("t4")
    hollow.kube.delete(paths.nodes("t4"))
    wait_for(lambda: not scenarios.all_pods(hollow.kube), lambda: str(scenarios.all_pods(hollow.kube)), timeout=150)
    invariants.check(hollow, looking=False)
    # It comes back as a new Node. The agent's token named the old one; a DaemonSet starts a new pod with a new token.
    kubelets(hollow).restart("t4")
    wait_for(lambda: bool(status_of(hollow, "t4")), "the node is not back")
    program = hollow.programs["nodeagent-t4"]
    program.kill()
    kubeconfig = hollow.control_plane.kubeconfig(account("gpufraction-nodeagent", node="t4"))
    (hollow.directory / "kubeconfig-nodeagent-t4").write_text(kubeconfig)
    program.start()
    wait_for(lambda: ours_of(hollow, "t4") == [CAPACITY, CAPACITY], lambda: str(ours_of(hollow, "t4")))
    create(hollow, t4("again"))
    scenarios.settled(hollow.kube, 1, running=1)


def test_a_node_whose_gpus_a_vendors_plugin_hands_out_is_left_to_it(
    hollow: Cluster, agent: Callable[..., None]
) -> None:
    name = VENDOR.name
    agent(name, "--simulate", "2 x Tesla T4 15109MiB")
    wait_for(lambda: len(gpunode(hollow, name).get("gpus", [])) == 2, lambda: str(gpunode(hollow, name)))
    assert ours_of(hollow, name) == [{}, {}]
    status = gpunode(hollow, name)
    assert [gpu["health"] for gpu in status["gpus"]] == ["NotShared", "NotShared"]
    assert {c["type"]: c["status"] for c in status["conditions"]} == {"Ready": "True", "PluginConflict": "True"}
    there = {"nodeSelector": {"vendor": "true"}}
    create(hollow, pod("shares").asks("gpufraction.io/gpu-memory", "1Gi").spec(**there))
    (waiting,) = scenarios.settled(hollow.kube, 1)
    assert scenarios.waits(waiting)
    # A pod that is not ours has its GPU from the plugin.
    hollow.kube.create(paths.namespaces(), {"metadata": {"name": "elsewhere"}})
    hollow.await_account("elsewhere")
    create(hollow, pod("whole", "elsewhere").asks("nvidia.com/gpu", "1").spec(**there), "elsewhere")
    path = paths.pods("elsewhere", "whole")
    wait_for(lambda: scenarios.is_running(hollow.kube.get(path)), lambda: str(hollow.kube.get(path)))
    hollow.kube.delete(path)
