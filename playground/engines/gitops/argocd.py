"""
Argo CD's repo-server and application-controller as processes alongside an API server, with Redis as their cache.

Argo CD's API server, its page, Dex and notifications are left out: an Application's status has what the page shows. All
programs listen on loopback, except the controller's metrics, because no setting changes their address.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from playground.engines import engine
from playground.programs import installing, together
from playground.programs.probes import free_port
from playground.programs.process import Program
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube

JSON = dict[str, Any]
NAMESPACE = "argocd"
PROGRAM, MANIFESTS, REDIS = "argocd", "argocd-manifests.yaml", "redis-server"
_CALLED = ("kustomize", "git-verify-wrapper.sh")
"""The programs that the repo-server runs."""
_APPLIED = ("CustomResourceDefinition", "ConfigMap", "Secret")
_REFRESH = "argocd.argoproj.io/refresh"
_NAME = "ARGOCD_BINARY_NAME"
"""The variable that selects which of Argo CD's programs the file runs as."""
_RESYNC = 3
"""Seconds between two refreshes. Argo CD's default is 120."""


def assets() -> Path | str:
    """The folder with its program, its manifests and the tools that it runs, or one line that says what is missing."""
    if shutil.which(REDIS) is None:
        return f"{REDIS} is not on PATH (Debian's package {REDIS})"
    return engine.assets(PROGRAM, MANIFESTS, *_CALLED)


@dataclass(frozen=True)
class ArgoCD:
    """The running Argo CD, with one Application at a time."""

    kube: Kube
    programs: together.Programs

    def apply(self, application: JSON) -> None:
        """Create the Application."""
        installing.apply(self.kube, application)

    def status(self, name: str) -> JSON:
        """The Application's status. Raises `ProgramFailed` if one of the programs has ended."""
        self.programs.check()
        return dict(self.kube.get(_application(name)).get("status") or {})

    def refreshed(self, name: str) -> JSON:
        """The status after Argo CD has rendered the manifests again and compared them with the cluster."""
        self.kube.patch_merge(_application(name), {"metadata": {"annotations": {_REFRESH: "hard"}}})
        wait_for(lambda: not self._refreshes(name), lambda: f"it does not refresh: {self.programs.tails()}")
        return self.status(name)

    def _refreshes(self, name: str) -> bool:
        return _REFRESH in (self.kube.get(_application(name))["metadata"].get("annotations") or {})


def _application(name: str) -> str:
    return paths.path("argoproj.io/v1alpha1", "applications", NAMESPACE, name)


@contextlib.contextmanager
def running(kube: Kube, kubeconfig: Path, folder: Path, directory: Path) -> Iterator[ArgoCD]:
    """Run Argo CD inside the context, in `directory`, which is created. The objects that it applied stay."""
    directory.mkdir(parents=True)
    _install(kube, folder)
    redis, repository = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    programs = together.Programs(
        (
            _redis(directory, redis),
            _repository_server(directory, folder, repository, redis),
            _controller(directory, folder, kubeconfig, repository, redis),
        )
    )
    with programs:
        yield ArgoCD(kube, programs)


def _install(kube: Kube, folder: Path) -> None:
    documents = [each for each in yaml.safe_load_all((folder / MANIFESTS).read_text()) if each]
    documents = [each for each in documents if each["kind"] in _APPLIED]
    installing.apply(kube, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    for document in documents:
        if document["kind"] != "CustomResourceDefinition":
            document["metadata"]["namespace"] = NAMESPACE
        if document["metadata"]["name"] == "argocd-secret":
            document["stringData"] = {"server.secretkey": secrets.token_hex(32)}
        installing.apply(kube, document)
    wait_for(lambda: engine.are_served(kube, documents), "the kinds of Argo CD are not served", 30)
    everything: JSON = {
        "sourceRepos": ["*"],
        "destinations": [{"namespace": "*", "server": "*"}],
        "clusterResourceWhitelist": [{"group": "*", "kind": "*"}],
    }
    project = {"apiVersion": "argoproj.io/v1alpha1", "kind": "AppProject"}
    installing.apply(kube, {**project, "metadata": {"name": "default", "namespace": NAMESPACE}, "spec": everything})


def _redis(directory: Path, address: str) -> Program:
    host, port = address.split(":")
    flags = ["--bind", host, "--port", port, "--save", "", "--appendonly", "no", "--dir", str(directory)]
    return Program(REDIS, flags, log=directory / "redis.log", environment={}, command=(REDIS,))


def _repository_server(directory: Path, folder: Path, address: str, redis: str) -> Program:
    host, port = address.split(":")
    flags = ["--address", host, "--port", port, "--metrics-address", host, "--metrics-port", str(free_port())]
    flags += ["--redis", redis, "--disable-tls", "--client-ca-path", ""]
    kept = directory / "repositories"
    kept.mkdir()
    environment = {
        _NAME: "argocd-repo-server",
        "PATH": f"{folder}:{os.environ['PATH']}",
        "TMPDIR": str(kept),
        "ARGOCD_GPG_ENABLED": "false",
    }
    command = (str(folder / PROGRAM),)
    return Program("repo-server", flags, log=directory / "repo-server.log", environment=environment, command=command)


def _controller(directory: Path, folder: Path, kubeconfig: Path, repository: str, redis: str) -> Program:
    flags = ["--kubeconfig", str(kubeconfig), "--namespace", NAMESPACE, "--redis", redis]
    flags += ["--repo-server", repository, "--repo-server-plaintext", "--metrics-port", str(free_port())]
    flags += ["--app-resync", str(_RESYNC), "--app-resync-jitter", "0"]
    environment = {
        _NAME: "argocd-application-controller",
        "PATH": f"{folder}:{os.environ['PATH']}",
        "ARGOCD_FAKE_IN_CLUSTER": "true",
        "KUBECONFIG": str(kubeconfig),
    }
    command = (str(folder / PROGRAM),)
    return Program(
        "application-controller", flags, log=directory / "controller.log", environment=environment, command=command
    )
