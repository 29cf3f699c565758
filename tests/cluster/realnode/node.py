"""
A real node: kubelet and a container runtime on a separate machine, registered with a control plane.

Pods have an empty network namespace. The CNI plugin is a few lines of shell that assign an unreachable address, so this
machine's network stays as it is. Images are loaded before any pod needs them.
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
from playground.waiting import slower, wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube, KubeNotFound
from tests.cluster.realnode.assets import NodeAssets
from tests.cluster.realnode.images import busybox_image
from tests.cluster.realnode.machine import Machine, NamespaceMachine
from tests.cluster.realnode.runtimes import ContainerRuntime, MakeRuntime
from tests.cluster.realnode.virtual import VirtualMachine, access

JSON = dict[str, Any]
IMAGE, CUDA_IMAGE = "localhost/realnode/busybox:1", "localhost/realnode/cuda:1"
CUDA_VARIABLES = {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
"""The variables of CUDA images that make NVIDIA's runtime give them every card."""
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
_ADDRESS = "127.0.0.1"
_UNINITIALIZED = "node.cloudprovider.kubernetes.io/uninitialized"
_NETWORK = {"cniVersion": "1.0.0", "name": "nothing", "plugins": [{"type": "nothing"}]}


def every(seconds: int) -> int:
    """Seconds between two looks of a node's program: longer if looking uses most of the machine."""
    return seconds * max(1, round(slower() / 4))


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
        for name, environment in {IMAGE: {}, CUDA_IMAGE: CUDA_VARIABLES}.items():
            archive = self.machine.folder / f"{name.split('/')[-1].partition(':')[0]}.tar"
            busybox_image(Path(self._assets.program("busybox")), archive, name, environment)
            self.runtime.load(archive, name)
        self._start_kubelet()

    def stop(self) -> None:
        """End it and everything that runs on it. Its Node stays."""
        self.machine.stop()

    def restart_kubelet(self) -> None:
        """End kubelet and start it again; containers keep running."""
        with self.without_kubelet():
            pass

    @contextlib.contextmanager
    def without_kubelet(self) -> Iterator[None]:
        """End kubelet, and start it again afterwards; containers keep running."""
        assert self.kubelet is not None
        self.kubelet.terminate()
        self.kubelet.wait()
        try:
            yield
        finally:
            self.kubelet.start()

    def log_of(self, pod: JSON, container: str, *, restart: int = 0) -> str:
        """What a container printed, from the log file of kubelet; empty if there is none yet."""
        about = pod["metadata"]
        folder = self.machine.path(f"/var/log/pods/{about['namespace']}_{about['name']}_{about['uid']}/{container}")
        try:
            lines = (folder / f"{restart}.log").read_text().splitlines()
        except FileNotFoundError:
            return ""
        # Each line has a time, the stream, and F where a line of the container ends, else P (CRI's log format).
        parts = (line.split(" ", 3) for line in lines)
        return "".join(text + ("\n" if tag == "F" else "") for _, _, tag, text in parts)

    def process_of(self, pod: JSON) -> int:
        """The first process of the pod's only container, found by the paths of its control groups."""
        cid = pod["status"]["containerStatuses"][0]["containerID"].rpartition("//")[2]
        # CRI-O's monitor of a container may have a separate group with the same id.
        named = f"(^|[/:]|cri-containerd-|crio-){cid}(\\.scope)?(/|$)"
        found = self.machine.run(["sh", "-c", 'grep -lE "$0" /proc/[0-9]*/cgroup', named]).stdout
        return min(int(line.split("/")[2]) for line in found.splitlines() if line.startswith("/proc/"))

    def end(self, *pids: int) -> None:
        """Kill these processes of the machine; ignores a process that has ended."""
        self.machine.run(["sh", "-c", 'for pid; do kill -9 "$pid"; done', "kill", *map(str, pids)])

    def _start_kubelet(self) -> None:
        user = User(f"system:node:{self.name}", ("system:nodes",))
        self.machine.write("/etc/kubernetes/kubelet.kubeconfig", self._plane.kubeconfig(user), mode=0o600)
        authority = self._plane.server.authority
        self.machine.write("/etc/kubernetes/ca.crt", authority.pem)
        for file, content in zip(("kubelet.crt", "kubelet.key"), authority.server([_ADDRESS]), strict=True):
            self.machine.write(f"/etc/kubernetes/{file}", content, mode=0o600)
        configuration = self._configuration()
        self.machine.write("/etc/kubernetes/kubelet.json", json.dumps(configuration))
        self.machine.expose(configuration["port"])
        command = [
            self._assets.program("kubelet"),
            "--config=/etc/kubernetes/kubelet.json",
            "--kubeconfig=/etc/kubernetes/kubelet.kubeconfig",
            f"--hostname-override={self.name}",
            # The test sets its addresses, because the API server reaches it only through loopback.
            "--cloud-provider=external",
            "--node-labels=nvidia.com/gpu.present=true",
            "--v=2",
        ]
        self.kubelet = self.machine.program("kubelet", command)
        self.kubelet.start()
        wait_for(self._ready, lambda: f"node {self.name} is not ready: {self.kubelet and self.kubelet.tail()}", 90.0)

    def _configuration(self) -> JSON:
        """How a test's node differs from kubelet's defaults: loopback, no firewall, and no check of disk space."""
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
            "address": _ADDRESS,
            "port": free_port(),
            "healthzPort": 0,
            "tlsCertFile": "/etc/kubernetes/kubelet.crt",
            "tlsPrivateKeyFile": "/etc/kubernetes/kubelet.key",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": False},
                "x509": {"clientCAFile": "/etc/kubernetes/ca.crt"},
            },
            "authorization": {"mode": "AlwaysAllow"},
            "evictionHard": {"memory.available": "10Mi"},
            "imageGCHighThresholdPercent": 100,
            "nodeStatusUpdateFrequency": f"{every(2)}s",
            "syncFrequency": f"{every(2)}s",
        }

    def _ready(self) -> bool:
        assert self.kubelet is not None
        self.kubelet.check()
        try:
            node = self._kube.get(paths.nodes(self.name))
        except KubeNotFound:
            return False
        self._initialize(node)
        conditions = {c["type"]: c["status"] for c in (node.get("status") or {}).get("conditions") or ()}
        return conditions.get("Ready") == "True" and not node["spec"].get("taints")

    def _initialize(self, node: JSON) -> None:
        """What a cloud's controller does: give the Node its address, and remove the taint that waits for it."""
        taints = node["spec"].get("taints") or []
        if not any(each["key"] == _UNINITIALIZED for each in taints):
            return
        addresses = [{"type": "Hostname", "address": self.name}, {"type": "ExternalIP", "address": _ADDRESS}]
        self._kube.patch_merge(f"{paths.nodes(self.name)}/status", {"status": {"addresses": addresses}})
        kept = [each for each in taints if each["key"] != _UNINITIALIZED]
        self._kube.patch_merge(paths.nodes(self.name), {"spec": {"taints": kept}})
