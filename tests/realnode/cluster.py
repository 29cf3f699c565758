"""
A real node in a cluster with gpufraction installed: real control plane, kubelet and container runtime, our programs.

The GPUs are files: numbers of NVIDIA's in /dev with nothing behind them, a library that plays the driver's, and CDI
descriptions that name both. Between a pod and what its container sees everything is what a real node has.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from contract import names
from playground import scenarios
from playground.cluster import Cluster, account
from playground.programs import Program
from playground.real import Real
from playground.realapi.components import Assets
from runtime import kubepaths
from runtime.kube import KubeNotFound
from tests.nodeagent.fakelibrary import built
from tests.realnode import inside
from tests.realnode.assets import NodeAssets
from tests.realnode.inside import Inside
from tests.realnode.node import IMAGE, RealNode
from tests.realnode.runtimes import MakeRuntime

JSON = dict[str, Any]
NODE = "real"
UUIDS = tuple(f"GPU-{index}0000000-0000-4000-8000-000000000000" for index in (1, 2))
MEMORY, RESERVED = 15842934784, 471859200
CDI_KIND = "nvidia.com/gpu"
_START_SECONDS = 180.0
_RUN_SECONDS = 90.0


def described(library: Path, kind: str = CDI_KIND) -> str:
    """What `nvidia-ctk cdi generate` would write of these cards: each by UUID and by number, and all of them."""
    nodes = [{"path": f"/dev/nvidia{index}"} for index in range(len(UUIDS))]
    devices = [
        {"name": name, "containerEdits": {"deviceNodes": [nodes[index]]}}
        for index, uuid in enumerate(UUIDS)
        for name in (uuid, str(index))
    ]
    mount = {
        "hostPath": str(library),
        "containerPath": "/usr/lib/libnvidia-ml.so.1",
        "options": ["ro", "nosuid", "nodev", "rbind"],
    }
    edits = {
        "env": ["NVIDIA_VISIBLE_DEVICES=void"],
        "deviceNodes": [{"path": "/dev/nvidiactl"}, {"path": "/dev/nvidia-uvm"}],
        "mounts": [mount],
    }
    every = {"name": "all", "containerEdits": {"deviceNodes": nodes}}
    return json.dumps({"cdiVersion": "0.5.0", "kind": kind, "devices": [*devices, every], "containerEdits": edits})


def toolkit(assets: NodeAssets, *, mode: str = "cdi") -> str:
    """The configuration of NVIDIA's container toolkit, with its programs where they are."""
    return f"""\
disable-require = true
[nvidia-container-runtime]
mode = "{mode}"
runtimes = ["{assets.program("runc")}"]
[nvidia-container-runtime-hook]
path = "{assets.program("nvidia-container-runtime-hook")}"
[nvidia-ctk]
path = "{assets.program("nvidia-ctk")}"
"""


class RealNodeCluster:
    """
    `folder`: for logs, and what the node keeps. One node, two cards of 14.75 GiB, the RuntimeClass `nvidia`.

    `settings` and `components` are the cluster's.
    """

    def __init__(
        self,
        assets: NodeAssets,
        runtime: MakeRuntime,
        folder: Path,
        *,
        settings: Mapping[str, Sequence[str]] | None = None,
        components: Sequence[str] = (),
    ) -> None:
        self.assets, self.folder = assets, folder
        self.library = built(folder)
        self.script = folder / "nvml.script"
        self.show_cards()
        self.cluster = Cluster(
            nodes=(),
            control_plane=lambda gpus_of: Real(Assets(assets.folder), gpus_of=gpus_of, stand_in=False),
            directory=folder / "cluster",
            settings=settings,
            components=components,
        )
        self._runtime = runtime
        self.agent: Program | None = None

    def start(self) -> None:
        self.cluster.start(_START_SECONDS)
        self.kube = self.cluster.kube
        plane = self.cluster.control_plane
        assert isinstance(plane, Real)
        self.node = RealNode(
            self.assets,
            plane,
            self.kube,
            runtime=self._runtime,
            folder=self.folder,
            name=NODE,
            gpus=len(UUIDS),
            files={
                "/etc/cdi/nvidia.json": described(self.library),
                "/etc/nvidia-container-runtime/config.toml": toolkit(self.assets),
            },
        )
        self.node.start()
        runtime_class = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nvidia"}}
        self.kube.create(kubepaths.runtimeclasses(), {**runtime_class, "handler": "nvidia"})
        self.start_agent()

    def stop(self) -> None:
        if hasattr(self, "node"):
            self.node.stop()
        self.cluster.stop()

    # -- the agent ------------------------------------------------------------------------------------------------

    def show_cards(self, *more: str) -> None:
        """What the driver's library shows: two Tesla T4, and these lines."""
        lines = ["driver 550.54.15", "cuda 12040"]
        for index, uuid in enumerate(UUIDS):
            lines += [f"gpu {uuid} Tesla T4", f"memory {index} {MEMORY} {RESERVED} 0", f"capability {index} 7 5"]
        fresh = self.script.with_suffix(".new")
        fresh.write_text("\n".join([*lines, *more]) + "\n")
        fresh.rename(self.script)

    def start_agent(self, *flags: str) -> None:
        """The agent as its DaemonSet with node-access runs it, as a process of the node; an earlier one is ended."""
        self.stop_agent()
        kubeconfig = self.folder / "agent.kubeconfig"
        kubeconfig.write_text(self.cluster.control_plane.kubeconfig(account("gpufraction-nodeagent", node=NODE)))
        command = [sys.executable, "-m", "nodeagent", "run", "--node", NODE, "--host-root", "/", "--listen", ""]
        command += ["--nvml-library", str(self.library), "--interval", "1s", "--heartbeat", "10s", *flags]
        environment = {"KUBECONFIG": str(kubeconfig), "FAKE_NVML_SCRIPT": str(self.script)}
        self.agent = self.node.machine.program("nodeagent", command, environment)
        self.agent.start()
        self.await_gpunode(lambda status: len(status.get("gpus") or ()) == len(UUIDS))

    def stop_agent(self) -> None:
        if self.agent is not None:
            self.agent.terminate()
            self.agent.wait()

    def gpunode(self) -> JSON:
        """The status of the node's GPUNode; empty while there is none."""
        try:
            path = kubepaths.path(names.GPUNODE_GROUP_VERSION, names.GPUNODE_PLURAL, name=NODE)
            found: JSON = self.kube.get(path).get("status") or {}
            return found
        except KubeNotFound:
            return {}

    def await_gpunode(self, done: Callable[[JSON], bool]) -> JSON:
        """Its status once that is so."""
        scenarios.wait_for(
            lambda: done(self.gpunode()), lambda: f"{self.gpunode()}; {self.agent and self.agent.tail()}"
        )
        return self.gpunode()

    # -- pods -----------------------------------------------------------------------------------------------------

    def submit(self, name: str, *containers: JSON, annotations: Mapping[str, str] | None = None, **spec: Any) -> JSON:
        """Create a pod of containers that tell what they see."""
        metadata = {"name": name, "annotations": dict(annotations or {})}
        body = {"containers": list(containers), "terminationGracePeriodSeconds": 1, **spec}
        return self.kube.create(
            kubepaths.pods("default"), {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": body}
        )

    def running(self, name: str) -> JSON:
        """The pod once it runs."""
        pod: JSON = {}

        def runs() -> bool:
            pod.update(self.kube.get(kubepaths.pods("default", name)))
            return scenarios.is_running(pod)

        scenarios.wait_for(runs, lambda: f"{scenarios.shown([pod])} {self.told(name)}", _RUN_SECONDS, every=0.2)
        return pod

    def waiting(self, name: str) -> JSON:
        """The pod once it waits for room, and was told why."""
        path = kubepaths.pods("default", name)
        scenarios.wait_for(
            lambda: bool(scenarios.waits(self.kube.get(path))), lambda: scenarios.shown([self.kube.get(path)])
        )
        return self.kube.get(path)

    def delete(self, name: str) -> None:
        """Ask for the pod's end; it is gone a moment later."""
        self.kube.delete(kubepaths.pods("default", name))

    def inside(self, name: str, container: str = "c", *, restart: int = 0) -> Inside:
        """What a container of a running pod sees; `restart`: after so many restarts of the container."""
        pod = self.running(name)
        found: list[Inside] = []

        def told() -> bool:
            seen = inside.read(self.node.log_of(pod, container, restart=restart))
            found.extend([seen] if seen is not None else [])
            return bool(found)

        scenarios.wait_for(told, lambda: self.node.log_of(pod, container, restart=restart), _RUN_SECONDS, every=0.2)
        return found[0]

    def told(self, name: str) -> list[str]:
        """The Events of a pod, for whoever waits for it in vain."""
        events = self.kube.list(kubepaths.events("default")).items
        return [f"{e['reason']}: {e['message']}" for e in events if e["involvedObject"]["name"] == name]

    def clear(self) -> None:
        """Delete all pods, and wait until they are gone."""
        scenarios.clear(self.kube)


def container(name: str = "c", command: Sequence[str] = ("sh", "-c", inside.SCRIPT), **limits: str) -> JSON:
    """A container that tells what it sees. `limits`: ours by their last words (`gpu_memory`), `cpu`, `memory`."""
    ours = {key: f"{names.GROUP}/{key.replace('_', '-')}" for key in limits if key.startswith("gpu")}
    resources = {"limits": {ours.get(key, key): value for key, value in limits.items()}}
    # With it a container can try the cards that it was not given; runtimes differ in whether they leave it to all.
    maker = {"capabilities": {"add": ["MKNOD"]}}
    return {
        "name": name,
        "image": IMAGE,
        "command": list(command),
        "resources": resources,
        "securityContext": maker,
    }
