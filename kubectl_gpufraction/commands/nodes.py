"""`kubectl gpufraction nodes`: every GPU, who shares it, what is free, whether it is well, and what is enforced."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from contract.encoding.quantity import mib
from contract.model import Gpu
from contract.scheduling.demand import usage_of
from contract.scheduling.filters import free
from kubectl_gpufraction.cluster.room import NO_LIMITS
from kubectl_gpufraction.cluster.state import ClusterView, Node
from kubectl_gpufraction.output.forms import CommandOutput
from kubectl_gpufraction.output.tables import Column
from kubectl_gpufraction.session import Command, Session

Row = Mapping[str, Any]
_SILENT = timedelta(minutes=15)
"""An agent, which by default writes every 5 minutes, is silent after this time."""

COLUMNS = (
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


def rows(state: ClusterView, now: datetime) -> list[Row]:
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


def run(session: Session) -> CommandOutput:
    """All GPUs of the cluster."""
    now = datetime.fromtimestamp(session.now(), UTC)
    return CommandOutput(COLUMNS, rows(session.state(), now), empty="No GPUs found.")


COMMAND = Command("nodes", "every GPU: who shares it, what is free, whether it is well, what is enforced", run)
