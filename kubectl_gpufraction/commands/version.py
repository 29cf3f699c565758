"""`kubectl gpufraction version`: this command's version, and the installed versions in the cluster, if it answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import metadata
from typing import Any

from contract import names
from kubectl_gpufraction.cluster.programs import Installed, installed
from kubectl_gpufraction.output.forms import CommandOutput
from kubectl_gpufraction.output.tables import Column, Row
from kubectl_gpufraction.output.wording import many
from kubectl_gpufraction.session import Command, Failed, Session
from runtime.kubernetes import paths
from runtime.kubernetes.client import KubeError, KubeForbidden, KubeNotFound

JSON = dict[str, Any]
_COLUMNS = (
    Column("component", "COMPONENT"),
    Column("version", "VERSION"),
    Column("ready", "READY"),
    Column("image", "IMAGE"),
)
_UNSEEN = f"what is installed is unknown: you may not list deployments and daemonsets in {names.NAMESPACE}"
_ELSEWHERE = f"no program of gpufraction runs in {names.NAMESPACE}"


def own() -> str:
    """This command's version."""
    try:
        return metadata.version("gpufraction")
    except metadata.PackageNotFoundError:
        return "unknown"


def versions(
    kubernetes: str | None = None,
    nodes: int | None = None,
    programs: Sequence[Installed] = (),
    notes: Sequence[str] = (),
) -> CommandOutput:
    """
    This command's version, and the cluster's if known: a user who asks for versions often has a broken cluster.
    `nodes`: how many have reported GPUs.
    """
    there = [_row(each.program, each.version, each.image, each.ready) for each in programs]
    reported = [f"{many(nodes, 'node')} reported GPUs"] if nodes is not None else []
    return CommandOutput(
        _COLUMNS,
        [{"plugin": own(), "kubernetes": kubernetes, "nodes": nodes, "programs": there}],
        in_table=[_row("plugin", own()), _row("kubernetes", kubernetes), *there],
        notes=[*reported, *notes],
        names=[f"kubectl-gpufraction/{own()}"],
    )


def _row(component: str, version: str | None, image: str = "", ready: str = "") -> Row:
    return {"component": component, "version": version or None, "ready": ready, "image": image}


def differing(plugin: str, programs: Iterable[Installed]) -> list[str]:
    """The sentence about programs of another version than this command, whose objects it may misread."""
    others = sorted({each.version for each in programs if each.version} - {plugin})
    if not others:
        return []
    return [
        f"The plugin is {plugin} and the cluster runs {', '.join(others)}: use the plugin of the cluster's version."
    ]


def run(session: Session) -> CommandOutput:
    """The versions. Raises `Failed` with those that are known."""
    kubernetes, programs, notes = ".".join(map(str, session.kube.version())), list[Installed](), list[str]()
    try:
        programs = list(installed(_workloads(session)))
        notes = differing(own(), programs) if programs else [_ELSEWHERE]
    except KubeForbidden:
        notes = [_UNSEEN]
    try:
        nodes = len(session.gpunodes())
    except (KubeError, Failed) as error:
        raise Failed(str(error), shown=versions(kubernetes, programs=programs, notes=notes)) from error
    return versions(kubernetes, nodes, programs, notes)


def _workloads(session: Session) -> list[JSON]:
    kinds = (
        paths.deployments(names.NAMESPACE),
        paths.daemonsets(names.NAMESPACE),
        paths.daemonsets(names.NODES_NAMESPACE),
    )
    return [each for path in kinds for each in session.items(path, KubeNotFound)]


COMMAND = Command(
    "version",
    "print the versions of this command, of Kubernetes, and of the programs in the cluster",
    run,
    flags=frozenset(("output", "no_headers")),
    example="""\
# What to send with a question
kubectl gpufraction version""",
)
