"""`kubectl gpufraction pods`: the pods that requested a GPU share, and where they have it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from contract.encoding import moments
from contract.encoding.quantity import mib
from contract.scheduling.demand import usage_of
from kubectl_gpufraction.cluster.state import ClusterView, Pod
from kubectl_gpufraction.output.forms import CommandOutput
from kubectl_gpufraction.output.tables import Column
from kubectl_gpufraction.output.wording import age, many, request_text
from kubectl_gpufraction.session import Command, Session

Row = Mapping[str, Any]
COLUMNS = (
    Column("namespace", "NAMESPACE"),
    Column("name", "NAME"),
    Column("status", "STATUS"),
    Column("asks", "ASKS"),
    Column("node", "NODE"),
    Column("gpus", "GPUS"),
    Column("memoryMiB", "MEMORY-MiB"),
    Column("cores", "CORES%"),
    Column("created", "AGE", of=age("created")),
    Column("limitMiB", "LIMIT-MiB", wide=True),
    Column("dialect", "DIALECT", wide=True),
    Column("claim", "CLAIM", wide=True),
    Column("uuids", "UUIDS", wide=True),
)


def rows(state: ClusterView, namespace: str | None) -> list[Row]:
    """Every pod that requested a share, of one namespace or of all."""
    return [_pod_row(pod) for pod in state.pods if namespace in (None, pod.namespace)]


def _pod_row(pod: Pod) -> Row:
    given = [share for each in pod.allocation.containers for share in each.shares] if pod.allocation else []
    index_of = {share.uuid: share.index for share in given}
    taken = usage_of(pod.shares().values())
    return {
        "namespace": pod.namespace,
        "name": pod.name,
        "status": pod.status,
        "asks": request_text(pod),
        "node": pod.node,
        "gpus": sorted(index_of.values()),
        "memoryMiB": mib(taken.memory) if given else None,
        "limitMiB": mib(taken.memory + taken.burst) if given else None,
        "cores": taken.cores if given else None,
        "created": moments.shown(pod.created),
        "dialect": pod.request.dialect,
        "claim": pod.request.claim,
        "uuids": sorted(index_of),
    }


def totals(found: Sequence[Row]) -> str:
    """How many pods have shares, of how much memory, and how many wait."""
    waiting = sum(row["status"] == "Waiting" for row in found)
    held = sum(row["memoryMiB"] or 0 for row in found)
    have = many(len(found) - waiting, "has a share", "have shares")
    return f"{many(len(found), 'pod')}: {have} of {held} MiB, {waiting} waiting"


def run(session: Session) -> CommandOutput:
    """The pods of one namespace, or of all."""
    found = rows(session.seen(), session.shown_namespace())
    return CommandOutput(
        COLUMNS,
        found,
        empty=session.nothing("pod asks for a GPU share"),
        notes=[totals(found)],
        names=[f"pod/{row['name']}" for row in found],
    )


COMMAND = Command("pods", "pods that asked for a GPU share, and where they have it", run)
