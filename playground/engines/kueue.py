"""Kueue's own program beside a real control plane, reached on loopback, with its CRDs, rights and webhooks."""

from __future__ import annotations

import base64
import contextlib
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from playground.api.http.certificates import Authority
from playground.api.kinds.values import User
from playground.cluster import Cluster
from playground.engines import engine
from playground.programs import installing
from playground.programs.process import Program
from playground.realapi.components import Ports
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube, KubeError

JSON = dict[str, Any]
PROGRAM, MANIFESTS = "kueue", "kueue-manifests.yaml"
NAMESPACE = "kueue-system"
GROUP_VERSION = "kueue.x-k8s.io/v1beta2"
ADMISSION_GATE = "kueue.x-k8s.io/admission"
_FIRST = ("Namespace", "CustomResourceDefinition")
_WEBHOOKS = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
_LEFT_OUT = ("APIService", "Deployment", "Service")
"""What needs pods of Kueue's own; it runs as a process here."""


def assets() -> Path | str:
    """The folder with Kueue's program and manifests, or one line on what is missing."""
    return engine.assets(PROGRAM, MANIFESTS)


@dataclass(frozen=True)
class Kueue:
    """The program that runs, and the objects that configure it."""

    kube: Kube
    program: Program

    def flavor(self, name: str, labels: Mapping[str, str], *, topology: str = "") -> None:
        """A ResourceFlavor for nodes with these labels, in a Topology where one is named."""
        topologies = {"topologyName": topology} if topology else {}
        self.create("resourceflavors", "ResourceFlavor", name, {"nodeLabels": dict(labels), **topologies})

    def queue(
        self, name: str, flavor: str, quota: Mapping[str, str], *, cohort: str = "", preemption: JSON | None = None
    ) -> None:
        """A ClusterQueue of one flavor for all namespaces, and its LocalQueue of the same name in `default`."""
        resources = [{"name": resource, "nominalQuota": amount} for resource, amount in quota.items()]
        group = {"coveredResources": list(quota), "flavors": [{"name": flavor, "resources": resources}]}
        spec: JSON = {"namespaceSelector": {}, "resourceGroups": [group]}
        if cohort:
            spec |= {"cohortName": cohort, "preemption": {"reclaimWithinCohort": "Any"}}
        if preemption:
            spec["preemption"] = preemption
        self.create("clusterqueues", "ClusterQueue", name, spec)
        self.create("localqueues", "LocalQueue", name, {"clusterQueue": name}, namespace="default")

    def create(self, plural: str, kind: str, name: str, spec: JSON, namespace: str | None = None) -> None:
        """Create one of Kueue's objects."""
        metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
        document = {"apiVersion": GROUP_VERSION, "kind": kind, "metadata": metadata, "spec": spec}
        self.kube.create(paths.path(GROUP_VERSION, plural, namespace), document)

    def workload_of(self, uid: str) -> JSON:
        """The Workload that it made for an object of `default`."""
        found = self.kube.list(paths.path(GROUP_VERSION, "workloads", "default")).items
        (only,) = (w for w in found if uid in {o["uid"] for o in w["metadata"].get("ownerReferences") or ()})
        return only

    def workloads(self) -> list[JSON]:
        """The Workloads of `default`."""
        return list(self.kube.list(paths.path(GROUP_VERSION, "workloads", "default")).items)

    def charged(self) -> list[JSON]:
        """What each pod set of `default` is charged that has a quota now: amounts by resource."""
        admitted = [each["status"]["admission"] for each in self.workloads() if each.get("status", {}).get("admission")]
        return [assigned["resourceUsage"] for each in admitted for assigned in each["podSetAssignments"]]

    def holds_nothing(self) -> bool:
        """Whether no workload of `default` has a quota."""
        return not self.charged()


@contextlib.contextmanager
def running(cluster: Cluster, folder: Path, directory: Path, configuration: Mapping[str, Any]) -> Iterator[Kueue]:
    """
    Kueue runs and its webhooks are in place meanwhile; the API server's objects of it stay.

    `configuration`: fields of Kueue's Configuration beside those by which it runs here, such as `resources`.
    """
    authority, ports = Authority("kueue"), Ports.free()
    webhook, health = ports.api, ports.etcd
    documents = [each for each in yaml.safe_load_all((folder / MANIFESTS).read_text()) if each]
    documents = [_reached(each, webhook, authority.pem) for each in documents if each["kind"] not in _LEFT_OUT]
    for kind in _FIRST:
        for document in documents:
            if document["kind"] == kind:
                installing.apply(cluster.kube, document)
    for document in documents:
        if document["kind"] == "CustomResourceDefinition":  # a Kueue before this one may have had another address
            fresh = {"spec": {"conversion": document["spec"].get("conversion") or {"strategy": "None"}}}
            cluster.kube.patch_merge(installing.path_of(document, named=True), fresh)
    wait_for(lambda: engine.are_served(cluster.kube, documents), "its kinds are not served", 30)
    certificates = directory / "certificates"
    certificates.mkdir(parents=True)
    for name, data in zip(("tls.crt", "tls.key"), authority.server(("localhost",)), strict=True):
        (certificates / name).write_bytes(data)
    program = _program(cluster, folder, directory, _configuration(webhook, health, certificates, configuration))
    program.start()
    try:
        wait_for(lambda: _is_ready(health) or not program.alive(), lambda: f"Kueue is not ready: {program.tail()}", 60)
        program.check()
        for document in documents:
            if document["kind"] in _WEBHOOKS:
                installing.apply(cluster.kube, document)
        found = Kueue(cluster.kube, program)
        wait_for(lambda: _answers(found), lambda: f"Kueue's webhooks do not answer: {program.tail()}", 30)
        yield found
    finally:
        for document in documents:
            if document["kind"] in _WEBHOOKS:
                with contextlib.suppress(KubeError):
                    cluster.kube.delete(installing.path_of(document, named=True))
        program.terminate()
        program.wait()


def _reached(document: JSON, port: int, authority: bytes) -> JSON:
    """The document with its webhooks under their loopback address."""
    if document["kind"] == "CustomResourceDefinition":
        conversion = document["spec"].get("conversion") or {}
        configs = [conversion["webhook"]["clientConfig"]] if conversion.get("strategy") == "Webhook" else []
    else:
        configs = [hook["clientConfig"] for hook in document.get("webhooks") or []]
    for config in configs:
        service = config.pop("service")
        config["url"] = f"https://localhost:{port}{service.get('path', '/')}"
        config["caBundle"] = base64.b64encode(authority).decode()
    return document


def _configuration(webhook: int, health: int, certificates: Path, more: Mapping[str, Any]) -> JSON:
    return {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "namespace": NAMESPACE,
        "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": "127.0.0.1", "port": webhook, "certDir": str(certificates)},
        "internalCertManagement": {"enable": False},
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"qps": 300, "burst": 500},
        "featureGates": {"VisibilityOnDemand": False},
        "integrations": {"frameworks": ["batch/job", "pod", "deployment"]},
        **more,
    }


def _program(cluster: Cluster, folder: Path, directory: Path, config: JSON) -> Program:
    (directory / "config.yaml").write_text(yaml.safe_dump(config))
    kubeconfig = directory / "kubeconfig.yaml"
    kubeconfig.write_text(cluster.control_plane.kubeconfig(User("kueue", ("system:masters",))))
    flags = ["--config", str(directory / "config.yaml"), "--kubeconfig", str(kubeconfig), "--zap-log-level=2"]
    command = (
        "unshare",
        "--map-root-user",
        "--mount",
        "sh",
        "-ec",
        _WITH_ITS_OWN_ETC,
        str(directory),
        str(folder / PROGRAM),
    )
    return Program("kueue", flags, log=directory / "kueue.log", environment={}, command=command)


_WITH_ITS_OWN_ETC = """
cp /etc/hosts "$0/hosts"
mount -t tmpfs tmpfs /etc
cp "$0/hosts" /etc/hosts
mkdir -p /etc/kueue/metrics/certs
cp "$0"/certificates/tls.* /etc/kueue/metrics/certs/
exec "$@"
"""
"""Kueue reads its metrics' certificate in a folder of /etc that no setting changes; it has an /etc of its own."""


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError, ssl.SSLError):
        return False


def _answers(kueue: Kueue) -> bool:
    document = {"apiVersion": GROUP_VERSION, "kind": "ResourceFlavor", "metadata": {"name": "probe"}, "spec": {}}
    try:
        kueue.kube.create(paths.path(GROUP_VERSION, "resourceflavors"), document, {"dryRun": "All"})
    except KubeError:
        return False
    return True
