"""
A scene: actions of teams on a separate cluster, the expected outcome, and the actual one.

All outcomes are read from the API server or from the plugin's output. A scene of a feature that is off by default names
the flags that turn it on.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from contract import names
from playground import scenarios
from playground.cluster import DEFAULT_COMPONENTS, Cluster
from playground.shapes import DEMO, GpuNode
from playground.waiting import PATIENCE, NotInTime, wait_for
from runtime.kubernetes import paths

JSON = dict[str, Any]
_PLUGIN_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Seen:
    """The outcome of a scene: correct if the two lines are equal. `said`: lines for people."""

    expected: str
    observed: str
    lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Scene:
    """One need of teams with few cards. `show` gets a cluster with these nodes, flags and components."""

    title: str
    show: Callable[[Cluster], Seen]
    settings: Mapping[str, Sequence[str]] = field(default_factory=dict)
    nodes: tuple[GpuNode, ...] = DEMO
    components: tuple[str, ...] = DEFAULT_COMPONENTS
    files: Mapping[str, str] = field(default_factory=dict)
    """Files in the cluster's directory, by name. A node whose GPUs are `@` and the name has the GPUs in that file."""

    def nodes_in(self, directory: Path) -> tuple[GpuNode, ...]:
        """The nodes of a cluster with this directory, with the files there."""
        for name, text in self.files.items():
            (directory / name).write_text(text, encoding="utf-8")
        shown = {f"@{name}": f"@{directory / name}" for name in self.files}
        return tuple(replace(node, gpus=shown.get(node.gpus, node.gpus)) for node in self.nodes)


def team(cluster: Cluster, name: str, labels: Mapping[str, str] | None = None) -> None:
    """Create a namespace that gpufraction serves, with these additional labels."""
    made = {names.INJECT_LABEL: names.INJECT_ENABLED, **(labels or {})}
    cluster.kube.create(paths.namespaces(), {"metadata": {"name": name, "labels": made}})
    cluster.await_account(name)


def create(
    cluster: Cluster,
    namespace: str,
    name: str,
    limits: Mapping[str, str],
    *,
    annotations: Mapping[str, str] | None = None,
    spec: Mapping[str, Any] | None = None,
) -> JSON:
    """Create a pod of one container with these limits. Returns it."""
    container = {"name": "main", "image": "ubuntu:22.04", "resources": {"limits": dict(limits)}}
    metadata = {"name": name, "namespace": namespace, "annotations": dict(annotations or {})}
    body = {"containers": [container], "terminationGracePeriodSeconds": 0, **(spec or {})}
    return cluster.kube.create(paths.pods(namespace), {"metadata": metadata, "spec": body})


def running(cluster: Cluster, namespace: str) -> set[str]:
    """The names of the namespace's running pods."""
    found = scenarios.all_pods(cluster.kube, namespace)
    return {str(pod["metadata"]["name"]) for pod in found if scenarios.is_running(pod)}


def message(cluster: Cluster, namespace: str, name: str) -> str:
    """Wait until the waiting pod has a message, and return it."""

    def shown() -> str:
        return str(scenarios.condition(cluster.kube.get(paths.pods(namespace, name))).get("message", ""))

    return wait_for(shown, f"{namespace}/{name} is told nothing")


def told(cluster: Cluster, created: JSON, words: str = "") -> str:
    """The first message with these words that the pod got since its creation, even if it has another one now."""
    metadata = created["metadata"]
    namespace, version = metadata["namespace"], metadata["resourceVersion"]
    changes = cluster.kube.watch(paths.pods(namespace), resource_version=version, timeout_seconds=round(PATIENCE))
    with contextlib.closing(changes):
        for change in changes:
            found = str(scenarios.condition(change["object"]).get("message", ""))
            if change["object"]["metadata"].get("uid") == metadata["uid"] and found and words in found:
                return found
    raise NotInTime(f"{namespace}/{metadata['name']} is told nothing with {words!r}")


def plugin(cluster: Cluster, *arguments: str) -> str:
    """The output of `kubectl gpufraction ARGUMENTS` for an administrator."""
    command = [sys.executable, "-m", "kubectl_gpufraction", *arguments, "--kubeconfig", str(cluster.kubeconfig)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_PLUGIN_SECONDS, check=False)
    return done.stdout + done.stderr
