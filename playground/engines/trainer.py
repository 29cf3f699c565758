"""The program of Kubeflow Trainer, which creates a JobSet for each TrainJob. JobSet's program runs alongside it."""

from __future__ import annotations

from typing import Any

from playground.engines.manager import Manager
from runtime.kubernetes import paths

JSON = dict[str, Any]
VERSION = "trainer.kubeflow.org/v1alpha1"
JOBS = paths.path(VERSION, "trainjobs", "default")
RUNTIMES = paths.path(VERSION, "trainingruntimes", "default")
_STEP = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}


def runtime(name: str, nodes: int, pod: JSON) -> JSON:
    """A TrainingRuntime with this number of nodes, each a pod of this template. Its container must be named `node`."""
    job = {"metadata": {"labels": _STEP}, "spec": {"backoffLimit": 0, "template": pod}}
    template = {"spec": {"replicatedJobs": [{"name": "node", "template": job}]}}
    spec = {"mlPolicy": {"numNodes": nodes}, "template": template}
    return {"apiVersion": VERSION, "kind": "TrainingRuntime", "metadata": {"name": name}, "spec": spec}


def _configured(configuration: JSON) -> JSON:
    """The configuration fields that this program supports."""
    taken = {key: value for key, value in configuration.items() if key != "internalCertManagement"}
    webhook = {key: value for key, value in configuration["webhook"].items() if key != "certDir"}
    metrics = {**configuration["metrics"], "secureServing": False}
    return {**taken, "webhook": webhook, "metrics": metrics, "certManagement": {"enable": False}}


TRAINER = Manager(
    "trainer",
    "config.trainer.kubeflow.org/v1alpha1",
    (RUNTIMES, runtime("probe", 1, {"spec": {"containers": [{"name": "node", "image": "probe"}]}})),
    configured=_configured,
    certificates="k8s-webhook-server/serving-certs",
)
