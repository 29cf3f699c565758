"""
The chosen node, read from its Node and GPUNode: its components, and the checks that are possible there. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from contract import pods
from contract.encoding import moments
from contract.encoding.reading import Malformed
from contract.model import BY_HOST_PATH, Inventory
from contract.nodes.heartbeat import shown_silent_after
from contract.nodes.inventories import inventory_from_object
from kubectl_gpufraction.conformance import vocabulary
from kubectl_gpufraction.conformance.checks import WAYS
from kubectl_gpufraction.conformance.pods import given_of
from kubectl_gpufraction.conformance.report import Environment

JSON = dict[str, Any]
_MIB = 1 << 20
_PLUGIN = "nvidia.com/gpu"
_OPERATOR = "gpu-operator"


@dataclass(frozen=True, slots=True)
class ChosenNode:
    """The node of a run. `away`: its agent has published nothing, or nothing for too long."""

    name: str
    environment: Environment
    inventory: Inventory | None = None
    away: bool = True
    by_plugin: int = 0
    """GPUs that a device plugin offers there."""
    volumes: bool = False
    """Whether pods with a share get volumes of the host there, which their namespace must allow."""

    @property
    def levels(self) -> tuple[str, ...]:
        """The levels of isolation that it publishes."""
        return self.inventory.isolation if self.inventory is not None else ()


def chosen(name: str, node: JSON, gpunode: JSON | None, *, kubernetes: str, operator: str, now: float) -> ChosenNode:
    """The node as its objects describe it. `operator`: the version of the GPU operator, `none` without one."""
    info = (node.get("status") or {}).get("nodeInfo") or {}
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    try:
        inventory = inventory_from_object(gpunode) if gpunode is not None else None
    except Malformed:
        inventory = None
    found = Environment(
        kubernetes=vocabulary.version(kubernetes),
        system=vocabulary.system(info.get("osImage", "")),
        kernel=vocabulary.version(info.get("kernelVersion", ""), 2),
        architecture=vocabulary.architecture(info.get("architecture")),
        runtime=vocabulary.runtime(info.get("containerRuntimeVersion", "")),
        operator=operator,
    )
    if inventory is not None:
        found = _with_gpus(found, inventory, gpunode or {})
    status = (gpunode or {}).get("status") or {}
    written = moments.seconds(status.get("observedAt"))
    silent = written is None or now - written > shown_silent_after(gpunode)
    amount = str(allocatable.get(_PLUGIN, "0"))
    return ChosenNode(
        name,
        found,
        inventory,
        away=inventory is None or bool(inventory.problem) or silent,
        by_plugin=int(amount) if amount.isdecimal() and len(amount) < 6 else 0,
        volumes=inventory is not None and inventory.delivery is not None and inventory.delivery.mounts == BY_HOST_PATH,
    )


def _with_gpus(found: Environment, inventory: Inventory, gpunode: JSON) -> Environment:
    modes = ((gpunode.get("status") or {}).get("delivery") or {}).get("modes") or ()
    models = dict.fromkeys(vocabulary.model(gpu.model) for gpu in inventory.gpus)
    return replace(
        found,
        cgroup=inventory.cgroup if inventory.cgroup in ("v1", "v2") else vocabulary.UNKNOWN,
        driver=vocabulary.version(inventory.driver),
        cuda=vocabulary.version(inventory.cuda),
        models=tuple(models)[:16],
        gpus=min(sum(not gpu.parent for gpu in inventory.gpus), 1024),
        slices=min(sum(bool(gpu.parent) for gpu in inventory.gpus), 1024),
        modes=tuple(way for way in WAYS if way in modes),
        levels=inventory.isolation,
    )


def idle_gpu(inventory: Inventory, listed: Iterable[JSON], *, slices: bool) -> tuple[str, int, str]:
    """
    A healthy GPU on which no pod has a share: its UUID, its usable MiB and its parent's UUID; empty if there is none.

    `listed`: all pods of the node. A slice is idle only if its whole card is, because not every measurement
    distinguishes slices of one card.
    """
    taken = {uuid for pod in listed if not pods.finished(pod) for uuid in given_of(pod)}
    parents = {gpu.uuid: gpu.parent for gpu in inventory.gpus}
    taken |= {parents[uuid] for uuid in taken if parents.get(uuid)}
    for gpu in inventory.gpus:
        right = bool(gpu.parent) == slices and gpu.healthy and gpu.usable > 0
        if right and gpu.uuid not in taken and gpu.parent not in taken:
            return gpu.uuid, gpu.usable // _MIB, gpu.parent
    return "", 0, ""


def operator_of(daemonsets: Iterable[JSON]) -> str:
    """The version of NVIDIA's GPU operator by the labels of its DaemonSets; `none` where there is none."""
    for each in daemonsets:
        labels: Mapping[str, Any] = (each.get("metadata") or {}).get("labels") or {}
        if _OPERATOR in (labels.get("app.kubernetes.io/managed-by"), labels.get("app.kubernetes.io/part-of")):
            chart = str(labels.get("helm.sh/chart") or labels.get("app.kubernetes.io/version") or "")
            return vocabulary.version(chart)
    return "none"


def candidates(gpunodes: Iterable[JSON]) -> list[str]:
    """The names of the nodes that publish a healthy GPU, in order."""
    found = []
    for each in gpunodes:
        gpus = (each.get("status") or {}).get("gpus") or ()
        if any(isinstance(gpu, dict) and gpu.get("health") == "Healthy" for gpu in gpus):
            found.append(str((each.get("metadata") or {}).get("name", "")))
    return sorted(found)
