"""
What each command shows: rows for the tables, and the explanation of one pod in sentences.

Pure. Rows have memory in whole MiB, so that scripts and people read the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from contract import dialects, names
from contract import pods as podfields
from contract.encoding.quantity import format_bytes, mib
from contract.model import FractionRequest, Gpu
from contract.scheduling.demand import usage_of
from contract.scheduling.filters import free, gpu_reason
from kubectl_gpufraction.room import NO_LIMITS
from kubectl_gpufraction.state import ClusterView, Node, Pod
from kubectl_gpufraction.tables import Column

JSON = dict[str, Any]
Row = Mapping[str, Any]
_SILENT = timedelta(minutes=15)
"""An agent, which by default writes every 5 minutes, is silent after this time."""
_CURED_BY_AN_END = frozenset(("", "Memory", "Cores", "Exclusive", "Busy", "Sharers"))
"""Reasons that the end of another pod on a GPU can remove; a taint or a lack of CPU stays."""
_NO_NODE_COMES = frozenset(("NodeNotBrought", "PoolFull"))
"""Reasons beside which the message names another one."""

NODES = (
    Column("node", "NODE"),
    Column("gpu", "GPU"),
    Column("model", "MODEL"),
    Column("shares", "SHARES"),
    Column("memoryMiB", "USED-MiB"),
    Column("freeMiB", "FREE-MiB"),
    Column("cores", "CORES%"),
    Column("health", "HEALTH"),
    Column("isolation", "ISOLATION"),
    Column("node_state", "NODE-STATE"),
    Column("uuid", "UUID", wide=True),
    Column("reason", "REASON", wide=True),
    Column("driver", "DRIVER", wide=True),
    Column("seen", "AGENT-SEEN", wide=True),
    Column("pods", "PODS", wide=True),
)
PODS = (
    Column("namespace", "NAMESPACE"),
    Column("name", "NAME"),
    Column("status", "STATUS"),
    Column("node", "NODE"),
    Column("gpus", "GPUS"),
    Column("memoryMiB", "MEMORY-MiB"),
    Column("cores", "CORES%"),
    Column("dialect", "DIALECT", wide=True),
    Column("claim", "CLAIM", wide=True),
    Column("uuids", "UUIDS", wide=True),
)
WAITING = (
    Column("place", "PLACE"),
    Column("namespace", "NAMESPACE"),
    Column("name", "NAME"),
    Column("asks", "ASKS"),
    Column("since", "SINCE"),
    Column("reason", "REASON"),
    Column("priority", "PRIORITY", wide=True),
    Column("dialect", "DIALECT", wide=True),
)


def nodes(state: ClusterView, now: datetime) -> list[Row]:
    """Every GPU of every node."""
    return [_gpu_row(state, node, gpu, now) for node in state.nodes for gpu in node.inventory.gpus]


def _node_state(node: Node, now: datetime) -> str:
    """The state, with a mark for a silent agent: pods are placed as before, but the node's figures may be old."""
    state = "NotReady" if not node.ready else "Cordoned" if node.cordoned else "Ready"
    try:
        silent = now - datetime.fromisoformat(node.seen) > _SILENT
    except (ValueError, TypeError):
        return state
    return f"{state},AgentSilent" if silent else state


def _gpu_row(state: ClusterView, node: Node, gpu: Gpu, now: datetime) -> Row:
    holders = state.holders(gpu)
    usage = usage_of(share for _, share in holders)
    return {
        "node": node.name,
        "gpu": gpu.index,
        "model": gpu.model,
        "shares": len(holders),
        "memoryMiB": mib(usage.memory),
        "freeMiB": mib(free(gpu, usage, NO_LIMITS)[0]),
        "cores": usage.cores,
        "health": gpu.withheld or ("Healthy" if gpu.healthy else "Unhealthy"),
        "reason": gpu.reason,
        "isolation": node.isolation,
        "node_state": _node_state(node, now),
        "seen": node.seen,
        "uuid": gpu.uuid,
        "driver": node.inventory.driver,
        "pods": [pod.key for pod, _ in holders],
    }


def pods(state: ClusterView, namespace: str | None) -> list[Row]:
    """Every pod that asked for a share, of one namespace or of all."""
    return [_pod_row(pod) for pod in state.pods if namespace in (None, pod.namespace)]


def _pod_row(pod: Pod) -> Row:
    given = [share for each in pod.allocation.containers for share in each.shares] if pod.allocation else []
    index_of = {share.uuid: share.index for share in given}
    taken = usage_of(pod.shares().values())
    return {
        "namespace": pod.namespace,
        "name": pod.name,
        "status": pod.phase if pod.allocation else "Waiting",
        "node": pod.node,
        "gpus": sorted(index_of.values()),
        "memoryMiB": mib(taken.memory) if given else None,
        "cores": taken.cores if given else None,
        "dialect": pod.request.dialect,
        "claim": pod.request.claim,
        "uuids": sorted(index_of),
    }


def waiting(state: ClusterView, namespace: str | None) -> list[Row]:
    """The queue. A pod's place is that among the pods of all namespaces, `2-4` if several share it."""
    places = state.places()
    return [
        {
            "place": places[pod.key].shown if state.whole else None,
            "namespace": pod.namespace,
            "name": pod.name,
            "asks": asked(pod),
            "since": pod.since or pod.created,
            "reason": pod.reason,
            "priority": pod.priority,
            "dialect": pod.request.dialect,
        }
        for pod in state.waiting()
        if namespace in (None, pod.namespace)
    ]


def asked(pod: Pod) -> str:
    """A pod's request in short: `2x8Gi+30%` for each container, or `claim NAME`."""
    if pod.request.claim:
        return f"claim {pod.request.claim}"
    return " ".join(_asked(fraction) for fraction in pod.request.containers)


def _asked(fraction: FractionRequest) -> str:
    memory = format_bytes(fraction.memory) if fraction.memory else f"{fraction.percent}%mem"
    if fraction.exclusive:
        memory = "whole"
    cores = f"+{fraction.cores}%" if fraction.cores and not fraction.exclusive else ""
    return f"{fraction.count}x{memory}{cores}"


# -- explain ------------------------------------------------------------------------------------------------------


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
_MOST_SHOWN = 5


def few(texts: Sequence[str]) -> str:
    """The first few of them, and how many more there are."""
    more = len(texts) - _MOST_SHOWN
    return ", ".join(texts[:_MOST_SHOWN]) + (f" and {more} more" if more > 0 else "")


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
