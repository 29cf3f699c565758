"""
What a fresh list of pods says, held against what the allocator knows, and what is wrong on the GPUs by either.

Pure. A difference alone proves nothing, since the list and the watch are never of the same moment:
`allocator.workers.resync` decides by a second look which of them are drift.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any

from allocator.cache.cache import Cache
from allocator.cache.ledger import Reservation
from allocator.cache.podinfo import UNTRACKED, AllocatedPods, TrackedPod, youngest_first
from contract import dialects, names, pods
from contract.dialects import Options
from contract.encoding.quantity import mib
from contract.model import WHOLE, Gpu, Usage
from contract.scheduling import nodeinfo
from contract.scheduling.filters import Limits
from contract.scheduling.nodeinfo import AllocatedPod


@dataclass(frozen=True, slots=True)
class ListedPod:
    """What a fresh look says of one pod. `version`: which state of the pod that was."""

    uid: str
    key: str
    version: int | None
    known: TrackedPod
    """Where it stands by that."""
    uncounted: bool = False
    """Its namespace is served, it asks for a share, and it has neither share nor gate."""


def listed(pod: Mapping[str, Any], options: Options, served: Container[str] = ()) -> ListedPod:
    """Read a pod, whole or trimmed. `served`: the namespaces with our label."""
    gated = names.GATE in pods.gates(pod)
    request = None if gated else pods.holding(pod)
    allocation = pods.allocation_of(pod, request) if request is not None else None
    node = (pod.get("spec") or {}).get("nodeName") or (allocation.node if allocation is not None else "")
    finished = pods.finished(pod)
    known = UNTRACKED if finished else TrackedPod("", True) if gated else TrackedPod(node, False, allocation)
    uncounted = not finished and not gated and allocation is None and _is_missed(pod, options, served)
    return ListedPod(pods.uid(pod), pods.key(pod), pods.version(pod), known, uncounted)


def _is_missed(pod: Mapping[str, Any], options: Options, served: Container[str]) -> bool:
    """Whether the webhook should have seen the pod."""
    annotations, namespace = pods.annotations_of(pod), (pod.get("metadata") or {}).get("namespace", "")
    if pods.MIRROR in annotations or namespace in names.UNSERVED_NAMESPACES or namespace not in served:
        return False
    return names.REQUEST in annotations or bool(dialects.asked(pod) and dialects.standard(dict(pod), options))


# -- GPUs that are promised beyond what they have -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OvercommittedGpu:
    """A GPU that is promised beyond what it has, and the pod that must go first, unless somebody goes already."""

    node: str
    uuid: str
    what: str
    """What there is too much of, with figures; it names no pod."""
    youngest: AllocatedPod | None = None


def overfull(cluster: Cache, sharers: AllocatedPods) -> list[OvercommittedGpu]:
    """Every such GPU."""
    found, limits = [], cluster.engine.limits
    for node, uuids in cluster.overfull().items():
        gpus = {gpu.uuid: gpu for gpu in cluster.snapshot[node].gpus}
        for uuid in uuids:
            on = [sharer for sharer in sharers.on(node) if uuid in sharer.demands]
            staying = [sharer for sharer in on if sharer.ending is None]
            usage = cluster.ledger.usage(node, uuid)
            later = nodeinfo.without(gpus[uuid], usage, [s for s in on if s.ending is not None], staying)
            mends_itself = not _too_much(gpus[uuid], later, limits)
            youngest = None if mends_itself or not staying else youngest_first(staying)[0]
            what = _too_much(gpus[uuid], usage, limits)
            found.append(
                OvercommittedGpu(
                    node,
                    uuid,
                    _said(gpus[uuid], node, what),
                    youngest,
                )
            )
    return found


def too_much_for(cluster: Cache, holding: Reservation) -> str:
    """What there is too much of on the GPUs of one holding, with figures; empty where there is not, or for a claim."""
    state = cluster.snapshot.get(holding.allocation.node)
    if state is None or holding.allocation.claim:
        return ""
    held = {share.uuid for container in holding.allocation.containers for share in container.shares}
    for gpu, usage in zip(state.gpus, state.usage, strict=True):
        what = _too_much(gpu, usage, cluster.engine.limits) if gpu.uuid in held else ""
        if what:
            return _said(gpu, state.name, what)
    return ""


def _said(gpu: Gpu, node: str, what: str) -> str:
    return f"GPU {gpu.index} of node {node}: more is allocated than there is: {what}"


def _too_much(gpu: Gpu, usage: Usage, limits: Limits) -> str:
    """In words; empty where it is not too much."""
    said = []
    if usage.memory > limits.capacity(gpu):
        said.append(f"{mib(usage.memory)} of {mib(limits.capacity(gpu))} MiB")
    if usage.cores > WHOLE:
        said.append(f"{usage.cores} of {WHOLE} % of its cores")
    if usage.sharers > limits.sharers(gpu):
        said.append(f"{usage.sharers} of {limits.sharers(gpu)} pods")
    if usage.exclusive and usage.sharers > 1:
        said.append(f"held whole by one of {usage.sharers} pods")
    return ", ".join(said)
