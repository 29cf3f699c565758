"""
`kubectl gpufraction fleet`: several clusters side by side. Read-only.

Each cluster is read on a thread of its own, so one that hangs or refuses does not affect the rows of the others; its
own row reports it. A thread that never returns ends with the command.
"""

from __future__ import annotations

import argparse
import queue
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from contract import names
from contract.encoding.quantity import mib
from contract.scheduling.demand import usage_of
from kubectl_gpufraction import connection
from kubectl_gpufraction.cluster.fleet import (
    Drift,
    FleetMember,
    Installation,
    differences,
    drift,
    installation_of,
    sentences,
)
from kubectl_gpufraction.cluster.programs import installed
from kubectl_gpufraction.cluster.state import ClusterView
from kubectl_gpufraction.output.forms import CommandOutput
from kubectl_gpufraction.output.tables import Column, Row
from kubectl_gpufraction.output.wording import many
from kubectl_gpufraction.session import Command, Exit, Failed, Session
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube, KubeError, KubeForbidden, KubeNotFound, KubeUnavailable
from runtime.kubernetes.transport import HttpRequest, Response
from runtime.kubernetes.warnings import WarningTransport

JSON = dict[str, Any]
MOST = 100
"""Clusters in one call; each has a thread."""
_REQUEST, _TOTAL = 10.0, 30.0
"""Seconds for one answer of a cluster, and for all of its answers."""
_DIFFERENCES = 20
_POLICY_BINDINGS = paths.path("admissionregistration.k8s.io/v1", "validatingadmissionpolicybindings")
_LONGEST = 26, 12, 8
"""Characters of a context, a version of ours and one of Kubernetes in the table, so that it fits 100."""
_COLUMNS = (
    Column("context", "CONTEXT"),
    Column("nodes", "NODES"),
    Column("gpus", "GPUS"),
    Column("healthy", "HEALTHY"),
    Column("used", "USED"),
    Column("waiting", "WAITING"),
    Column("version", "VERSION"),
    Column("kubernetes", "K8S"),
    Column("drift", "DRIFT"),
)


class _NoCluster:
    """The transport of a command that asks no cluster of its own."""

    def request(self, request: HttpRequest) -> Response:
        raise KubeUnavailable(f"{request}: fleet asks only the clusters of --contexts")


def session(given: argparse.Namespace) -> Session:
    """The session of this command: the kubeconfig's current context may be broken, and is not used."""
    listening = WarningTransport(_NoCluster())
    return Session(given, Kube(listening), listening, "default")


def contexts_of(text: str) -> list[str]:
    """The contexts of the flag. Raises ArgumentTypeError."""
    found = list(dict.fromkeys(each.strip() for each in text.split(",") if each.strip()))
    if not 0 < len(found) <= MOST:
        raise argparse.ArgumentTypeError(f"give 1 to {MOST} contexts with commas, such as east,west")
    return found


def run(session: Session) -> CommandOutput:
    """All clusters, each as far as it answered. Raises `Failed` with the table where one did not."""
    members = asked(session)
    found = drift(members)
    failed = [each for each in members if each.failed]
    shown = output(members, found)
    if failed:
        raise Failed(f"{many(len(failed), 'cluster')} of {len(members)} did not answer", shown=shown)
    return shown


def asked(session: Session) -> list[FleetMember]:
    """The answer of each cluster, in the order of the contexts."""
    given = session.given
    wanted: Sequence[str] = given.contexts
    answers: queue.SimpleQueue[FleetMember] = queue.SimpleQueue()
    for context in wanted:
        threading.Thread(
            target=lambda context=context: answers.put(member(given, context)), name=f"fleet-{context}", daemon=True
        ).start()
    found: dict[str, FleetMember] = {}
    within = max(_TOTAL, 3 * (given.request_timeout or 0.0))
    until = time.monotonic() + within
    while len(found) < len(wanted):
        try:
            one = answers.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            break
        found[one.context] = one
    silent = f"no answer within {within:.0f} s"
    return [found.get(context) or FleetMember(context, failed=silent) for context in wanted]


def member(given: argparse.Namespace, context: str) -> FleetMember:
    """One cluster; never raises."""
    try:
        transport = connection.connect(
            given.kubeconfig,
            context,
            user=given.as_user or "",
            groups=given.as_group,
            timeout=given.request_timeout or _REQUEST,
        )
        listening = WarningTransport(transport)
        one = Session(given, Kube(listening), listening, "default")
        kubernetes = ".".join(map(str, one.kube.version()))
        return of(context, kubernetes, one.state(), _installation(one))
    except (KubeError, Failed) as error:
        return FleetMember(context, failed=str(error))
    except Exception as error:
        # A plugin for credentials, or an unreadable file: only this cluster is affected.
        return FleetMember(context, failed=f"{type(error).__name__}: {error}")


def of(context: str, kubernetes: str, state: ClusterView, found: Installation) -> FleetMember:
    """The figures of a cluster."""
    cards = [gpu for _, gpus in state.cards() for gpu in gpus]
    reported = [gpu for node in state.nodes if node.reported for gpu in node.inventory.gpus]
    return FleetMember(
        context,
        kubernetes=kubernetes,
        nodes=sum(node.reported for node in state.nodes),
        cards=len(reported),
        healthy=sum(gpu.healthy and not gpu.withheld for gpu in reported),
        used=sum(usage_of(share for _, share in state.holders(gpu)).memory for gpu in cards),
        promised=sum(gpu.sharing.promised(gpu.usable) for gpu in reported),
        waiting=len(state.waiting()),
        installation=found,
    )


def _installation(session: Session) -> Installation:
    try:
        workloads = [
            {"kind": kind, **each}
            for kind, path in (
                ("Deployment", paths.deployments(names.NAMESPACE)),
                ("DaemonSet", paths.daemonsets(names.NAMESPACE)),
            )
            for each in session.items(path, KubeNotFound)
        ]
        configmaps = session.items(paths.configmaps(names.NAMESPACE), KubeNotFound)
        bindings = session.items(_POLICY_BINDINGS, KubeNotFound)
    except KubeForbidden:
        return Installation(unseen=f"you may not list what is installed in {names.NAMESPACE}")
    options = next((each for each in configmaps if _name(each) == names.OPTIONS), {})
    policies = (name for name in map(_name, bindings) if name.startswith("gpufraction-"))
    text = str((options.get("data") or {}).get(names.OPTIONS_FILE, ""))
    return installation_of(workloads, configmaps, policies, text, installed(workloads))


def _name(found: JSON) -> str:
    return str((found.get("metadata") or {}).get("name", ""))


def output(members: Sequence[FleetMember], found: Sequence[Drift]) -> CommandOutput:
    """The table, what is wrong below it, and everything for programs."""
    notes = [f"{each.context}: {each.failed}" for each in members if each.failed]
    notes += [f"{each.context}: {each.installation.unseen}" for each in members if each.installation.unseen]
    answered = [each for each in members if not each.failed]
    total = sum(each.promised for each in answered)
    used = f", {100 * sum(each.used for each in answered) // total} % held" if total else ""
    waiting = sum(each.waiting for each in answered)
    cards = many(sum(each.cards for each in answered), "GPU")
    notes.insert(0, f"{many(len(answered), 'cluster')}, {cards}{used}, {many(waiting, 'pod')} waiting")
    return CommandOutput(
        _COLUMNS,
        document={
            "items": [_document(each, found) for each in members],
            "drift": [{"fact": each.fact, "most": each.most, "others": dict(each.others)} for each in found],
        },
        in_table=[_row(each, found) for each in members],
        notes=[*notes, *sentences(found, _DIFFERENCES)],
        names=[f"context/{each.context}" for each in members],
        status=Exit.OK,
    )


def _row(each: FleetMember, found: Sequence[Drift]) -> Row:
    context, version, kubernetes = _LONGEST
    if each.failed:
        empty: Mapping[str, Any] = dict.fromkeys(column.key for column in _COLUMNS)
        return {**empty, "context": _cut(each.context, context), "drift": "no answer"}
    unknown = bool(each.installation.unseen)
    return {
        "context": _cut(each.context, context),
        "nodes": each.nodes,
        "gpus": each.cards,
        "healthy": each.healthy,
        "used": f"{100 * each.used // each.promised} %" if each.promised else None,
        "waiting": each.waiting,
        "version": None if unknown else _cut(each.installation.version, version) or "none",
        "kubernetes": _cut(each.kubernetes, kubernetes),
        "drift": "unknown" if unknown else differences(found, each.context) or "no",
    }


def _document(each: FleetMember, found: Sequence[Drift]) -> Row:
    return {
        "context": each.context,
        "failed": each.failed,
        "kubernetes": each.kubernetes,
        "nodes": each.nodes,
        "gpus": each.cards,
        "healthy": each.healthy,
        "usedMiB": mib(each.used),
        "promisedMiB": mib(each.promised),
        "waiting": each.waiting,
        "programs": [
            {"component": one.program, "version": one.version, "ready": one.ready, "image": one.image}
            for one in each.installation.programs
        ],
        "differences": differences(found, each.context),
        "unseen": each.installation.unseen,
    }


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--contexts",
        type=contexts_of,
        required=True,
        metavar="CONTEXTS",
        help=f"contexts of the kubeconfig, with commas; at most {MOST}",
    )


COMMAND = Command(
    "fleet",
    "compare several clusters: GPUs, use, waiting pods, versions, and differences between their installations",
    run,
    _arguments,
    flags=frozenset(("output", "watch", "no_headers")),
    example="""\
# Three clusters; one that does not answer has a row that says so
kubectl gpufraction fleet --contexts east,west,north
# Every difference of options, settings, components and policies
kubectl gpufraction fleet --contexts east,west,north -o json""",
)
