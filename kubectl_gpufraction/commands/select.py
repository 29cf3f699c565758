"""The rows of a table that a user wants: by name, or by their objects' labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kubectl_gpufraction.cluster.state import ClusterView
from kubectl_gpufraction.cluster.unserved import without_share
from kubectl_gpufraction.output.wording import suggestion
from kubectl_gpufraction.session import Failed, Session
from runtime.kubernetes import paths
from runtime.kubernetes.client import KubeForbidden, KubeNotFound

Row = Mapping[str, Any]


def is_narrowed(session: Session) -> bool:
    """Whether the user wants some of the rows only."""
    return bool(session.given.names or session.given.selector)


def pods(session: Session, state: ClusterView, found: Sequence[Row], share: str = "has no share") -> list[Row]:
    """
    The rows of pods that the user wants. Raises `Failed` for the first name without a row. `share`: what a pod with a
    row elsewhere lacks.
    """
    named = [each.removeprefix("pod/") for each in session.given.names]
    known = {row["name"] for row in found}
    for name in named:
        if name not in known:
            raise Failed(_unknown(session, state, name, share))
    chosen = session.selected(paths.pods(session.shown_namespace()))
    return [
        row
        for row in found
        if (not named or row["name"] in named) and (chosen is None or (row["namespace"], row["name"]) in chosen)
    ]


def _unknown(session: Session, state: ClusterView, name: str, share: str) -> str:
    there = {pod.name: pod for pod in state.pods if session.shown_namespace() in (None, pod.namespace)}
    if name in there:
        return f"pod {name!r} {share}"
    if session.given.all_namespaces:
        return f"pod {name!r}: not found, or it requests no GPU share{suggestion(name, there)}"
    return f"pod {name!r} in namespace {session.namespace!r}: {why_absent(session, session.namespace, name, there)}"


def why_absent(session: Session, namespace: str, name: str, known: Mapping[str, object]) -> str:
    """Why a pod neither has a share nor waits for one, and what to do. `known`: the names of those that do."""
    try:
        raw = session.kube.get(paths.pods(namespace, name))
    except KubeNotFound:
        return f"not found; -n names another namespace{suggestion(name, known)}"
    return without_share(raw, session.is_served)


def nodes(session: Session, found: Sequence[Row]) -> list[Row]:
    """The rows of nodes that the user wants. Raises `Failed` for the first name without a row."""
    known = {row["node"] for row in found}
    for name in session.given.names:
        if name.removeprefix("node/") not in known:
            raise Failed(f"node {name!r}: {absent_node(session, name, known)}")
    named = {name.removeprefix("node/") for name in session.given.names}
    chosen = session.selected(paths.nodes())
    return [
        row for row in found if (not named or row["node"] in named) and (chosen is None or ("", row["node"]) in chosen)
    ]


def absent_node(session: Session, name: str, known: set[str]) -> str:
    """Why a node has no row."""
    try:
        session.kube.get(paths.nodes(name))
    except (KubeNotFound, KubeForbidden):
        return f"not found{suggestion(name, known)}"
    return "its agent has reported no GPU; kubectl gpufraction check says why"
