"""
A program that watches objects of its own kinds and creates pods for them, as a process alongside a control plane.

Argo Workflows and KubeRay are such programs: their kinds are applied first, and they have no webhook that pods need.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from playground.api.kinds.values import User
from playground.cluster import Cluster
from playground.engines import engine
from playground.programs import installing
from playground.programs.process import Program
from playground.waiting import wait_for
from runtime.kubernetes.client import Kube, KubeError, KubeNotFound

JSON = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Controller:
    """
    One such program. `name` is the name of its file. Its manifests are in NAME-manifests.yaml.

    `probe`: the path of a kind, and an object of that kind that creates no pod. `answers` gets the object as it is now,
    and returns whether the program has started to work on it.
    """

    name: str
    arguments: Sequence[str]
    probe: tuple[str, JSON]
    answers: Callable[[JSON], bool]
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def manifests(self) -> str:
        """The name of the file that defines its kinds."""
        return f"{self.name}-manifests.yaml"

    def assets(self) -> Path | str:
        """The folder with its program and manifests, or one line that says what is missing."""
        return engine.assets(self.name, self.manifests)


@contextlib.contextmanager
def running(controller: Controller, cluster: Cluster, folder: Path, directory: Path) -> Iterator[Program]:
    """Run the program inside the context. Its kinds stay afterwards, in the versions in which they are stored."""
    documents = [_stored(each) for each in installing.documents(folder / controller.manifests)]
    for document in documents:
        installing.apply(cluster.kube, document, within=60)
    wait_for(lambda: engine.are_served(cluster.kube, documents), "its kinds are not served", 30)
    directory.mkdir(parents=True)
    kubeconfig = directory / "kubeconfig.yaml"
    kubeconfig.write_text(cluster.control_plane.kubeconfig(User(controller.name, ("system:masters",))))
    program = Program(
        controller.name,
        ["--kubeconfig", str(kubeconfig), *controller.arguments],
        log=directory / f"{controller.name}.log",
        environment=controller.environment,
        command=(str(folder / controller.name),),
    )
    program.start()
    try:
        wait_for(
            lambda: _works(controller, cluster.kube) or not program.alive(),
            lambda: f"{controller.name} does not work: {program.tail()}",
            90,
        )
        program.check()
        yield program
    finally:
        program.terminate()
        program.wait()


def _stored(definition: JSON) -> JSON:
    """The kind with its stored version only: the API server needs seconds for the pod templates of all versions."""
    spec = definition["spec"]
    return {**definition, "spec": {**spec, "versions": [each for each in spec["versions"] if each["storage"]]}}


def _works(controller: Controller, kube: Kube) -> bool:
    """Whether the program has seen the probe. Creates a missing probe, and removes it after the program has seen it."""
    path, probe = controller.probe
    named = f"{path}/{probe['metadata']['name']}"
    try:
        found = kube.get(named)
    except KubeNotFound:
        with contextlib.suppress(KubeError):
            kube.create(path, probe)
        return False
    if not controller.answers(found):
        return False
    kube.delete(named)
    return True
