"""`kubectl gpufraction pods`: the pods that requested a GPU share, and where they have it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from contract.encoding import moments
from contract.encoding.quantity import mib
from contract.scheduling.demand import usage_of
from kubectl_gpufraction.cluster.state import ClusterView, Pod
from kubectl_gpufraction.commands import select
from kubectl_gpufraction.output.forms import CommandOutput
from kubectl_gpufraction.output.tables import Column
from kubectl_gpufraction.output.wording import age, many, request_text
from kubectl_gpufraction.session import LABELLED, OF_PODS, Command, Session

Row = Mapping[str, Any]
_MOST_TROUBLE = 20
_RESTART = "the pod keeps running without it; delete the pod to have it placed again"
COLUMNS = (
    Column("name", "NAME"),
    Column("status", "STATUS", of=lambda row, _: _status(row)),
    Column("asks", "ASKS"),
    Column("node", "NODE"),
    Column("gpus", "GPUS"),
    Column("memoryMiB", "MEMORY-MiB"),
    Column("created", "AGE", of=age("created")),
    Column("cores", "CORES%", wide=True),
    Column("limitMiB", "LIMIT-MiB", wide=True),
    Column("dialect", "DIALECT", wide=True),
    Column("claim", "CLAIM", wide=True),
    Column("uuids", "UUIDS", wide=True),
)


def rows(state: ClusterView, namespace: str | None) -> list[Row]:
    """Every pod that requested a share, of one namespace or of all."""
    return [_pod_row(state, pod) for pod in state.pods if namespace in (None, pod.namespace)]


def _pod_row(state: ClusterView, pod: Pod) -> Row:
    given = [share for each in pod.allocation.containers for share in each.shares] if pod.allocation else []
    index_of = {share.uuid: share.index for share in given}
    taken = usage_of(pod.shares().values())
    trouble = state.trouble(pod)
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
        "gpuTrouble": [{"code": each.code, "gpu": each.index, "uuid": each.uuid, "why": each.why} for each in trouble],
    }


def _status(row: Row) -> str:
    """The phase, and the faults of the pod's cards, which Kubernetes does not know."""
    return ",".join(dict.fromkeys([row["status"], *(each["code"] for each in row["gpuTrouble"])]))


def totals(found: Sequence[Row]) -> str:
    """How many pods have shares, of how much memory, and how many wait."""
    waiting = sum(row["status"] == "Waiting" for row in found)
    held = sum(row["memoryMiB"] or 0 for row in found)
    have = many(len(found) - waiting, "has a share", "have shares")
    return f"{many(len(found), 'pod')}: {have} of {held} MiB, {waiting} waiting"


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="POD", help="these pods only")


def run(session: Session) -> CommandOutput:
    """The pods of one namespace, or of all, limited to the given names and labels."""
    state = session.seen()
    found = select.pods(session, state, rows(state, session.shown_namespace()))
    trouble = [
        f"{pod.key}: {each}; {_RESTART}"
        for pod in state.pods
        if any((row["namespace"], row["name"]) == (pod.namespace, pod.name) and row["gpuTrouble"] for row in found)
        for each in state.trouble(pod)
    ]
    missed = [] if select.is_narrowed(session) else session.unserved(state)
    return CommandOutput(
        (*((Column("namespace", "NAMESPACE"),) if session.given.all_namespaces else ()), *COLUMNS),
        found,
        empty="\n".join(missed or [session.nothing("pod requests a GPU share")]) if not found else "",
        notes=[totals(found), *trouble[:_MOST_TROUBLE], *missed],
        names=[f"pod/{row['name']}" for row in found],
    )


COMMAND = Command(
    "pods",
    "list the pods that requested a GPU share, and where they have it",
    run,
    _arguments,
    flags=OF_PODS | LABELLED,
    example="""\
# The pods of your namespace, and those of all
kubectl gpufraction pods
kubectl gpufraction pods -A -l app=web
# On which GPU a pod runs
kubectl gpufraction pods web-0 -o jsonpath='{.items[*].uuids}'""",
)
