"""The programs of JobSet and LeaderWorkerSet, which create the pods of a gang."""

from __future__ import annotations

from typing import Any

from playground.engines.manager import Manager
from runtime.kubernetes import paths

JOBSET_VERSION = "jobset.x-k8s.io/v1alpha2"
LEADERWORKERSET_VERSION = "leaderworkerset.x-k8s.io/v1"
JOBSETS = paths.path(JOBSET_VERSION, "jobsets", "default")
SETS = paths.path(LEADERWORKERSET_VERSION, "leaderworkersets", "default")
_POD = {"restartPolicy": "Never", "containers": [{"name": "main", "image": "probe"}]}
_JOB = {"name": "probe", "template": {"spec": {"template": {"spec": _POD}}}}


def _creator(name: str, configuration: str, version: str, path: str, kind: str, spec: dict[str, Any]) -> Manager:
    """A manager of this kind. `spec`: the spec of an object that its webhooks accept."""
    probe = {"apiVersion": version, "kind": kind, "metadata": {"name": "probe"}, "spec": spec}
    return Manager(name, configuration, (path, probe))


JOBSET = _creator(
    "jobset", "config.jobset.x-k8s.io/v1alpha1", JOBSET_VERSION, JOBSETS, "JobSet", {"replicatedJobs": [_JOB]}
)
LEADERWORKERSET = _creator(
    "lws",
    "config.lws.x-k8s.io/v1alpha1",
    LEADERWORKERSET_VERSION,
    SETS,
    "LeaderWorkerSet",
    {"leaderWorkerTemplate": {"workerTemplate": {"spec": {**_POD, "restartPolicy": "Always"}}}},
)
