"""`kubectl gpufraction nodes`: every GPU, which pods share it, what is free, its health, and what is enforced."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from contract.encoding import moments, quantity
from contract.encoding.quantity import mib
from contract.model import WHOLE, Gpu
from contract.scheduling.demand import usage_of
from contract.scheduling.filters import DEFAULT_LIMITS, free
from kubectl_gpufraction.cluster.state import MISSING, ClusterView, Node
from kubectl_gpufraction.commands import select
from kubectl_gpufraction.output.forms import CommandOutput
from kubectl_gpufraction.output.tables import Column
from kubectl_gpufraction.output.wording import age, bar, few, many
from kubectl_gpufraction.session import LABELLED, Command, Session
from runtime.kubernetes import paths
from runtime.kubernetes.client import KubeForbidden, KubeNotFound

JSON = dict[str, Any]
Row = Mapping[str, Any]
_MOST_ILL = 5
"""Unhealthy cards whose reason is printed below the table; `-o wide` has all."""
NO_GPUNODE = "NoGPUNode"
"""The state of a node whose inventory is gone, or cannot be read, while pods have shares there."""

COLUMNS = (
    Column("node", "NODE"),
    Column("gpu", "GPU"),
    Column("model", "MODEL"),
    Column("shares", "SHARES"),
    Column("memoryMiB", "USED", of=lambda row, _: bar(row["memoryMiB"], row["promisedMiB"])),
    Column("freeMiB", "FREE-MiB"),
    Column("promisedMiB", "OF-MiB", of=lambda row, _: _promised(row)),
    Column("health", "STATE", of=lambda row, _: _state(row)),
    Column("memoryMiB", "USED-MiB", wide=True),
    Column("limitsMiB", "LIMITS-MiB", of=lambda row, _: _limits(row), wide=True),
    Column("cores", "CORES%", wide=True),
    Column("isolation", "ISOLATION", wide=True),
    Column("uuid", "UUID", wide=True),
    Column("reason", "REASON", wide=True),
    Column("driver", "DRIVER", wide=True),
    Column("seen", "AGENT-SEEN", wide=True, of=age("seen")),
    Column("pods", "PODS", wide=True),
)


def _state(row: Row) -> str:
    """The card's health, and what is unusual about its node: `Healthy,NotReady`."""
    return ",".join(
        dict.fromkeys([row["health"], *(each for each in row["nodeState"].split(",") if each not in ("", "Ready"))])
    )


def rows(state: ClusterView, now: datetime) -> list[Row]:
    """Every GPU of every node, also those with shares of pods that no agent reports any more."""
    return [gpu_row(state, node, gpu, now) for node, gpus in state.cards() for gpu in gpus]


def node_state(node: Node, now: datetime) -> str:
    """The state, with a mark for a silent agent: the node takes no new pods, and its figures may be old."""
    if not node.reported:
        return NO_GPUNODE
    state = "NotReady" if not node.ready else "Cordoned" if node.cordoned else "Ready"
    state = f"{state},OptionsRefused" if node.refused else state
    seen = moments.seconds(node.seen)
    return f"{state},AgentSilent" if seen is not None and now.timestamp() - seen > node.silent_after else state


def gpu_row(state: ClusterView, node: Node, gpu: Gpu, now: datetime) -> Row:
    """One GPU."""
    holders = state.holders(gpu)
    usage = usage_of(share for _, share in holders)
    promised = gpu.sharing.promised(gpu.usable)
    return {
        "node": node.name,
        "gpu": gpu.index,
        "model": gpu.model,
        "shares": len(holders),
        "memoryMiB": mib(usage.memory),
        "freeMiB": mib(free(gpu, usage, DEFAULT_LIMITS)[0]),
        "totalMiB": mib(gpu.usable),
        "promisedMiB": mib(promised),
        "oversubscribed": promised > gpu.usable or usage.memory > promised,
        "limitsMiB": mib(usage.memory + usage.burst),
        "cores": usage.cores,
        "health": gpu.withheld or ("Healthy" if gpu.healthy else "Unhealthy"),
        "reason": gpu.reason,
        "isolation": node.isolation,
        "nodeState": node_state(node, now),
        "seen": node.seen,
        "uuid": gpu.uuid,
        "driver": node.inventory.driver,
        "pods": [pod.key for pod, _ in holders],
    }


def _promised(row: Row) -> str:
    """The memory that a GPU may promise, also as a multiple of its memory if it is oversubscribed."""
    times = row["promisedMiB"] / row["totalMiB"] if row["totalMiB"] else 1
    return f"{row['promisedMiB']} ({times:g}x)" if times > 1 else str(row["promisedMiB"])


def _limits(row: Row) -> str:
    """The sum of the memory limits on a GPU, also as a multiple of its memory if it is more."""
    limits, total = row["limitsMiB"], row["totalMiB"]
    if limits is None:
        return "-"
    return f"{limits} ({_times(limits, total)})" if total and limits > total else str(limits)


def _times(amount: int, total: int) -> str:
    return f"{amount / total:.2f}".rstrip("0").rstrip(".") + "x"


def totals(found: Sequence[Row]) -> list[str]:
    """All GPUs together, and those that are missing, or promise or have given more than they have."""
    missing = [f"GPU {row['gpu']} of {row['node']}" for row in found if row["health"] == MISSING]
    found = [row for row in found if row["health"] != MISSING]
    used, promised = (sum(row[key] for row in found) for key in ("memoryMiB", "promisedMiB"))
    well = sum(row["health"] == "Healthy" for row in found)
    percent = f", {used * 100 // promised} %" if promised else ""
    lines = [
        f"{many(len({row['node'] for row in found}), 'node')}, {many(len(found), 'GPU')}, {well} healthy: "
        f"{bar(used, promised)} {used} of {promised} MiB{percent}"
    ]
    if missing:
        lines.append(f"Missing, pods have shares of GPUs that no agent reports any more: {few(missing)}")
    oversold = [f"GPU {row['gpu']} of {row['node']}" for row in found if row["promisedMiB"] > row["totalMiB"]]
    if oversold:
        lines.append(f"Oversubscribed by the options (deviceMemoryScaling): {few(oversold)}")
    bursting = [
        f"GPU {row['gpu']} of {row['node']} ({_times(row['limitsMiB'], row['totalMiB'])})"
        for row in found
        if row["totalMiB"] and (row["limitsMiB"] or 0) > max(row["totalMiB"], row["memoryMiB"])
    ]
    if bursting:
        lines.append(f"Memory limits add up to more than the memory: {few(bursting)}")
    over = [
        f"GPU {row['gpu']} of {row['node']} (by {row['memoryMiB'] - row['promisedMiB']} MiB)"
        for row in found
        if row["memoryMiB"] > row["promisedMiB"]
    ]
    return [*lines, f"Overcommitted, pods hold more than the GPU has: {few(over)}"] if over else lines


def rows_of_cards(cards: Sequence[JSON]) -> list[Row]:
    """
    The same from the objects of gpus.elasticgpu.io, for a user who may not list all pods: which pods have shares stays
    unknown.
    """
    return [row for card in cards if (row := _card_row(card)) is not None]


def _card_row(card: JSON) -> Row | None:
    spec, status = card.get("spec") or {}, card.get("status") or {}
    capacity, left = (status.get(field) or {} for field in ("capacity", "allocatable"))
    try:
        promised, free_mib = (quantity.integer(amounts[_MEMORY]) for amounts in (capacity, left))
        free_cores = quantity.integer(left[_CORES])
        total = quantity.integer(spec.get("memory", 0)) // quantity.MIB
    except (LookupError, quantity.BadQuantity):
        return None
    well = status.get("state") == "Healthy"
    return {
        "node": str(spec.get("nodeName", "")),
        "gpu": spec.get("index"),
        "model": str(spec.get("model", "")),
        "shares": None,
        "memoryMiB": max(0, promised - free_mib) if well else 0,
        "freeMiB": free_mib,
        "totalMiB": min(total, promised) if promised <= total else total,
        "promisedMiB": promised,
        "oversubscribed": promised > total,
        "limitsMiB": None,
        "cores": WHOLE - free_cores if well else 0,
        "health": str(status.get("state", "")),
        "reason": "",
        "isolation": "",
        "nodeState": "",
        "seen": "",
        "uuid": str(spec.get("uuid", "")),
        "driver": "",
        "pods": None,
    }


_MEMORY, _CORES = "elasticgpu.io/gpu-memory", "elasticgpu.io/gpu-core"
_OF_CARDS = (
    "From gpus.elasticgpu.io; to see which pods have shares, you need the right to list nodes, GPUNodes and all pods."
)


def run(session: Session) -> CommandOutput:
    """All GPUs of the cluster; for a tenant with the role gpufraction-free-gpus, what of them is free."""
    try:
        state = session.state()
    except KubeForbidden:
        path = paths.path("elasticgpu.io/v1alpha1", "gpus")
        found = sorted(rows_of_cards(session.items(path, KubeNotFound, KubeForbidden)), key=_place)
        if not found:
            raise
        return _output(select.nodes(session, found), [_OF_CARDS])
    shown = select.nodes(session, rows(state, datetime.fromtimestamp(session.now(), UTC)))
    here = {row["node"] for row in shown}
    refused = sorted({f"{node.name}: {node.refused}" for node in state.nodes if node.refused and node.name in here})
    ill = [
        f"GPU {row['gpu']} of {row['node']}: {row['reason']}"
        for row in shown
        if row["health"] == "Unhealthy" and row["reason"]
    ]
    return _output(shown, [*refused, *ill[:_MOST_ILL]])


def _place(row: Row) -> tuple[str, int]:
    return row["node"], row["gpu"] if isinstance(row["gpu"], int) else 0


def _output(found: Sequence[Row], notes: Sequence[str]) -> CommandOutput:
    return CommandOutput(
        COLUMNS,
        found,
        empty="No GPUs found.",
        notes=[*totals(found), *notes],
        names=[f"node/{row['node']}" for row in found],
    )


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="NODE", help="these nodes only")


COMMAND = Command(
    "nodes",
    "list the GPUs: their pods, free memory and health",
    run,
    _arguments,
    flags=LABELLED,
    example="""\
# All GPUs, and with the pods on each, what is enforced and the driver
kubectl gpufraction nodes
kubectl gpufraction nodes -o wide
# The GPUs of one node, and of a pool of nodes
kubectl gpufraction nodes NODE
kubectl gpufraction nodes -l pool=gpu""",
)
