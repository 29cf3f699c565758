"""
The controllers, webhook and autoscaler of Knative Serving as processes alongside a control plane.

The API server reaches the webhook by a Service, as in a cluster. Here the Service is an ExternalName for loopback. The
activator and an ingress are left out: they forward requests to pods, and there is no pod network here. As a result, a
Route is never ready, and no request scales a revision up again from zero.
"""

from __future__ import annotations

import contextlib
import time
import urllib.parse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from playground.api.kinds.values import User
from playground.cluster import Cluster
from playground.engines import engine
from playground.engines.knative import apart
from playground.programs import installing
from playground.programs.probes import free_port
from playground.programs.process import Program
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube, KubeError

JSON = dict[str, Any]
NAMESPACE = "knative-serving"
GROUP_VERSION = "serving.knative.dev/v1"
SERVICES = paths.path(GROUP_VERSION, "services", "default")
MANIFESTS = "knative-manifests.yaml"
APART, WEBHOOK = ("knative-controller", "knative-autoscaler"), "knative-webhook"
IMAGE = "dev.local/serve"
"""An image of a registry whose tags Knative does not resolve."""
_FIRST = ("Namespace", "CustomResourceDefinition")
_THEN = ("ConfigMap", "Secret", "Service")
_WEBHOOKS = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
_ENVIRONMENT = {
    "SYSTEM_NAMESPACE": NAMESPACE,
    "CONFIG_LOGGING_NAME": "config-logging",
    "CONFIG_OBSERVABILITY_NAME": "config-observability",
    # The autoscaler writes it into an EndpointSlice, which refuses loopback addresses. No program connects to it.
    "POD_IP": "192.0.2.1",
    "WEBHOOK_NAME": "webhook",
}
_PROBE = {"spec": {"template": {"spec": {"containers": [{"image": IMAGE}]}}}}


def assets() -> Path | str:
    """The folder with its programs and manifests, or one line that says what is missing."""
    return engine.assets(*APART, WEBHOOK, MANIFESTS)


@dataclass(frozen=True)
class Knative:
    """The running programs of Knative Serving."""

    kube: Kube
    programs: tuple[Program, ...]

    def create(self, name: str, spec: JSON, **annotations: str) -> None:
        """Create a Service with one revision of this pod. `annotations`: the revision's, by name without prefix."""
        self.kube.create(SERVICES, service(name, spec, annotations))

    def conditions(self, name: str) -> dict[str, JSON]:
        """The conditions of a Service, by type."""
        status = self.kube.get(f"{SERVICES}/{name}").get("status") or {}
        return {each["type"]: each for each in status.get("conditions") or ()}

    def tail(self) -> str:
        """The last lines of the programs' logs."""
        return "\n".join(f"{each.name}: {each.tail(8)}" for each in self.programs)


def service(name: str, spec: JSON, annotations: Mapping[str, str]) -> JSON:
    """The Service object whose revision has this pod and these annotations."""
    template = {"metadata": {"annotations": dict(annotations)}, "spec": spec}
    return {
        "apiVersion": GROUP_VERSION,
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"template": template},
    }


@contextlib.contextmanager
def running(cluster: Cluster, folder: Path, directory: Path, config: Mapping[str, JSON]) -> Iterator[Knative]:
    """Run the programs inside the context. Knative's objects stay. `config`: the data of its ConfigMaps, by name."""
    documents = list(installing.documents(folder / MANIFESTS))
    port = free_port()
    _apply(cluster.kube, documents, port, config)
    directory.mkdir(parents=True)
    kubeconfig = directory / "kubeconfig.yaml"
    kubeconfig.write_text(cluster.control_plane.kubeconfig(User("knative", ("system:masters",))))
    api = urllib.parse.urlsplit(yaml.safe_load(kubeconfig.read_text())["clusters"][0]["cluster"]["server"]).port
    assert api is not None
    environment = {**_ENVIRONMENT, "KUBECONFIG": str(kubeconfig)}
    programs = (
        Program(
            WEBHOOK,
            ["-disable-ha"],
            log=directory / f"{WEBHOOK}.log",
            environment={
                **environment,
                "POD_NAME": WEBHOOK,
                "WEBHOOK_PORT": str(port),
                "PROFILING_PORT": str(free_port()),
            },
            command=(str(folder / WEBHOOK),),
        ),
        *(
            Program(
                name,
                [],
                log=directory / f"{name}.log",
                environment={**environment, "POD_NAME": name},
                command=apart.command(api, str(folder / name)),
            )
            for name in APART
        ),
    )
    found = Knative(cluster.kube, programs)
    for program in programs:
        program.start()
    try:
        for document in documents:
            if document["kind"] in _WEBHOOKS:
                for hook in document["webhooks"]:
                    hook["clientConfig"]["service"]["port"] = port
                installing.apply(cluster.kube, document)
        wait_for(lambda: _answers(found), lambda: f"its webhook does not answer: {found.tail()}", 90)
        yield found
    finally:
        for document in documents:
            if document["kind"] in _WEBHOOKS:
                with contextlib.suppress(KubeError):
                    cluster.kube.delete(installing.path_of(document, named=True))
        for program in programs:
            program.terminate()
        for program in programs:
            program.wait()


def _apply(kube: Kube, documents: list[JSON], port: int, config: Mapping[str, JSON]) -> None:
    """Apply all but pods, RBAC objects (the programs run as an administrator here) and webhook configurations."""
    for kind in _FIRST:
        for document in documents:
            if document["kind"] == kind:
                installing.apply(kube, document, within=60)
    wait_for(lambda: engine.are_served(kube, documents), "its kinds are not served", 30)
    for document in documents:
        if document["kind"] in _THEN:
            if document["metadata"]["name"] == "webhook":
                ports = [{"name": "https-webhook", "port": port}]
                document["spec"] = {"type": "ExternalName", "externalName": "localhost", "ports": ports}
            installing.apply(kube, document)
    for name, data in config.items():
        kube.patch_merge(paths.configmaps(NAMESPACE, name), {"data": data})


def _answers(knative: Knative) -> bool:
    for program in knative.programs:
        program.check()
    try:
        knative.kube.create(SERVICES, {**service("probe", {}, {}), **_PROBE}, {"dryRun": "All"})
    except KubeError:
        time.sleep(0.2)
        return False
    return True
