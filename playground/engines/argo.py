"""The controller of Argo Workflows, and the phases and messages of a workflow's steps."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from playground.cluster import Cluster
from playground.engines import controllers
from playground.engines.controllers import Controller
from playground.programs import installing
from playground.programs.process import Program
from runtime.kubernetes import paths

JSON = dict[str, Any]
VERSION = "argoproj.io/v1alpha1"
WORKFLOWS = paths.path(VERSION, "workflows", "default")
NAMESPACE = "argo"
_CONFIG = "workflow-controller-configmap"
_PROBE = {
    "apiVersion": VERSION,
    "kind": "Workflow",
    "metadata": {"name": "probe"},
    "spec": {"entrypoint": "stop", "templates": [{"name": "stop", "suspend": {}}]},
}
ARGO = Controller(
    "argo-workflows",
    ("--namespace", NAMESPACE, "--executor-image", "argoexec", "--qps", "300", "--burst", "500"),
    (WORKFLOWS, _PROBE),
    lambda probe: (probe.get("status") or {}).get("phase") == "Running",
    {"LEADER_ELECTION_DISABLE": "true"},
)


@contextlib.contextmanager
def running(cluster: Cluster, folder: Path, directory: Path) -> Iterator[Program]:
    """Run the controller inside the context, without its metrics server."""
    config = {"metadata": {"name": _CONFIG, "namespace": NAMESPACE}, "data": {"metricsConfig": "enabled: false\n"}}
    for document in (
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        {"apiVersion": "v1", "kind": "ConfigMap", **config},
    ):
        installing.apply(cluster.kube, document)
    with controllers.running(ARGO, cluster, folder, directory) as program:
        yield program


def steps(workflow: JSON) -> dict[str, tuple[str, str]]:
    """The phase and message of each step that is a pod, by the step's name."""
    nodes = (workflow.get("status") or {}).get("nodes") or {}
    found = (each for each in nodes.values() if each["type"] == "Pod")
    return {each["displayName"]: (each.get("phase", ""), each.get("message", "")) for each in found}
