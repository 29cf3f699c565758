"""`kubectl gpufraction version`: this command's version, and the cluster's as far as it answers."""

from __future__ import annotations

from importlib import metadata

from kubectl_gpufraction.output.forms import CommandOutput
from kubectl_gpufraction.output.tables import Column
from kubectl_gpufraction.session import Command, Failed, Session
from runtime.kubernetes.client import KubeError

_COLUMNS = (Column("plugin", "PLUGIN"), Column("kubernetes", "KUBERNETES"), Column("nodes", "GPU-NODES"))


def own() -> str:
    """This command's version."""
    try:
        return metadata.version("gpufraction")
    except metadata.PackageNotFoundError:
        return "unknown"


def versions(kubernetes: str | None = None, nodes: int | None = None) -> CommandOutput:
    """This command's version, and the cluster's if known: a user who asks for versions often has a broken cluster."""
    row = {"plugin": own(), "kubernetes": kubernetes, "nodes": nodes}
    return CommandOutput(_COLUMNS, [row], names=[f"kubectl-gpufraction/{own()}"])


def run(session: Session) -> CommandOutput:
    """The versions. Raises `Failed` with those that are known."""
    kubernetes = ".".join(map(str, session.kube.version()))
    try:
        nodes = len(session.gpunodes())
    except (KubeError, Failed) as error:
        raise Failed(str(error), shown=versions(kubernetes)) from error
    return versions(kubernetes, nodes)


COMMAND = Command("version", "versions of this command and of the cluster", run)
