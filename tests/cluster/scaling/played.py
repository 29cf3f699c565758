"""
A simulated autoscaler: it adds a node for each pod that kube-scheduler finds unschedulable, and removes empty nodes.

It does what Cluster Autoscaler and Karpenter have in common, on any control plane and without a program. It reads pods
and nodes from the API server, and does not know about GPUs or gpufraction. One pod adds at most one node.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

from contract import names
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube, KubeError, KubeNotFound
from tests.cluster.engines.autoscaler import GROUP_LABEL, Group

JSON = dict[str, Any]
_PACE = 0.1


class PlayedAutoscaler:
    """
    Adds nodes of one group from `start` to `stop`, each `delay` seconds after it saw its pod.

    `empty`: seconds after which a node without pods is removed. A group with `most` 0 never adds a node.
    """

    def __init__(self, kube: Kube, group: Group, *, delay: float = 0.5, empty: float = 4.0) -> None:
        self._kube, self._group, self._delay, self._empty = kube, group, delay, empty
        self._due: dict[str, float] = {}
        """When each pod's node is added, by the pod's uid; infinite once it has been added."""
        self._unused: dict[str, float] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="played-autoscaler", daemon=True)
        self.brought: list[str] = []
        """All nodes that were ever added, in order."""

    def start(self) -> None:
        """Start looking."""
        self._thread.start()

    def stop(self) -> None:
        """Stop, and remove the nodes that are left."""
        self._stop.set()
        self._thread.join(10.0)
        for name in self.nodes():
            self._remove(name)
        wait_for(lambda: not self.nodes(), "nodes stay")

    def nodes(self) -> list[str]:
        """The names of the group's existing nodes."""
        found = self._kube.list(paths.nodes()).items
        return [each["metadata"]["name"] for each in found if GROUP_LABEL in each["metadata"]["labels"]]

    def _run(self) -> None:
        while not self._stop.wait(_PACE):
            with contextlib.suppress(KubeError):
                self._look(time.monotonic())

    def _look(self, now: float) -> None:
        pods = self._kube.list(paths.pods()).items
        wanting = [pod for pod in pods if self._wants(pod)]
        there = self.nodes()
        for pod in wanting:
            due = self._due.setdefault(pod["metadata"]["uid"], now + self._delay)
            if due <= now and len(there) < self._group.most:
                self._due[pod["metadata"]["uid"]] = float("inf")
                there.append(self._bring())
        used = {pod["spec"].get("nodeName") for pod in pods}
        self._unused = {name: self._unused.get(name, now) for name in there if name not in used}
        for name, since in self._unused.items():
            if now - since > self._empty:
                self._remove(name)

    def _wants(self, pod: JSON) -> bool:
        """
        Whether kube-scheduler says that it has no node for the placeholder, and a node of the group would fit it.

        Other pods are ignored: they fit on nodes with other pods, and a real autoscaler would count that.
        """
        if pod["metadata"]["namespace"] != names.NAMESPACE:
            return False
        conditions = (pod.get("status") or {}).get("conditions") or []
        unschedulable = any((c["type"], c.get("reason")) == ("PodScheduled", "Unschedulable") for c in conditions)
        selector = pod["spec"].get("nodeSelector") or {}
        fits = selector.items() <= self._group.labels.items()
        return unschedulable and fits and not pod["spec"].get("nodeName") and "deletionTimestamp" not in pod["metadata"]

    def _bring(self) -> str:
        node = self._group.template()
        name = f"{self._group.name}-{len(self.brought) + 1}"
        node["metadata"]["name"] = name
        node["metadata"]["labels"]["kubernetes.io/hostname"] = name
        node["spec"]["providerID"] = f"played://{name}"
        self._kube.create(paths.nodes(), node)
        self.brought.append(name)
        return name

    def _remove(self, name: str) -> None:
        with contextlib.suppress(KubeNotFound):
            self._kube.delete(paths.nodes(name))


@contextlib.contextmanager
def running(kube: Kube, group: Group, *, delay: float = 0.5, empty: float = 4.0) -> Iterator[PlayedAutoscaler]:
    """Run it in this context."""
    played = PlayedAutoscaler(kube, group, delay=delay, empty=empty)
    played.start()
    try:
        yield played
    finally:
        played.stop()
