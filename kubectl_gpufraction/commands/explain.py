"""`kubectl gpufraction explain`: where a pod is, or why it waits and what would help, in sentences."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from contract import dialects, names
from contract import pods as podfields
from contract.encoding.quantity import mib
from contract.model import FractionRequest, Gpu
from contract.scheduling.demand import usage_of
from contract.scheduling.filters import gpu_reason
from kubectl_gpufraction.cluster.room import NO_LIMITS
from kubectl_gpufraction.cluster.state import ClusterView, Node, Pod
from kubectl_gpufraction.output.forms import CommandOutput
from kubectl_gpufraction.output.wording import asked, few
from kubectl_gpufraction.session import Command, Failed, Session
from runtime.kubernetes import paths
from runtime.kubernetes.client import KubeNotFound

JSON = dict[str, Any]
_CURED_BY_AN_END = frozenset(("", "Memory", "Cores", "Exclusive", "Busy", "Sharers"))
"""Reasons that the end of another pod on a GPU can remove; a taint or a lack of CPU stays."""
_NO_NODE_COMES = frozenset(("NodeNotBrought", "PoolFull"))
"""Reasons beside which the message names another one."""


def explanation(state: ClusterView, pod: Pod) -> list[str]:
    """Where a pod is, or why it waits, its place in the queue, and which pods' end would make room."""
    lines = [f"{pod.key} asks for {asked(pod)} ({pod.request.dialect})"]
    if pod.allocation is not None:
        lines.append(f"It is {pod.phase} on node {pod.node}:")
        for container in pod.allocation.containers:
            for share in container.shares:
                cores = f", {share.cores} % of the cores" if share.cores else ""
                lines.append(
                    f"  {container.container}: GPU {share.index} ({share.uuid}), {mib(share.memory)} MiB{cores}"
                )
        if pod.unbound:
            lines.append(f"kube-scheduler has not bound it, which is not for us to change: {pod.unbound}")
        return lines
    why = pod.reason or f"not decided yet; if this lasts, no allocator leads: {_LEADS}"
    if not state.whole:
        return [*lines, f"It waits: {why}", *_cures_of_claim(pod), _MORE]
    queue, place = state.waiting(), state.places()[pod.key]
    lines.append(f"It waits, {place} of {len(queue)} in the queue: {why}")
    before = [f"{other.key} ({asked(other)})" for other in queue[: place.first - 1]]
    if before:
        lines.append(f"Before it: {few(before)}")
    beside = [f"{other.key} ({asked(other)})" for other in queue[place.first - 1 : place.last] if other != pod]
    if beside:
        lines.append(f"Created in the same second, in an order that only the allocator knows: {few(beside)}")
    lines += _cures(state, pod)
    return lines


_LEADS = "kubectl -n gpufraction-system get pods,leases"
_MORE = (
    "Its place in the queue, and which pods' end would make room, need the right to list nodes, GPUNodes and all pods."
)


def _cures(state: ClusterView, pod: Pod) -> list[str]:
    fractions = pod.request.containers
    if pod.request.claim:
        return _cures_of_claim(pod)
    if pod.code not in _CURED_BY_AN_END and not (pod.code in _NO_NODE_COMES and "short of" in pod.reason):
        return []
    if len(fractions) > 1 or fractions[0].count > 1:
        return ["It needs several shares at once, so no single pod's end is sure to make room."]
    found = [f"{other} on GPU {gpu.index} of {node.name}" for node, gpu, other in _freeing(state, fractions[0])]
    if found:
        return [f"The end of any one of these pods would make room on a GPU: {few(found)}"]
    return ["No single pod's end would make room on a GPU that it accepts."]


def _cures_of_claim(pod: Pod) -> list[str]:
    claim = pod.request.claim
    return [f"kubectl describe egpuc {claim} says where its claim stands."] if claim else []


def _freeing(state: ClusterView, fraction: FractionRequest) -> Iterator[tuple[Node, Gpu, str]]:
    """Pods whose end alone makes room for the share on a GPU."""
    for node in state.nodes:
        if not node.ready or node.cordoned:
            continue
        for gpu in node.inventory.gpus:
            holders = state.holders(gpu)
            for other, _ in holders:
                if not isinstance(other, Pod):
                    continue  # no pod's end gives a claim's share back
                rest = tuple(share for holder, share in holders if holder != other)
                if gpu_reason(gpu, usage_of(rest), fraction, NO_LIMITS) is None:
                    yield node, gpu, other.key


def without_share(pod: JSON) -> str:
    """One sentence about a pod that neither waits for a share nor has one, and what to do."""
    phase = str((pod.get("status") or {}).get("phase", ""))
    if podfields.finished(pod):
        return f"it has finished ({phase}) and no longer holds a share"
    if names.GATE in podfields.gates(pod):
        return "its request annotation contradicts its resources, so it is never placed; delete it"
    found = dialects.asked(pod)
    if not found:
        return "it asks for no GPU share"
    return (
        f"it asks for one ({', '.join(dialect.title for dialect in found)}), and admission did not see it: it was "
        f"created before its namespace had the label {names.INJECT_LABEL}={names.INJECT_ENABLED}, or while the webhook "
        "was not configured; create it again"
    )


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pod", metavar="POD", help="name of a pod")


def run(session: Session) -> CommandOutput:
    """One pod, explained. Raises `Failed` for a pod that neither waits for a share nor has one."""
    state, name = session.seen(), session.given.pod.removeprefix("pod/")
    found = next((pod for pod in state.pods if pod.key == f"{session.namespace}/{name}"), None)
    if found is None:
        about = f"pod {name!r} in namespace {session.namespace!r}"
        try:
            raise Failed(f"{about}: {without_share(session.kube.get(paths.pods(session.namespace, name)))}")
        except KubeNotFound:
            raise Failed(f"{about}: not there; -n names another namespace") from None
    return CommandOutput(lines=[session.spoken(line) for line in explanation(state, found)])


COMMAND = Command(
    "explain", "why a pod waits, its place in the queue, and which pods' end would make room", run, _arguments
)
