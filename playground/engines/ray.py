"""KubeRay's operator. Its pods do not run Ray: the operator only checks whether kubelet reports them as ready."""

from __future__ import annotations

from typing import Any

from playground.engines.controllers import Controller
from runtime.kubernetes import paths

JSON = dict[str, Any]
VERSION = "ray.io/v1"
CLUSTERS = paths.path(VERSION, "rayclusters", "default")
JOBS = paths.path(VERSION, "rayjobs", "default")
_HEAD = {"metadata": {}, "spec": {"containers": [{"name": "head", "image": "ray"}]}}
_PROBE = {
    "apiVersion": VERSION,
    "kind": "RayCluster",
    "metadata": {"name": "probe"},
    "spec": {"suspend": True, "headGroupSpec": {"rayStartParams": {}, "template": _HEAD}},
}
KUBERAY = Controller(
    "kuberay",
    (
        "--enable-leader-election=false",
        "--metrics-addr=0",
        "--health-probe-bind-address=0",
        "--qps=300",
        "--burst=500",
    ),
    (CLUSTERS, _PROBE),
    lambda probe: bool((probe.get("status") or {}).get("conditions")),
)


def cluster(head: JSON, worker: JSON, replicas: int) -> JSON:
    """The spec of a RayCluster: a head, and one group of `replicas` workers, each from its own template."""
    group = {"groupName": "gpu", "replicas": replicas, "minReplicas": 0, "maxReplicas": 10}
    return {
        "headGroupSpec": {"rayStartParams": {}, "template": head},
        "workerGroupSpecs": [{**group, "rayStartParams": {"num-gpus": "1"}, "template": worker}],
    }
