"""JobSet's and LeaderWorkerSet's own programs, which create the pods of a gang."""

from __future__ import annotations

from playground.engines.manager import Manager
from runtime.kubernetes import paths

JOBSET_VERSION = "jobset.x-k8s.io/v1alpha2"
LEADERWORKERSET_VERSION = "leaderworkerset.x-k8s.io/v1"
_POD = {"restartPolicy": "Never", "containers": [{"name": "main", "image": "probe"}]}
_JOB = {"name": "probe", "template": {"spec": {"template": {"spec": _POD}}}}

JOBSET = Manager(
    "jobset",
    "config.jobset.x-k8s.io/v1alpha1",
    (
        paths.path(JOBSET_VERSION, "jobsets", "default"),
        {
            "apiVersion": JOBSET_VERSION,
            "kind": "JobSet",
            "metadata": {"name": "probe"},
            "spec": {"replicatedJobs": [_JOB]},
        },
    ),
)
LEADERWORKERSET = Manager(
    "lws",
    "config.lws.x-k8s.io/v1alpha1",
    (
        paths.path(LEADERWORKERSET_VERSION, "leaderworkersets", "default"),
        {
            "apiVersion": LEADERWORKERSET_VERSION,
            "kind": "LeaderWorkerSet",
            "metadata": {"name": "probe"},
            "spec": {"leaderWorkerTemplate": {"workerTemplate": {"spec": {**_POD, "restartPolicy": "Always"}}}},
        },
    ),
)
