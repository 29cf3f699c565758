"""
A manager built with controller-runtime as a process alongside a real control plane, with its CRDs, RBAC and webhooks.

Kueue, JobSet, LeaderWorkerSet, Kubeflow Trainer and KServe are such programs. Except for KServe's, their configuration
files have similar fields. Each program is reached on loopback. The pods and Services in its manifests are left out.
"""

from __future__ import annotations

import base64
import contextlib
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from runtime.kubernetes.client import Kube, KubeError

JSON = dict[str, Any]
_FIRST = ("Namespace", "CustomResourceDefinition")
_WEBHOOKS = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
_LEFT_OUT = ("APIService", "Deployment", "Service")
"""The kinds that need the manager's own pods. They are left out, because the manager runs as a process here."""


def _as_it_is(directory: Path, program: Path) -> Sequence[str]:
    return (str(program),)


@dataclass(frozen=True, slots=True)
class Manager:
    """One such program. `probe`: the path of a kind, and an object of that kind that the program's webhooks accept."""

    name: str
    """The name of the program's file. Its manifests are in NAME-manifests.yaml."""
    configuration: str
    """The API version of its Configuration; empty without one."""
    probe: tuple[str, JSON]
    command: Callable[[Path, Path], Sequence[str]] = _as_it_is
    """Returns the command that runs the program. It gets the folder of this run and the program's path."""
    configured: Callable[[JSON], JSON] = lambda configuration: configuration
    """Returns its Configuration, if that has other fields than those of most managers."""
    certificates: str = "certificates"
    """The path of its certificate in the folder of the run, which is also its folder for temporary files."""
    flags: Callable[[int, int], Sequence[str]] | None = None
    """Returns the flags of a program without a Configuration, by the ports of its webhooks and of its health."""

    @property
    def manifests(self) -> str:
        """The name of the file that has its manifests."""
        return f"{self.name}-manifests.yaml"

    def assets(self) -> Path | str:
        """The folder with its program and manifests, or one line that says what is missing."""
        return engine.assets(self.name, self.manifests)


@contextlib.contextmanager
def running(
    manager: Manager, cluster: Cluster, folder: Path, directory: Path, configuration: Mapping[str, Any]
) -> Iterator[Program]:
    """
    Run the manager inside the context, with its webhooks in place. Its objects in the API server stay afterwards.

    `configuration`: more fields for its Configuration, in addition to those that it needs to run here.
    """
    authority, ports = Authority(manager.name), Ports.free()
    webhook, health = ports.api, ports.etcd
    documents = [each for each in yaml.safe_load_all((folder / manager.manifests).read_text()) if each]
    documents = [reached(each, webhook, authority.pem) for each in documents if each["kind"] not in _LEFT_OUT]
    for kind in _FIRST:
        for document in documents:
            if document["kind"] == kind:
                installing.apply(cluster.kube, document, within=60)
    for document in documents:
        if document["kind"] == "CustomResourceDefinition":  # an earlier run may have used another address
            fresh = {"spec": {"conversion": document["spec"].get("conversion") or {"strategy": "None"}}}
            cluster.kube.patch_merge(installing.path_of(document, named=True), fresh, timeout=60)
    wait_for(lambda: engine.are_served(cluster.kube, documents), "its kinds are not served", 30)
    certificates = directory / manager.certificates
    certificates.mkdir(parents=True)
    for name, data in zip(("tls.crt", "tls.key"), authority.server(("localhost",)), strict=True):
        (certificates / name).write_bytes(data)
    if manager.flags is not None:
        flags = manager.flags(webhook, health)
    else:
        config = manager.configured(_configuration(manager, webhook, health, certificates, configuration))
        (directory / "config.yaml").write_text(yaml.safe_dump(config))
        flags = ("--config", str(directory / "config.yaml"))
    program = _program(manager, cluster, folder, directory, flags)
    program.start()
    try:
        wait_for(
            lambda: _is_ready(health) or not program.alive(),
            lambda: f"{manager.name} is not ready: {program.tail()}",
            60,
        )
        program.check()
        for document in documents:
            if document["kind"] in _WEBHOOKS:
                installing.apply(cluster.kube, document)
        wait_for(
            lambda: _answers(manager, cluster.kube),
            lambda: f"the webhooks of {manager.name} do not answer: {program.tail()}",
            30,
        )
        yield program
    finally:
        for document in documents:
            if document["kind"] in _WEBHOOKS:
                with contextlib.suppress(KubeError):
                    cluster.kube.delete(installing.path_of(document, named=True))
        program.terminate()
        program.wait()


def reached(document: JSON, port: int, authority: bytes) -> JSON:
    """A copy of the document in which its webhooks have their loopback address."""
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


def _configuration(manager: Manager, webhook: int, health: int, certificates: Path, more: Mapping[str, Any]) -> JSON:
    return {
        "apiVersion": manager.configuration,
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": "127.0.0.1", "port": webhook, "certDir": str(certificates)},
        "internalCertManagement": {"enable": False},
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"qps": 300, "burst": 500},
        **more,
    }


def _program(manager: Manager, cluster: Cluster, folder: Path, directory: Path, own: Sequence[str]) -> Program:
    kubeconfig = directory / "kubeconfig.yaml"
    kubeconfig.write_text(cluster.control_plane.kubeconfig(User(manager.name, ("system:masters",))))
    flags = [*own, "--kubeconfig", str(kubeconfig), "--zap-log-level=2"]
    command = manager.command(directory, folder / manager.name)
    environment = {"TMPDIR": str(directory)}
    return Program(manager.name, flags, log=directory / f"{manager.name}.log", environment=environment, command=command)


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError, ssl.SSLError):
        return False


def _answers(manager: Manager, kube: Kube) -> bool:
    path, document = manager.probe
    try:
        kube.create(path, document, {"dryRun": "All"})
    except KubeError:
        return False
    return True
