"""
What `version` prints: this command's own version always, and the cluster's where it answers.

Whoever asks for versions often does so because something does not answer, so what is known is printed first. Must not:
ask anybody.
"""

from __future__ import annotations

from importlib import metadata

from kubectl_gpufraction.tables import Column, Row
from runtime.kubernetes.client import KubeConfigError, KubeError, KubeUnavailable

COLUMNS = (Column("plugin", "PLUGIN"), Column("kubernetes", "KUBERNETES"), Column("nodes", "GPU-NODES"))


def row(kubernetes: str | None = None, nodes: int | None = None) -> Row:
    """The versions; None is what the cluster did not tell."""
    try:
        ours = metadata.version("gpufraction")
    except metadata.PackageNotFoundError:
        ours = "unknown"
    return {"plugin": ours, "kubernetes": kubernetes, "nodes": nodes}


def trouble(error: KubeError) -> str:
    """One line on why the cluster's part is not known."""
    unreached = isinstance(error, KubeUnavailable | KubeConfigError) and error.status == 0
    return f"{'the cluster cannot be reached' if unreached else 'the cluster does not say its version'}: {error}"
