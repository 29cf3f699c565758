"""
The output of `kubectl-inspect-gpushare`, byte for byte, for our own allocations.

Format: gpushare-device-plugin, `cmd/inspect` (`display.go`, `nodeinfo.go`). Two things differ on purpose: nodes and
pods are sorted, and the unit is that of the pods' requests (that tool took more than 100 units on a card for MiB).
Cards of one node may differ; each has its own total. Pods of every dialect are shown in that unit, those of one card
rounded up together, and a claim's share once. A pod of gpushare itself that still runs, during a migration, is shown by
that system's annotations.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from contract import pods as podfields
from contract.dialects import aliyun
from contract.encoding import quantity
from contract.model import MOST_MEMORY, MOST_ON_NODE
from contract.scheduling import needs
from kubectl_gpufraction.cluster.state import ClusterView, address_of, legible
from kubectl_gpufraction.output.forms import CommandOutput
from kubectl_gpufraction.output.tables import tabwriter
from kubectl_gpufraction.session import OUTPUT, Command, Session
from runtime.kubernetes import paths
from runtime.kubernetes.client import KubeNotFound

JSON = dict[str, Any]
Holder = TypeVar("Holder")
PENDING = -1
"""The index of a pod that holds memory of a node on an unknown GPU."""


@dataclass(frozen=True, slots=True)
class Used:
    """A pod's units by GPU index."""

    namespace: str
    name: str
    units: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class GpuNode:
    """A node: the units of each GPU, and its pods."""

    name: str
    address: str
    totals: tuple[int, ...]
    pods: tuple[Used, ...] = ()

    def used(self, index: int) -> int:
        """Allocated units of a GPU."""
        return sum(pod.units.get(index, 0) for pod in self.pods)

    @property
    def all_used(self) -> int:
        """Allocated units of all GPUs."""
        return sum(sum(pod.units.values()) for pod in self.pods)

    @property
    def pending(self) -> bool:
        """Whether a pod holds memory on an unknown GPU."""
        return self.used(PENDING) > 0


def summary(nodes: Iterable[GpuNode], unit: str) -> str:
    """The table of nodes."""
    found = sorted(nodes, key=lambda node: node.name)
    width = max((len(node.totals) for node in found), default=0)
    pending = any(node.pending for node in found)
    heading = ["NAME", "IPADDRESS", *(f"GPU{index}(Allocated/Total)" for index in range(width))]
    heading += ["PENDING(Allocated)"] if pending else []
    lines = ["\t".join([*heading, f"GPU Memory({unit if found else ''})"])]
    lines += [_row(node, width, pending) for node in found]
    dashes = "-" * (len(lines[1]) + 1 + 20 if found else 0)
    lines += [dashes, "Allocated/Total GPU Memory In Cluster:", f"{_share(found)}\t", ""]
    return tabwriter("\n".join(lines))


def _row(node: GpuNode, width: int, pending: bool) -> str:
    cells = [node.name, node.address]
    for index in range(width):
        total = node.totals[index] if index < len(node.totals) else 0
        cells.append(f"{node.used(index)}/{total}")
    if pending:
        cells.append(str(node.used(PENDING)) if node.pending else "")
    return "\t".join([*cells, f"{node.all_used}/{sum(node.totals)}"])


def details(nodes: Iterable[GpuNode]) -> str:
    """Every node with its pods."""
    found = sorted(nodes, key=lambda node: node.name)
    parts: list[str] = []
    dashes = ""
    for node in found:
        rows = [_pod_row(node, pod) for pod in sorted(node.pods, key=lambda pod: (pod.namespace, pod.name))]
        dashes = dashes or "-" * (sum(len(row.encode()) + 1 for row in rows) + 10)
        heading = ["NAME", "NAMESPACE", *(f"GPU{index}(Allocated)" for index in range(len(node.totals)))]
        heading += ["Pending(Allocated)"] if node.pending else []
        total = sum(node.totals)
        parts += ["", f"NAME:\t{node.name}", f"IPADDRESS:\t{node.address}", "", "\t".join([*heading, ""]), *rows]
        parts += [f"Allocated :\t{node.all_used} ({_percent(node.all_used, total)}%)\t", f"Total :\t{total}\t", dashes]
    parts += ["", "", f"Allocated/Total GPU Memory In Cluster:\t{_share(found)}\t", ""]
    return tabwriter("\n".join(parts))


def _pod_row(node: GpuNode, pod: Used) -> str:
    units = [str(pod.units.get(index, 0)) for index in range(len(node.totals))]
    units += [str(pod.units.get(PENDING, 0))] if node.pending else []
    return "\t".join([pod.name, pod.namespace, *units, ""])


def _share(nodes: Iterable[GpuNode]) -> str:
    found = tuple(nodes)
    used, total = sum(node.all_used for node in found), sum(sum(node.totals) for node in found)
    return f"{used}/{total} ({_percent(used, total)}%)"


def _percent(used: int, total: int) -> int:
    return used * 100 // total if total else 0


def rows(nodes: Iterable[GpuNode], unit: str) -> list[Mapping[str, Any]]:
    """The same for programs: every node with its pods. `gpu` is None where a pod's GPU is unknown."""
    return [
        {
            "name": node.name,
            "address": node.address,
            "unit": unit,
            "allocated": node.all_used,
            "total": sum(node.totals),
            "gpus": [
                {"gpu": index, "allocated": node.used(index), "total": total} for index, total in enumerate(node.totals)
            ],
            "pods": [
                {
                    "namespace": pod.namespace,
                    "name": pod.name,
                    "gpus": [
                        {"gpu": None if index == PENDING else index, "allocated": units}
                        for index, units in sorted(pod.units.items())
                    ],
                }
                for pod in sorted(node.pods, key=lambda pod: (pod.namespace, pod.name))
            ],
        }
        for node in sorted(nodes, key=lambda node: node.name)
    ]


# -- from the objects ---------------------------------------------------------------------------------------------


def unit_of(state: ClusterView) -> int:
    """The unit of the pods' requests, in bytes: MiB if one of them has it, else GiB."""
    units = {pod.request.unit for pod in state.pods if pod.request.unit}
    return min(units, default=quantity.GIB)


def unit_name(unit: int) -> str:
    """`GiB` or `MiB`."""
    return "MiB" if unit == quantity.MIB else "GiB"


def gpu_nodes(state: ClusterView, nodes: Iterable[JSON], all_pods: Iterable[JSON], unit: int) -> tuple[GpuNode, ...]:
    """The nodes of our inventories, and those on which gpushare's own plugin still advertises its resource."""
    by_node = _held(state, unit)
    ours = {pod.key for pod in state.pods}
    for node, used in legible(lambda pod: None if podfields.key(pod) in ours else _foreign(pod), all_pods):
        by_node.setdefault(node, []).append(used)
    found = {}
    for node_json in nodes:
        name, totals = node_json["metadata"]["name"], _advertised(node_json)
        if totals:
            found[name] = GpuNode(name, address_of(node_json), totals, tuple(by_node.get(name, ())))
    for each in state.nodes:
        width = max((gpu.index for gpu in each.inventory.gpus if gpu.index < MOST_ON_NODE), default=-1) + 1
        sizes = {gpu.index: gpu.memory // unit for gpu in each.inventory.gpus}
        if width:
            totals = tuple(sizes.get(index, 0) for index in range(width))
            found[each.name] = GpuNode(each.name, each.address, totals, tuple(by_node.get(each.name, ())))
    return tuple(found.values())


def _held(state: ClusterView, unit: int) -> dict[str, list[Used]]:
    """The pods' units by node. Requests in whole units stay as they are; the others are rounded up together."""
    amounts: dict[str, dict[int, dict[tuple[str, str], int]]] = {}
    for namespace, name, allocation, shares in state.booked():
        indexes = {share.uuid: share.index for each in allocation.containers for share in each.shares}
        on = amounts.setdefault(allocation.node, {})
        for uuid, share in shares.items():
            on.setdefault(indexes[uuid], {})[namespace, name] = share.memory
    has = {
        (node.name, gpu.index): max(gpu.memory, gpu.sharing.promised(gpu.usable))
        for node in state.nodes
        for gpu in node.inventory.gpus
    }
    found: dict[str, list[Used]] = {}
    for node, by_index in amounts.items():
        units: dict[tuple[str, str], dict[int, int]] = {}
        for index, held in by_index.items():
            for holder, count in in_units(held, unit, has.get((node, index), 0)).items():
                units.setdefault(holder, {})[index] = count
        found[node] = [Used(*holder, split) for holder, split in units.items()]
    return found


def in_units(held: Mapping[Holder, int], unit: int, has: int) -> dict[Holder, int]:
    """
    Bytes by holder in whole units. `has`: the GPU's bytes. The sum is at most the GPU's units, unless more bytes are
    held than it has.

    The running sum is rounded up, so each holder gets what the earlier ones left. Holders of whole units come first and
    keep them.
    """
    together, shown, found = 0, 0, dict[Holder, int]()
    most = has // unit if sum(held.values()) <= has else sum(held.values()) // unit + 1
    for holder, memory in sorted(held.items(), key=lambda each: (each[1] % unit != 0, -each[1])):
        together += memory
        upto = min(-(-together // unit), most)
        found[holder] = upto - shown
        shown = upto
    return {holder: found[holder] for holder in held}


def _advertised(node: JSON) -> tuple[int, ...]:
    """In that system a card has the node's units divided by the number of cards."""
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    memory, count = (max(0, quantity.integer_or(allocatable.get(name), 0)) for name in (aliyun.MEM, aliyun.COUNT))
    return (memory // count,) * count if memory and 0 < count <= MOST_ON_NODE else ()


def _foreign(pod: JSON) -> tuple[str, Used] | None:
    """A pod on a node that gpushare itself serves, and the node."""
    node = (pod.get("spec") or {}).get("nodeName")
    theirs = _theirs(pod) if node and not podfields.finished(pod) else None
    return (str(node), theirs) if theirs is not None else None


def _theirs(pod: JSON) -> Used | None:
    """A pod of gpushare itself: by the commercial edition's annotation, else its GPU's index, else on unknown GPUs."""
    containers = (container for container, _ in needs.containers(pod.get("spec") or {}))
    limits = ((each.get("resources") or {}).get("limits") or {} for each in containers)
    units = sum(max(0, quantity.integer_or(each.get(aliyun.MEM), 0)) for each in limits)
    if not units:
        return None
    metadata, annotations = pod["metadata"], podfields.annotations_of(pod)
    split = _split(annotations.get(aliyun.ALLOCATION))
    if not split:
        index = annotations.get(aliyun.IDX, "")
        split = {int(index) if index.isascii() and index.isdigit() and len(index) < 4 else PENDING: units}
    return Used(metadata.get("namespace", ""), metadata.get("name", ""), split)


def _split(text: object) -> dict[int, int]:
    try:
        found: dict[int, int] = {}
        for by_gpu in json.loads(text).values() if isinstance(text, str) else ():
            for index, units in by_gpu.items():
                found[int(index)] = found.get(int(index), 0) + int(units)
    except (ValueError, AttributeError, OverflowError, TypeError, RecursionError):
        return {}
    # Any user may have written it: an amount that no GPU has would spoil all sums.
    real = all(0 <= index < MOST_ON_NODE and 0 <= units <= MOST_MEMORY for index, units in found.items())
    return found if real else {}


# -- the command --------------------------------------------------------------------------------------------------


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-d", "--details", action="store_true", help="pods of each node too")
    parser.add_argument("node", nargs="?", metavar="NODE", help="this node only")


def run(session: Session) -> CommandOutput:
    """The table of nodes, or with --details every node with its pods."""
    given = session.given
    nodes = [session.kube.get(paths.nodes(given.node))] if given.node else session.items(paths.nodes())
    names = {node["metadata"]["name"] for node in nodes}
    all_pods = session.items(paths.pods())
    gpunodes = session.items(paths.gpunodes(), KubeNotFound)
    state = ClusterView.of(gpunodes, nodes, all_pods, session.elasticgpus())
    unit = unit_of(state)
    found = [node for node in gpu_nodes(state, nodes, all_pods, unit) if node.name in names]
    return CommandOutput(
        rows=rows(found, unit_name(unit)),
        exact=details(found) if given.details else summary(found, unit_name(unit)),
        names=[f"node/{node.name}" for node in sorted(found, key=lambda node: node.name)],
    )


COMMAND = Command(
    "inspect",
    "print the same text as kubectl-inspect-gpushare",
    run,
    _arguments,
    flags=OUTPUT | {"watch"},
    example="""\
# All nodes, and one with its pods
kubectl gpufraction inspect
kubectl gpufraction inspect NODE --details""",
)
