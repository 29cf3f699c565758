"""
Control groups of version 2 on a real node: where a container's group is, which limits the driver receives, and which
devices can be opened after the runtime or systemd has written the group's rules again.

The agent is a process of the node, and in one test a container as in its DaemonSet with node-access. Then it has its
own control group namespace, and sees other containers' groups from there.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contract.components import agents_namespace
from playground.cluster import account
from playground.programs import installing
from playground.waiting import NotInTime, wait_for
from runtime.kubernetes import paths
from tests.cluster.realnode.cluster import COMPONENTS, JSON, NODE, RealNodeCluster, container
from tests.cluster.realnode.node import IMAGE
from tests.cluster.realnode.virtual import VirtualMachine
from tests.cluster.realnode.ways import Way

pytestmark = [pytest.mark.realnode, pytest.mark.timeout(600)]
LIMITING = "driver 615.71.09"
"""The first driver that limits memory."""
_CLASSES = {"a": "", "b": "burstable", "c": "besteffort"}
_SIZES = {"a": 4, "b": 5, "c": 6}
_SHARERS = {
    "a": container(gpu_memory="4Gi", cpu="200m", memory="64Mi"),
    "b": container(gpu_memory="5Gi", memory="64Mi"),
    "c": container(gpu_memory="6Gi"),
}
"""One of each class of service, in GiB of a card."""
_TRY = """
for card in 0 1; do mknod "/tmp/card$card" c 195 "$card"; done
while :; do
    for card in 0 1; do ( : <"/tmp/card$card" ) 2>&1; done
    echo round
    sleep 1
done
"""
_AGENT = "gpufraction-nodeagent"
_SYSTEM = agents_namespace(COMPONENTS)


@pytest.fixture
def node(real: RealNodeCluster, way: Way) -> Iterator[RealNodeCluster]:
    """A node with control groups of version 2. Afterwards the agent is as it was."""
    if real.node.machine.run(["test", "-e", "/sys/fs/cgroup/cgroup.controllers"]).returncode:
        pytest.skip("this machine has control groups of version 1")
    limits_file(real).unlink(missing_ok=True)
    yield real
    real.clear()
    real.show_cards()
    real.start_agent()


def limits_file(node: RealNodeCluster) -> Path:
    return node.script.with_name(f"{node.script.name}.limits")


def limited(node: RealNodeCluster) -> dict[str, tuple[int, int]]:
    """The card and the hard limit of each control group, as last given to the driver; without groups that have none."""
    try:
        lines = [line.split() for line in limits_file(node).read_text().splitlines()]
    except FileNotFoundError:
        return {}
    last = {group: (int(card), int(hard)) for card, group, _, hard in lines}
    return {group: limit for group, limit in last.items() if limit[1] >= 0}


def group_of(node: RealNodeCluster, name: str) -> str:
    """The path of the control group of the pod's only container."""
    text = node.node.machine.read(f"/proc/{node.node.process_of(node.running(name))}/cgroup")
    (line,) = (line for line in text.splitlines() if line.startswith("0::"))
    return f"/sys/fs/cgroup{line.removeprefix('0::')}"


def await_limits(node: RealNodeCluster, wanted: dict[str, tuple[int, int]]) -> None:
    """Wait until the driver has received these limits. A pod's sandbox has a limit too, which does not matter."""
    wait_for(lambda: wanted.items() <= limited(node).items(), lambda: f"{wanted} is not in {limited(node)}", every=0.5)


def tries(node: RealNodeCluster, pod: JSON) -> list[str]:
    """How each attempt to open a card ended in the last round, and how many rounds there were."""
    lines = node.node.log_of(pod, "c").splitlines()
    rounds = [at for at, line in enumerate(lines) if line == "round"]
    last = lines[rounds[-2] + 1 : rounds[-1]] if len(rounds) > 1 else []
    return [str(len(rounds)), *(line.rpartition(": ")[2] for line in last)]


def await_rounds(node: RealNodeCluster, pod: JSON) -> list[str]:
    """The attempts of a round that begins after this call."""
    before = int(tries(node, pod)[0])
    wait_for(lambda: int(tries(node, pod)[0]) > before + 2, lambda: f"{tries(node, pod)}", every=0.5)
    return tries(node, pod)[1:]


def test_the_driver_limits_the_group_of_each_container(node: RealNodeCluster) -> None:
    node.show_cards(LIMITING)
    node.start_agent("--driver-limits=true")
    node.await_gpunode(lambda status: status["isolation"] == ["driver", "watch"])
    assert node.gpunode()["cgroupMode"] == "v2"
    for name, sharer in _SHARERS.items():
        node.submit(name, sharer)
    groups = {name: group_of(node, name) for name in _SHARERS}
    cards = {name: node.inside(name).cards[0] for name in _SHARERS}
    await_limits(node, {groups[name]: (cards[name], size << 30) for name, size in _SIZES.items()})
    if node.node.machine.cgroup_driver == "systemd":
        for name, kind in _CLASSES.items():
            uid = node.running(name)["metadata"]["uid"].replace("-", "_")
            between = f"kubepods-{kind}.slice/kubepods-{kind}-pod{uid}.slice" if kind else f"kubepods-pod{uid}.slice"
            assert groups[name].startswith(f"/sys/fs/cgroup/kubepods.slice/{between}/")
            assert groups[name].endswith(".scope")

    node.node.end(node.node.process_of(node.running("a")))
    node.inside("a", restart=1)
    again = group_of(node, "a")
    assert again != groups["a"]
    await_limits(node, {again: (cards["a"], 4 << 30)})
    node.clear()
    wait_for(lambda: limited(node) == {}, lambda: f"limits stay: {limited(node)}", every=0.5)


def test_devices_stay_what_they_were_when_their_rules_are_written_again(node: RealNodeCluster) -> None:
    """systemd writes the rules when it reads its units again, and the runtime when kubelet changes a limit of CPU."""
    node.submit("a", container(command=("sh", "-c", _TRY), gpu_memory="2Gi", cpu="200m"))
    pod = node.running("a")
    own = ["No such device or address", "Operation not permitted"]
    assert await_rounds(node, pod) == own
    if node.node.machine.cgroup_driver == "systemd":
        for command in ("daemon-reload", "daemon-reexec"):
            assert node.node.machine.run(["systemctl", command]).returncode == 0
            assert await_rounds(node, pod) == own
    if node.kube.version() >= (1, 33):
        more = {"spec": {"containers": [{"name": "c", "resources": {"limits": {"cpu": "300m"}}}]}}
        node.kube.patch_strategic(f"{paths.pods('default', 'a')}/resize", more)

        def has_more() -> bool:
            told = node.running("a")["status"]["containerStatuses"][0].get("resources") or {}
            return bool((told.get("limits") or {}).get("cpu") == "300m")

        wait_for(has_more, lambda: f"kubelet does not resize the pod: {node.events('a')}", every=0.5)
        assert await_rounds(node, pod) == own


def test_the_agent_in_a_container_finds_the_groups_of_others(node: RealNodeCluster) -> None:
    """With its own control group namespace, the paths that it reads in /proc begin with `/../..`."""
    machine = node.node.machine
    if not isinstance(machine, VirtualMachine):
        pytest.skip("the agent's container takes a machine of its own, with its Python in /opt")
    node.stop_agent()
    node.show_cards(LIMITING)
    for name, sharer in _SHARERS.items():
        node.submit(name, sharer)
    groups = {name: group_of(node, name) for name in _SHARERS}
    cards = {name: node.inside(name).cards[0] for name in _SHARERS}
    greedy = node.node.process_of(node.running("b"))
    node.show_cards(LIMITING, f"process {cards['b']} {greedy} {6 << 30}")
    spec = agent_pod(node, machine)
    try:
        node.kube.create(paths.pods(_SYSTEM), spec)
        await_limits(node, {groups[name]: (cards[name], size << 30) for name, size in _SIZES.items()})
        node.await_gpunode(lambda status: status["isolation"] == ["driver", "watch"] and status["cgroupMode"] == "v2")
        wait_for(
            lambda: any(line.startswith("GPUMemoryOveruse") for line in node.events("b")),
            lambda: f"nobody is warned: {node.events('b')}",
            every=0.5,
        )
        assert not any(line.startswith("GPUMemoryOveruse") for name in "ac" for line in node.events(name))
        agent = node.kube.get(paths.pods(_SYSTEM, _AGENT))
        own = machine.run(["readlink", "/proc/self/ns/cgroup", f"/proc/{node.node.process_of(agent)}/ns/cgroup"])
        assert len(set(own.stdout.split())) == 2
    except NotInTime as error:
        raise AssertionError(f"{error}; the agent prints:\n{printed_by(node)}") from error
    finally:
        node.kube.delete(paths.pods(_SYSTEM, _AGENT), {"gracePeriodSeconds": 1})
        wait_for(lambda: not node.kube.list(paths.pods(_SYSTEM)).items, "the agent's pod stays", every=0.5)


def printed_by(node: RealNodeCluster) -> str:
    """The log of each run of the agent's container that kubelet still has."""
    pod = node.kube.get(paths.pods(_SYSTEM, _AGENT))
    (status,) = pod["status"].get("containerStatuses") or [{"restartCount": 0}]
    return "".join(node.node.log_of(pod, "nodeagent", restart=number) for number in range(status["restartCount"] + 1))


def agent_pod(node: RealNodeCluster, machine: VirtualMachine) -> JSON:
    """
    The pod of the DaemonSet with node-access. Its files are the node's own, because none of our images is here, and it
    reaches the API server through the node's loopback interface.
    """
    (base,) = (each for each in installing.documents(installing.BASE / "daemonset.yaml"))
    (access,) = (each for each in installing.documents(installing.COMPONENTS / "node-access" / "daemonset.yaml"))
    spec, patch = (dict[str, Any](each["spec"]["template"]["spec"]) for each in (base, access))
    agent: JSON = dict(spec["containers"][0])
    (changes,) = patch["containers"]
    kubeconfig = node.folder / "agent-pod.kubeconfig"
    kubeconfig.write_text(node.cluster.control_plane.kubeconfig(account(_AGENT, node=NODE, components=COMPONENTS)))
    variables = {
        "GPUFRACTION_NODE": NODE,
        "PYTHONPATH": machine.top,
        "FAKE_NVML_SCRIPT": str(node.script),
    }
    mounts = {"/usr": "/usr", "/lib": "/usr/lib", "/lib64": "/usr/lib64", "/opt": "/opt"}
    mounts[str(node.folder)] = str(node.folder)
    flags = ["--listen=", f"--nvml-library={node.library}", "--interval=1s", "--heartbeat=10s", "--driver-limits=true"]
    flags += ["--overuse-grace=0s", "--overuse-slack=0", f"--kubeconfig={kubeconfig}"]
    agent |= {
        "image": IMAGE,
        "command": [machine.python, "-m", "nodeagent", "run"],
        "args": flags,
        "env": [*changes["env"], *({"name": key, "value": text} for key, text in variables.items())],
        "volumeMounts": [
            *changes["volumeMounts"],
            {"name": "tmp", "mountPath": "/tmp"},  # a kubeconfig's certificates become files
            *({"name": f"files-{number}", "mountPath": at} for number, at in enumerate(mounts)),
        ],
    }
    for left in ("envFrom", "ports", "readinessProbe", "livenessProbe", "resources"):
        agent.pop(left)
    files = [{"name": f"files-{number}", "hostPath": {"path": path}} for number, path in enumerate(mounts.values())]
    pod = {
        "containers": [agent],
        "volumes": [*patch["volumes"], *files, {"name": "tmp", "emptyDir": {}}],
        "hostPID": patch["hostPID"],
        "hostNetwork": True,
        "securityContext": {**spec["securityContext"], **patch["securityContext"]},
        "serviceAccountName": spec["serviceAccountName"],
        "automountServiceAccountToken": False,
        "tolerations": spec["tolerations"],
        "nodeName": NODE,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": _AGENT,
            "namespace": _SYSTEM,
            "labels": dict(base["spec"]["template"]["metadata"]["labels"]),
        },
        "spec": pod,
    }
