"""KServe's own program, in its mode Standard: a Deployment for each InferenceService, without an ingress."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from playground.cluster import Cluster
from playground.engines import manager
from playground.engines.manager import Manager
from playground.programs import installing
from playground.programs.process import Program
from runtime.kubernetes import paths

JSON = dict[str, Any]
VERSION = "serving.kserve.io/v1beta1"
SERVICES = paths.path(VERSION, "inferenceservices", "default")
RUNTIMES = paths.path("serving.kserve.io/v1alpha1", "clusterservingruntimes")
CONTAINER = "kserve-container"
"""The name of a model's container in a runtime and in a pod."""
NAMESPACE = "kserve"
_CONFIG = "inferenceservice-config"
_CHANGED: JSON = {"deploy": {"defaultDeploymentMode": "Standard"}, "ingress": {"disableIngressCreation": True}}
"""What an administrator without Knative and Istio changes in the ConfigMap that KServe ships."""


def service(name: str, predictor: JSON, **annotations: str) -> JSON:
    """An InferenceService with this predictor."""
    metadata = {"name": name, "annotations": annotations}
    return {"apiVersion": VERSION, "kind": "InferenceService", "metadata": metadata, "spec": {"predictor": predictor}}


def _flags(webhook: int, health: int) -> tuple[str, ...]:
    return (f"--webhook-port={webhook}", f"--health-probe-addr=127.0.0.1:{health}", "--metrics-addr=0")


KSERVE = Manager(
    "kserve",
    "",
    (SERVICES, service("probe", {"containers": [{"name": CONTAINER, "image": "probe"}]})),
    certificates="k8s-webhook-server/serving-certs",
    flags=_flags,
)


@contextlib.contextmanager
def running(cluster: Cluster, folder: Path, directory: Path) -> Iterator[Program]:
    """It runs meanwhile, and its ConfigMap stays."""
    for document in installing.documents(folder / KSERVE.manifests):
        if document["kind"] == "Namespace":
            installing.apply(cluster.kube, document)
        elif document["kind"] == "ConfigMap" and document["metadata"]["name"] == _CONFIG:
            installing.apply(cluster.kube, {**document, "data": _configured(document["data"])})
    with manager.running(KSERVE, cluster, folder, directory, {}) as program:
        yield program


def runtime(name: str, pod: JSON) -> JSON:
    """A ClusterServingRuntime for models of the format `name`, with this pod's containers and what else it has."""
    formats = [{"name": name, "version": "1", "autoSelect": True}]
    spec = {**pod, "supportedModelFormats": formats}
    return {
        "apiVersion": "serving.kserve.io/v1alpha1",
        "kind": "ClusterServingRuntime",
        "metadata": {"name": name},
        "spec": spec,
    }


def _configured(data: dict[str, str]) -> dict[str, str]:
    return {**data, **{key: json.dumps({**json.loads(data[key]), **more}) for key, more in _CHANGED.items()}}
