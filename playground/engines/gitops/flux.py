"""
Flux's source-controller and kustomize-controller as processes alongside an API server.

source-controller fetches repositories and serves them to kustomize-controller over HTTP on loopback. Flux's other
controllers are left out, because they apply none of gpufraction's manifests.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
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
NAMESPACE = "flux-system"
SOURCES, KUSTOMIZATIONS, CRDS = "source-controller", "kustomize-controller", "flux-crds.yaml"
_REQUESTED = "reconcile.fluxcd.io/requestedAt"


def assets() -> Path | str:
    """The folder with its programs and kinds, or one line that says what is missing."""
    return engine.assets(SOURCES, KUSTOMIZATIONS, CRDS)


@dataclass(frozen=True)
class Flux:
    """The running Flux."""

    kube: Kube
    programs: together.Programs
    _asked: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def apply(self, *documents: JSON) -> None:
        """Create these objects."""
        for document in documents:
            installing.apply(self.kube, document)

    def condition(self, kustomization: str) -> JSON:
        """The condition Ready; empty if the object's current generation has none yet."""
        found = self.kube.get(_kustomization(kustomization))
        for each in found.get("status", {}).get("conditions") or []:
            if each["type"] == "Ready" and each["observedGeneration"] == found["metadata"]["generation"]:
                return dict(each)
        return {}

    def request(self, repository: str, kustomization: str) -> Callable[[], bool]:
        """Ask Flux to reconcile both objects again. Returns a function that says whether Flux has done so."""
        token, asked = f"request-{next(self._asked)}", (_repository(repository), _kustomization(kustomization))
        for path in asked:
            self.kube.patch_merge(path, {"metadata": {"annotations": {_REQUESTED: token}}})
        return lambda: all(self._handled(path) == token for path in asked)

    def _handled(self, path: str) -> str:
        return str(self.kube.get(path).get("status", {}).get("lastHandledReconcileAt", ""))


def _kustomization(name: str) -> str:
    return paths.path("kustomize.toolkit.fluxcd.io/v1", "kustomizations", NAMESPACE, name)


def _repository(name: str) -> str:
    return paths.path("source.toolkit.fluxcd.io/v1", "gitrepositories", NAMESPACE, name)


@contextlib.contextmanager
def running(kube: Kube, kubeconfig: Path, folder: Path, directory: Path) -> Iterator[Flux]:
    """Run Flux inside the context, in `directory`, which is created. The objects that it applied stay."""
    directory.mkdir(parents=True)
    documents = [each for each in yaml.safe_load_all((folder / CRDS).read_text()) if each]
    installing.apply(kube, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    for document in documents:
        installing.apply(kube, document)
    wait_for(lambda: engine.are_served(kube, documents), "the kinds of Flux are not served", 30)
    artifacts, address = directory / "artifacts", f"127.0.0.1:{free_port()}"
    artifacts.mkdir()
    serving = ["--storage-path", str(artifacts), "--storage-addr", address, "--storage-adv-addr", address]
    programs = together.Programs(
        (
            _controller(SOURCES, serving, kubeconfig, folder, directory),
            _controller(KUSTOMIZATIONS, ("--requeue-dependency", "2s"), kubeconfig, folder, directory),
        )
    )
    with programs:
        yield Flux(kube, programs)


def _controller(name: str, flags: Sequence[str], kubeconfig: Path, folder: Path, directory: Path) -> Program:
    own = ["--metrics-addr", f"127.0.0.1:{free_port()}", "--health-addr", f"127.0.0.1:{free_port()}"]
    environment = {"KUBECONFIG": str(kubeconfig), "RUNTIME_NAMESPACE": NAMESPACE, "TMPDIR": str(directory)}
    return Program(
        name, [*own, *flags], log=directory / f"{name}.log", environment=environment, command=(str(folder / name),)
    )
