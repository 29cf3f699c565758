"""
A real node: kubelet and a container runtime on a machine of its own, registered with a control plane.

Pods have a network namespace with nothing in it: the CNI plugin is a few lines of shell that hand out an address that
nobody can reach, so that this machine's network stays as it is. Images are there before any pod asks.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from playground.api.kinds.values import User
from playground.programs.probes import free_port
from playground.programs.process import Program
from playground.realapi.real import Real
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube, KubeNotFound
from tests.cluster.realnode.assets import NodeAssets
from tests.cluster.realnode.images import busybox_image
from tests.cluster.realnode.machine import Machine, NamespaceMachine
from tests.cluster.realnode.runtimes import ContainerRuntime, MakeRuntime
from tests.cluster.realnode.virtual import VirtualMachine, access

JSON = dict[str, Any]
IMAGE = "localhost/realnode/busybox:1"
_CNI = """\
#!/bin/sh
case $CNI_COMMAND in
ADD) cat <<EOF
{"cniVersion": "1.0.0", "interfaces": [{"name": "$CNI_IFNAME", "sandbox": "$CNI_NETNS"}],
 "ips": [{"address": "10.88.0.2/16", "interface": 0}]}
EOF
;;
VERSION) echo '{"cniVersion": "1.0.0", "supportedVersions": ["0.3.1", "0.4.0", "1.0.0"]}' ;;
esac
"""
_NETWORK = {"cniVersion": "1.0.0", "name": "nothing", "plugins": [{"type": "nothing"}]}


class RealNode:
    """`name`: of the Node. `files`: written to the machine before anything starts, text by path."""

    def __init__(
        self,
        assets: NodeAssets,
        plane: Real,
        kube: Kube,
        *,
        runtime: MakeRuntime,
        folder: Path,
        name: str = "real",
        gpus: int = 2,
        files: dict[str, str] | None = None,
    ) -> None:
        self._assets, self._plane, self._kube = assets, plane, kube
        self.name, self._files = name, files or {}
        way = access(os.environ)
        self.machine: Machine = (
            NamespaceMachine(folder, gpus=gpus, keep=[assets.folder])
            if way is None
            else VirtualMachine(way, folder, gpus=gpus)
        )
        self.runtime: ContainerRuntime = runtime(assets, self.machine, IMAGE)
        self.kubelet: Program | None = None

    def start(self) -> None:
        """Start it; its Node is Ready when this returns."""
        self.machine.start()
        self.machine.reach(self._plane.server.ports.api)
        for path, text in self._files.items():
            self.machine.write(path, text)
        for plugin in ("nothing", "loopback"):
            self.machine.write(f"/opt/cni/bin/{plugin}", _CNI, mode=0o755)
        self.machine.write("/etc/cni/net.d/10-nothing.conflist", json.dumps(_NETWORK))
        self.runtime.start()
        archive = self.machine.folder / "busybox.tar"
        busybox_image(Path(self._assets.program("busybox")), archive, IMAGE)
        self.runtime.load(archive)
        self._start_kubelet()

    def stop(self) -> None:
        """End it and all that runs on it. Its Node stays."""
        self.machine.stop()

    def restart_kubelet(self) -> None:
        """End kubelet and start it again; containers run on."""
        with self.without_kubelet():
            pass

    @contextlib.contextmanager
    def without_kubelet(self) -> Iterator[None]:
        """Kubelet is ended, and started again afterwards; containers run on."""
        assert self.kubelet is not None
        self.kubelet.terminate()
        self.kubelet.wait()
        try:
            yield
        finally:
            self.kubelet.start()

    def log_of(self, pod: JSON, container: str, *, restart: int = 0) -> str:
        """What a container printed, from the file that kubelet had it written to; empty where there is none yet."""
        about = pod["metadata"]
        folder = self.machine.path(f"/var/log/pods/{about['namespace']}_{about['name']}_{about['uid']}/{container}")
        try:
            lines = (folder / f"{restart}.log").read_text().splitlines()
        except FileNotFoundError:
            return ""
        # Each line has a time, the stream and whether it is whole (CRI's log format).
        return "".join(line.split(" ", 3)[3] + "\n" for line in lines)

    def process_of(self, pod: JSON) -> int:
        """The first process of the pod's only container, by the paths of its control groups."""
        cid = pod["status"]["containerStatuses"][0]["containerID"].rpartition("//")[2]
        # CRI-O's monitor of a container may have a group of its own, with the same id.
        named = f"(^|[/:]|cri-containerd-|crio-){cid}(\\.scope)?(/|$)"
        found = self.machine.run(["sh", "-c", 'grep -lE "$0" /proc/[0-9]*/cgroup', named]).stdout
        return min(int(line.split("/")[2]) for line in found.splitlines() if line.startswith("/proc/"))

    def end(self, *pids: int) -> None:
        """Kill these processes of the machine; one that has ended is no matter."""
        self.machine.run(["sh", "-c", 'for pid; do kill -9 "$pid"; done', "kill", *map(str, pids)])

    def _start_kubelet(self) -> None:
        user = User(f"system:node:{self.name}", ("system:nodes",))
        self.machine.write("/etc/kubernetes/kubelet.kubeconfig", self._plane.kubeconfig(user), mode=0o600)
        self.machine.write("/etc/kubernetes/kubelet.json", json.dumps(self._configuration()))
        command = [
            self._assets.program("kubelet"),
            "--config=/etc/kubernetes/kubelet.json",
            "--kubeconfig=/etc/kubernetes/kubelet.kubeconfig",
            f"--hostname-override={self.name}",
            "--node-labels=nvidia.com/gpu.present=true",
            "--v=2",
        ]
        self.kubelet = self.machine.program("kubelet", command)
        self.kubelet.start()
        wait_for(self._ready, lambda: f"node {self.name} is not ready: {self.kubelet and self.kubelet.tail()}", 90.0)

    def _configuration(self) -> JSON:
        """What a test's node needs otherwise than kubelet has it: loopback, nobody's firewall, no disk to run short."""
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "containerRuntimeEndpoint": f"unix://{self.runtime.socket}",
            "cgroupDriver": self.machine.cgroup_driver,
            "failCgroupV1": self.machine.cgroup_driver == "systemd",
            "failSwapOn": False,
            "makeIPTablesUtilChains": False,
            "clusterDNS": ["10.96.0.10"],
            "clusterDomain": "cluster.local",
            "address": "127.0.0.1",
            "port": free_port(),
            "healthzPort": 0,
            "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "evictionHard": {"memory.available": "10Mi"},
            "imageGCHighThresholdPercent": 100,
            "nodeStatusUpdateFrequency": "2s",
            "syncFrequency": "2s",
        }

    def _ready(self) -> bool:
        assert self.kubelet is not None
        self.kubelet.check()
        try:
            node = self._kube.get(paths.nodes(self.name))
        except KubeNotFound:
            return False
        conditions = {c["type"]: c["status"] for c in (node.get("status") or {}).get("conditions") or ()}
        return conditions.get("Ready") == "True" and not node["spec"].get("taints")
