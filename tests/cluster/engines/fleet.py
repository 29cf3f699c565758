"""Acts as the nodes that an autoscaler adds: what a kubelet reports, and our node agent on nodes with GPUs."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from contract import names
from playground.cluster import Cluster, account
from playground.programs.process import Program
from runtime.kubernetes import paths
from runtime.kubernetes.client import KubeError
from tests.cluster.engines.autoscaler import GROUP_LABEL

JSON = dict[str, Any]
_PAUSE = 0.25
_HOSTNAME = "kubernetes.io/hostname"
_ADDRESS = {"type": "InternalIP", "address": "10.0.0.1"}
"""A kubelet's address. Without one, the API server refuses the status of each of the node's pods."""


class Fleet:
    """
    Follows the nodes of groups in its own thread, from `start` to `stop`.

    `gpus`: the GPUs of a group's nodes in the format of the agent's simulation; nodes of other groups get no agent.
    `delay`: seconds from a node's creation to its agent's start, for the driver's installation.
    """

    def __init__(
        self,
        cluster: Cluster,
        directory: Path,
        gpus: Mapping[str, str],
        *,
        delay: float = 0.0,
        flags: tuple[str, ...] = (),
    ) -> None:
        self._cluster, self._directory = cluster, directory
        self._gpus, self._delay, self._flags = gpus, delay, flags
        self._agents: dict[str, Program] = {}
        self._seen: dict[str, float] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fleet", daemon=True)
        self.names: set[str] = set()
        """All nodes that ever existed."""

    def start(self) -> None:
        """Start following."""
        self._directory.mkdir(parents=True, exist_ok=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread and all agents."""
        self._stop.set()
        self._thread.join(30.0)
        for agent in self._agents.values():
            agent.terminate()
        for agent in self._agents.values():
            agent.wait()

    def _run(self) -> None:
        while not self._stop.wait(_PAUSE):
            # The API server may be busy, and a node may go away while it is read: the next look comes soon.
            with contextlib.suppress(KubeError):
                self._look()

    def _look(self) -> None:
        found = self._cluster.kube.list(paths.path("v1", "nodes")).items
        there = {node["metadata"]["name"]: node for node in found if GROUP_LABEL in node["metadata"]["labels"]}
        self.names |= set(there)
        for name in [name for name in self._agents if name not in there]:
            agent = self._agents.pop(name)
            agent.terminate()
            agent.wait()
        for name, node in there.items():
            self._follow(name, node)

    def _follow(self, name: str, node: JSON) -> None:
        since = self._seen.setdefault(name, time.monotonic())
        path, labels = paths.path("v1", "nodes", name=name), node["metadata"]["labels"]
        if labels.get(_HOSTNAME) != name:
            self._cluster.kube.patch_merge(path, {"metadata": {"labels": {_HOSTNAME: name}}})
        if all(each["type"] != "InternalIP" for each in node["status"].get("addresses") or ()):
            self._cluster.kube.patch_strategic(f"{path}/status", {"status": {"addresses": [_ADDRESS]}})
        group = labels[GROUP_LABEL]
        if name not in self._agents and group in self._gpus and time.monotonic() - since >= self._delay:
            self._agents[name] = self._agent(name, self._gpus[group])
            self._agents[name].start()

    def _agent(self, node: str, gpus: str) -> Program:
        kubeconfig = self._directory / f"kubeconfig-{node}"
        kubeconfig.write_text(self._cluster.control_plane.kubeconfig(account("gpufraction-nodeagent", node=node)))
        options = self._cluster.directory / "options" / names.OPTIONS_FILE
        return Program(
            f"nodeagent {node}",
            [
                *("nodeagent", "run", "--node", node, "--simulate", gpus, "--listen", "", "--interval", "1s"),
                *("--options", str(options), *self._flags),
            ],
            log=self._directory / f"nodeagent-{node}.log",
            environment={"KUBECONFIG": str(kubeconfig)},
        )


@contextlib.contextmanager
def following(
    cluster: Cluster, directory: Path, gpus: Mapping[str, str], *, delay: float = 0.0, flags: tuple[str, ...] = ()
) -> Iterator[Fleet]:
    """Run a fleet that follows the nodes."""
    fleet = Fleet(cluster, directory, gpus, delay=delay, flags=flags)
    fleet.start()
    try:
        yield fleet
    finally:
        fleet.stop()
