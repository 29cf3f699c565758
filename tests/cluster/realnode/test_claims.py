"""
ResourceClaims on a real node: kubelet's own DRA manager and the container runtime, with the agent as the plugin.

NVIDIA's container runtime is not installed: a container gets its devices only through its claim.
"""

from __future__ import annotations

import json
import statistics
import time

import pytest

from contract import names
from playground.waiting import wait_for
from runtime.kubernetes import paths
from tests.cluster.realnode.cluster import JSON, RealNodeCluster, container
from tests.cluster.realnode.inside import SCRIPT
from tests.cluster.realnode.test_container_view import share
from tests.cluster.realnode.ways import DESCRIPTION, Way, install

pytestmark = [pytest.mark.realnode, pytest.mark.timeout(600)]
_CHECKPOINT = f"/var/lib/kubelet/plugins/{names.GROUP}/prepared.json"
_STARTS = 10
_HEALTH_SINCE = (1, 36)
LIBRARY = "/usr/local/nvidia/lib64/libnvidia-ml.so.1"


@pytest.fixture
def claiming(real: RealNodeCluster, way: Way) -> RealNodeCluster:
    """The node when it delivers by claims."""
    if not way.label:
        pytest.skip("another way of delivery")
    return real


def claims(node: RealNodeCluster) -> list[JSON]:
    return list(node.kube.list(paths.resourceclaims()).items)


def prepared(node: RealNodeCluster) -> set[str]:
    """The uids of the claims that the agent has prepared, according to its checkpoint."""
    try:
        return set(json.loads(node.node.machine.read(_CHECKPOINT))["claims"])
    except FileNotFoundError:
        return set()


def end(node: RealNodeCluster, pod: JSON) -> None:
    """Kill the pod's processes and those of its sandbox. They have one parent: the runtime's shim."""
    stats = node.node.machine.run(["sh", "-c", "cat /proc/[0-9]*/stat"]).stdout.splitlines()
    found = [line for line in stats if ")" in line and line.split()[0].isdecimal()]
    parents = {int(line.split()[0]): int(line.rpartition(")")[2].split()[1]) for line in found}
    shim = parents[node.node.process_of(pod)]
    node.node.end(*(pid for pid, parent in parents.items() if parent == shim))


def status_of(node: RealNodeCluster, name: str) -> JSON:
    """The status of the pod's only container."""
    found = node.kube.get(paths.pods("default", name))["status"].get("containerStatuses") or [{}]
    return dict(found[0])


def await_restart(node: RealNodeCluster, name: str) -> None:
    """Wait until the pod's container has started once more."""

    def started() -> bool:
        found = status_of(node, name)
        return bool(found.get("ready")) and found.get("restartCount", 0) >= 1

    wait_for(started, lambda: f"{name} does not start again: {node.events(name)}", 90, every=0.5)


def test_a_pod_waits_for_the_agent_and_starts_when_it_is_back(claiming: RealNodeCluster) -> None:
    claiming.stop_agent()
    claiming.submit("a", container(gpu_memory="4Gi"))
    wait_for(
        lambda: any(line.startswith("FailedPrepareDynamicResources") for line in claiming.events("a")),
        lambda: f"kubelet does not ask: {claiming.events('a')}",
        60,
    )
    claiming.start_agent()
    assert claiming.inside("a") == share(4096, 0)


def test_a_sandbox_that_is_made_again_gets_the_same_card(claiming: RealNodeCluster) -> None:
    """As after a reboot: kubelet knows about no prepared claims, and asks again."""
    claiming.submit("big", container(gpu_memory="14Gi"))
    claiming.running("big")
    claiming.submit("a", container(gpu_memory="4Gi"))
    pod = claiming.running("a")
    before = prepared(claiming)
    claiming.start_agent()
    claiming.node.restart_kubelet()
    end(claiming, pod)
    await_restart(claiming, "a")
    assert claiming.inside("a", restart=1) == share(4096, 1)
    assert prepared(claiming) == before


def test_a_node_that_reboots_describes_its_cards_before_a_container_starts(claiming: RealNodeCluster, way: Way) -> None:
    """
    Every program of the node ends, and everything in memory is lost, including /var/run/cdi. The kernel stays.

    No other program describes the cards. The agent starts last, so that kubelet and runtime try without it.
    """
    machine = claiming.node.machine
    machine.run(["rm", "-f", DESCRIPTION])
    machine.write("/home/kubernetes/bin/nvidia/lib64/libnvidia-ml.so.1", "the driver's")
    flags = ("--driver-folder", "/home/kubernetes/bin/nvidia", "--limiters-cdi", "/var/run/cdi")
    try:
        claiming.start_agent(*flags)
        claiming.await_gpunode(lambda status: status["delivery"]["cdiKind"] == "gpufraction.io/card")
        claiming.submit("big", container(gpu_memory="14Gi"))
        claiming.running("big")
        claiming.submit("a", container(gpu_memory="4Gi"))
        pods, before = [claiming.running(name) for name in ("big", "a")], prepared(claiming)
        claiming.stop_agent()
        for pod in pods:
            end(claiming, pod)
        machine.run(["sh", "-c", "rm -rf /run/cdi /var/lib/kubelet/plugins_registry/*"])
        claiming.restart_runtime()
        claiming.node.restart_kubelet()
        wait_for(lambda: not status_of(claiming, "a").get("ready"), "kubelet has not seen the end of the pod", 60)
        machine.run(["mkdir", "-p", "/run/cdi"])  # kubelet creates it for the agent's volume
        claiming.start_agent(*flags)
        for name in ("big", "a"):
            await_restart(claiming, name)
        seen, wanted = claiming.inside("a", restart=status_of(claiming, "a")["restartCount"]), share(4096, 1)
        assert (seen.devices, seen.cards) == (wanted.devices, wanted.cards)
        assert prepared(claiming) == before
        claiming.clear()
    finally:
        install(way, claiming.assets, machine)
        claiming.start_agent()
        claiming.await_gpunode(lambda status: status.get("delivery") == way.delivery)


def test_kubelet_writes_the_cards_health_into_the_pod(claiming: RealNodeCluster) -> None:
    if claiming.kube.version() < _HEALTH_SINCE:
        pytest.skip("Kubernetes' feature gate ResourceHealthStatus is off before 1.36")
    claiming.submit("a", container(gpu_memory="4Gi"))
    claiming.running("a")

    def shown(wanted: str, message: str = "") -> None:
        def is_so() -> bool:
            (reported,) = status_of(claiming, "a").get("allocatedResourcesStatus") or [{"resources": [{}]}]
            (card,) = reported["resources"]
            return card.get("health") == wanted and message in card.get("message", "")

        wait_for(is_so, lambda: f"not {wanted}: {status_of(claiming, 'a')}", 60, every=0.5)

    shown("Healthy")
    claiming.show_cards("fail nvmlDeviceGetMemoryInfo 0 15", "fail nvmlDeviceGetMemoryInfo_v2 0 15")
    try:
        shown("Unhealthy", "lost")
    finally:
        claiming.show_cards()
    shown("Healthy")


def test_a_pod_that_is_deleted_by_force_leaves_nothing(claiming: RealNodeCluster) -> None:
    claiming.submit("a", container(gpu_memory="14Gi"))
    claiming.running("a")
    assert {claim["metadata"]["uid"] for claim in claims(claiming)} <= prepared(claiming)
    claiming.kube.delete(paths.pods("default", "a"), {"gracePeriodSeconds": 0})
    claiming.submit("b", container(gpu_memory="14Gi"))
    assert claiming.inside("b") == share(14336, 0)
    (claim,) = claims(claiming)
    wait_for(lambda: prepared(claiming) == {claim["metadata"]["uid"]}, lambda: f"{prepared(claiming)} is prepared", 60)


def test_how_long_a_container_takes_to_start(
    real: RealNodeCluster, way: Way, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    From the pod's creation to the container's first line, on a node that does nothing else. This compares the ways.
    """
    took = sorted(started_after(real, f"p{number}") for number in range(_STARTS))
    with capsys.disabled():
        timing = f"{statistics.median(took):.2f} s, the longest of {_STARTS}: {took[-1]:.2f} s"
        print(f"\n{request.node.callspec.id}: {timing}")


def started_after(node: RealNodeCluster, name: str) -> float:
    """Seconds from a pod's creation to its container's first line. The pod is removed afterwards."""
    began = time.time()
    pod = node.submit(name, container(gpu_memory="1Gi"))
    file = node.node.machine.path(f"/var/log/pods/default_{name}_{pod['metadata']['uid']}/c") / "0.log"
    wait_for(lambda: file.exists() and file.stat().st_size > 0, lambda: f"{node.events(name)}", 60)
    seconds = time.time() - began
    node.delete(name)
    node.await_deleted(name)
    return seconds


def test_the_agent_describes_the_cards_where_nobody_else_does(claiming: RealNodeCluster, way: Way) -> None:
    """As on Google's image: it has no tool of NVIDIA's, and the driver is in a separate folder."""
    machine = claiming.node.machine
    machine.run(["rm", "-f", DESCRIPTION])
    machine.write("/home/kubernetes/bin/nvidia/lib64/libnvidia-ml.so.1", "the driver's")
    try:
        claiming.start_agent("--driver-folder", "/home/kubernetes/bin/nvidia", "--limiters-cdi", "/var/run/cdi")
        claiming.await_gpunode(lambda status: status["delivery"]["cdiKind"] == "gpufraction.io/card")
        claiming.submit("a", container(gpu_memory="14Gi"))
        claiming.running("a")
        script = f"test -e {LIBRARY} && echo file {LIBRARY}\n{SCRIPT}"
        claiming.submit("b", container(command=("sh", "-c", script), gpu_memory="4Gi"))
        seen, wanted = claiming.inside("b"), share(4096, 1)
        assert (seen.devices, seen.cards) == (wanted.devices, wanted.cards)
        assert LIBRARY in seen.files
        claiming.clear()
    finally:
        install(way, claiming.assets, machine)
        claiming.start_agent()
        claiming.await_gpunode(lambda status: status.get("delivery") == way.delivery)
