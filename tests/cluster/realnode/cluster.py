"""
A real node in a cluster with gpufraction installed: real control plane, kubelet and container runtime, and our
programs.

The GPUs are files in /dev with NVIDIA's numbers and nothing behind them, and a library simulates the driver's.
Everything between a pod and its container's view is as on a real node.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from contract import names
from playground import scenarios
from playground.cluster import Cluster, account
from playground.programs import installing
from playground.programs.process import Program
from playground.realapi.components import Assets
from playground.realapi.real import Real
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import KubeError, KubeNotFound
from tests.cluster.realnode import inside
from tests.cluster.realnode.assets import NodeAssets
from tests.cluster.realnode.inside import Inside
from tests.cluster.realnode.node import IMAGE, RealNode, every
from tests.cluster.realnode.runtimes import MakeRuntime
from tests.cluster.realnode.ways import DRIVER, WAYS, Way, install
from tests.unit.nodeagent.fakelibrary import built

JSON = dict[str, Any]
NODE = "real"
UUIDS = tuple(f"GPU-{index}0000000-0000-4000-8000-000000000000" for index in (1, 2))
COMPONENTS = ("node-access", "delivery-dra", "resourceclaims", "allocator-eviction")
_LIBRARY = Path(__file__).parent / "nvml_for_toolkit.c"
MEMORY, RESERVED = 15842934784, 471859200
_START_SECONDS = 180.0
_RUN_SECONDS = 45.0


class RealNodeCluster:
    """
    `folder`: for logs and the node's files. One node, two cards of 14.75 GiB, the RuntimeClass `nvidia`.

    `settings` of the programs, with the components node-access and, if `hide_gpus`, hide-gpus. `way`: of delivery.
    """

    def __init__(
        self,
        assets: NodeAssets,
        runtime: MakeRuntime,
        folder: Path,
        *,
        settings: Mapping[str, Sequence[str]] | None = None,
        hide_gpus: bool = False,
        way: Way = WAYS["cdi"],
    ) -> None:
        self.assets, self.folder = assets, folder
        self.library = built(folder, source=_LIBRARY)
        self.script = folder / "nvml.script"
        self.show_cards()
        self.cluster = Cluster(
            nodes=(),
            control_plane=lambda gpus_of: Real(Assets(assets.folder), gpus_of=gpus_of, stand_in=False),
            directory=folder / "cluster",
            settings=settings,
            components=COMPONENTS,
        )
        self._runtime, self._hidden, self._first = runtime, hide_gpus, way
        self.agent: Program | None = None
        self.way: Way | None = None
        self._plugin: Program | None = None

    def start(self) -> None:
        self.cluster.start(_START_SECONDS)
        self.kube = self.cluster.kube
        if self._hidden:
            self._hide_gpus()
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
        )
        # For NVIDIA's programs, which read the library too.
        self.node.machine.environment["FAKE_NVML_SCRIPT"] = str(self.script)
        self.node.start()
        self._install_driver()
        runtime_class = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nvidia"}}
        self.kube.create(paths.runtimeclasses(), {**runtime_class, "handler": "nvidia"})
        self.use(self._first)

    def stop(self) -> None:
        if hasattr(self, "node"):
            self.node.stop()
        self.cluster.stop()

    def restart_runtime(self) -> None:
        """
        End the container runtime and start it again. NVIDIA's NRI plugin comes back some seconds later; a container
        that starts before that has no GPU.
        """
        before = self._plugin_starts()
        self.node.runtime.restart()
        if self._plugin is not None:
            wait_for(lambda: self._plugin_starts() > before, "the NRI plugin does not come back")

    def _plugin_starts(self) -> int:
        return self._plugin.log.read_text().count("Started plugin") if self._plugin is not None else 0

    def _hide_gpus(self) -> None:
        """The changes that the component and the keeper of certificates make to the webhook's configuration."""
        base = installing.webhook_configuration()
        (component,) = installing.documents(installing.COMPONENTS / "hide-gpus" / "webhook.yaml")
        whole, _ = self.cluster.reached({**base, "webhooks": [*base["webhooks"], *component["webhooks"]]})
        self.kube.patch_strategic(paths.mutatingwebhookconfigurations(base["metadata"]["name"]), whole)
        probe = {"metadata": {"name": "probe"}, "spec": {"containers": [container()]}}

        def hides() -> bool:
            self.cluster.programs["certs"].run()
            try:
                made = self.kube.create(paths.pods("default"), probe, {"dryRun": "All"})
            except KubeError:
                return False
            return "env" in made["spec"]["containers"][0]

        wait_for(hides, "the API server does not go by hide-gpus")

    def use(self, way: Way) -> None:
        """Deliver GPUs to containers that way, and tell the agent."""
        if self.way == way:
            return
        self.stop_agent()
        if self._plugin is not None:
            self._plugin.terminate()
            self._plugin.wait()
        self.way, self._plugin = way, install(way, self.assets, self.node.machine)
        labels = {str(names.DELIVERY): names.BY_DRA if way.label else None}
        self.kube.patch_merge(paths.nodes(NODE), {"metadata": {"labels": labels}})
        self.start_agent()
        self.await_gpunode(lambda status: status.get("delivery") == way.delivery)

    def _install_driver(self) -> None:
        """Install the libraries from which NVIDIA's programs learn that there is a driver, and its version."""
        folder = "/usr/lib/x86_64-linux-gnu" if platform.machine() == "x86_64" else "/usr/lib/aarch64-linux-gnu"
        commands = [f"mkdir -p {folder}", f"ln -sf {self.script} /run/nvml.script"]
        for name in ("libnvidia-ml", "libcuda"):
            commands.append(f"cp {self.library} {folder}/{name}.so.{DRIVER}")
            commands.append(f"ln -sf {name}.so.{DRIVER} {folder}/{name}.so.1")
        done = self.node.machine.run(["sh", "-ec", "\n".join([*commands, "ldconfig"])])
        assert done.returncode == 0, done.stdout

    # -- the agent ------------------------------------------------------------------------------------------------

    def show_cards(self, *more: str) -> None:
        """Set what the driver's library shows: two Tesla T4, and these lines."""
        lines = [f"driver {DRIVER}", "cuda 12040"]
        for index, uuid in enumerate(UUIDS):
            lines += [f"gpu {uuid} Tesla T4", f"memory {index} {MEMORY} {RESERVED} 0", f"capability {index} 7 5"]
        fresh = self.script.with_suffix(".new")
        fresh.write_text("\n".join([*lines, *more]) + "\n")
        fresh.rename(self.script)

    def start_agent(self, *flags: str, gpus: int = len(UUIDS)) -> None:
        """
        Start the agent as its DaemonSet with node-access runs it, as a process of the node. An earlier one is ended.

        `flags`: in addition to those of the way. `gpus`: cards and slices that it publishes.
        """
        self.stop_agent()
        kubeconfig = self.folder / "agent.kubeconfig"
        user = account("gpufraction-nodeagent", node=NODE, components=COMPONENTS)
        kubeconfig.write_text(self.cluster.control_plane.kubeconfig(user))
        python = self.node.machine.python
        command = [python, "-m", "nodeagent", "run", "--node", NODE, "--host-root", "/", "--listen", ""]
        command += ["--nvml-library", str(self.library), "--interval", f"{every(1)}s", "--heartbeat", "10s"]
        command += ["--pods=true"]
        command += [*(self.way.agent if self.way is not None else ()), *flags]
        self.agent = self.node.machine.program("nodeagent", command, {"KUBECONFIG": str(kubeconfig)})
        self.agent.start()
        self.await_gpunode(lambda status: len(status.get("gpus") or ()) == gpus)

    def stop_agent(self) -> None:
        if self.agent is not None:
            self.agent.terminate()
            self.agent.wait()

    def gpunode(self) -> JSON:
        """The status of the node's GPUNode; empty if there is none."""
        try:
            path = paths.path(names.GPUNODE_GROUP_VERSION, names.GPUNODE_PLURAL, name=NODE)
            found: JSON = self.kube.get(path).get("status") or {}
            return found
        except KubeNotFound:
            return {}

    def await_gpunode(self, done: Callable[[JSON], bool]) -> JSON:
        """Wait until this holds for its status. Returns the status."""
        wait_for(lambda: done(self.gpunode()), lambda: f"{self.gpunode()}; {self.agent and self.agent.tail()}")
        return self.gpunode()

    # -- pods -----------------------------------------------------------------------------------------------------

    def submit(self, name: str, *containers: JSON, annotations: Mapping[str, str] | None = None, **spec: Any) -> JSON:
        """
        Create a pod whose containers report what they see. `spec`: fields in addition to those that the way needs.
        """
        metadata = {"name": name, "annotations": dict(annotations or {})}
        body = {"containers": list(containers), "terminationGracePeriodSeconds": 1, **self._taken(), **spec}
        return self.kube.create(
            paths.pods("default"), {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": body}
        )

    def _taken(self) -> Mapping[str, str]:
        return self.way.pod if self.way is not None else {}

    def running(self, name: str) -> JSON:
        """The pod once it runs."""
        pod: JSON = {}

        def runs() -> bool:
            pod.update(self.kube.get(paths.pods("default", name)))
            started = (pod.get("status") or {}).get("containerStatuses") or ()
            return scenarios.is_running(pod) and all(each["ready"] for each in started)

        wait_for(runs, lambda: f"{scenarios.shown([pod])} {self.events(name)}", _RUN_SECONDS, every=0.2)
        return pod

    def waiting(self, name: str) -> JSON:
        """The pod once it waits for room, with a reason."""
        path = paths.pods("default", name)
        wait_for(lambda: bool(scenarios.waits(self.kube.get(path))), lambda: scenarios.shown([self.kube.get(path)]))
        return self.kube.get(path)

    def delete(self, name: str) -> None:
        """Request the pod's deletion; it is removed a moment later."""
        self.kube.delete(paths.pods("default", name))

    def inside(self, name: str, container: str = "c", *, restart: int = 0) -> Inside:
        """What a container of a running pod sees; `restart`: after this many restarts of the container."""
        pod = self.running(name)
        found: list[Inside] = []

        def has_lines() -> bool:
            seen = inside.read(self.node.log_of(pod, container, restart=restart))
            found.extend([seen] if seen is not None else [])
            return bool(found)

        wait_for(has_lines, lambda: self.node.log_of(pod, container, restart=restart), _RUN_SECONDS, every=0.2)
        return found[0]

    def await_deleted(self, name: str) -> None:
        """Wait until the pod no longer exists, for any reason."""

        def is_deleted() -> bool:
            try:
                self.kube.get(paths.pods("default", name))
            except KubeNotFound:
                return True
            return False

        wait_for(is_deleted, lambda: f"pod {name} stays: {self.events(name)}; {self.agent and self.agent.tail()}")

    def events(self, name: str, uid: str = "") -> list[str]:
        """The Events of pods of that name; of one pod only if its uid is given."""
        events = self.kube.list(paths.events("default"), {"fieldSelector": f"involvedObject.name={name}"}).items
        return [f"{e['reason']}: {e['message']}" for e in events if uid in (e["involvedObject"].get("uid"), "")]

    def clear(self) -> None:
        """Delete all pods, and wait until they are removed."""
        scenarios.clear(self.kube)


def container(name: str = "c", command: Sequence[str] = ("sh", "-c", inside.SCRIPT), **limits: str) -> JSON:
    """A container that reports what it sees. `limits`: ours by their last words (`gpu_memory`), `cpu`, `memory`."""
    ours = {key: f"{names.GROUP}/{key.replace('_', '-')}" for key in limits if key.startswith("gpu")}
    resources = {"limits": {ours.get(key, key): value for key, value in limits.items()}}
    # With it a container can try cards that it was not given; runtimes differ in whether all containers have it by
    # default.
    maker = {"capabilities": {"add": ["MKNOD"]}}
    return {
        "name": name,
        "image": IMAGE,
        "command": list(command),
        "resources": resources,
        "securityContext": maker,
    }
