"""
A fresh list of pods compared with the allocator's state, and what is wrong on the GPUs by either.

Pure. A difference alone proves nothing, since the list and the watch are never of the same moment:
`allocator.workers.resync` decides by a second look which of them are drift.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from typing import Any

from allocator.cache.cache import Cache
from allocator.cache.ledger import Reservation
from allocator.cache.podinfo import UNTRACKED, TrackedPod, youngest_first
from allocator.queue.records import EventRecord, Eviction
from allocator.scheduler.events import UncountedFound
from allocator.scheduler.leadership import SchedulerState
from contract import names, pods
from contract.dialects import DIALECTS
from contract.dialects.table import Dialects
from contract.encoding.quantity import mib
from contract.model import Gpu, Usage
from contract.options import PoolOptions
from contract.reasons.gpunodes import NodeEventReason
from contract.reasons.nodes import Code, Reason
from contract.reasons.pods import PodEventReason
from contract.scheduling import nodeinfo
from contract.scheduling.filters import Limits, overcommitment
from contract.scheduling.nodeinfo import AllocatedPod

_LASTS, _AGAIN = 3.0, 60.0
"""Seconds for which a GPU must be promised too much before it is reported, and until an eviction is requested again."""


@dataclass(frozen=True, slots=True)
class ListedPod:
    """The result of a new read of one pod. `version`: the version of the pod that was read."""

    uid: str
    key: str
    version: int | None
    known: TrackedPod
    """Its state according to that."""
    uncounted: bool = False
    """Its namespace is served, it requests a share, and it has neither share nor gate."""


def listed(
    pod: Mapping[str, Any], options: PoolOptions, served: Container[str] = (), dialects: Dialects = DIALECTS
) -> ListedPod:
    """Read a pod, whole or trimmed. `served`: the namespaces with our label."""
    gated = names.GATE in pods.gates(pod)
    request = None if gated else pods.holding(pod)
    allocation = pods.allocation_of(pod, request) if request is not None else None
    node = (pod.get("spec") or {}).get("nodeName") or (allocation.node if allocation is not None else "")
    finished = pods.finished(pod)
    deleting = bool((pod.get("metadata") or {}).get("deletionTimestamp"))
    # As `read_pod` has it: behind our gate a deleted pod neither waits nor takes anything.
    behind_gate = UNTRACKED if deleting else TrackedPod("", True)
    known = UNTRACKED if finished else behind_gate if gated else TrackedPod(node, False, allocation)
    taken_back = names.WITHDRAWN in pods.annotations_of(pod)
    without = not (finished or gated or taken_back) and allocation is None
    uncounted = without and _is_missed(pod, options, served, dialects) and pods.unread_share(pod) is None
    return ListedPod(pods.uid(pod), pods.key(pod), pods.version(pod), known, uncounted)


def _is_missed(pod: Mapping[str, Any], options: PoolOptions, served: Container[str], dialects: Dialects) -> bool:
    """Whether the webhook should have seen the pod."""
    annotations, namespace = pods.annotations_of(pod), (pod.get("metadata") or {}).get("namespace", "")
    if pods.MIRROR in annotations or namespace in names.UNSERVED_NAMESPACES or namespace not in served:
        return False
    if names.REQUEST in annotations:
        return True
    return bool(dialects.detect(pod) and dialects.normalise(dict(pod), options.reading(pod)))


# -- GPUs that are promised beyond what they have -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OvercommittedGpu:
    """A GPU that is promised beyond what it has, and the pod that must be evicted first, unless one already is."""

    node: str
    uuid: str
    what: str
    """The amount that exceeds the GPU, with figures; it contains no pod's name."""
    youngest: AllocatedPod | None = None


def overcommitted(cache: Cache) -> list[OvercommittedGpu]:
    """Every such GPU."""
    found, limits = [], cache.engine.limits
    for node, uuids in cache.overcommitted().items():
        gpus = {gpu.uuid: gpu for gpu in cache.snapshot[node].gpus}
        for uuid in uuids:
            on = [sharer for sharer in cache.allocated.on(node) if uuid in sharer.demands]
            staying = [sharer for sharer in on if sharer.ending is None]
            usage = cache.ledger.usage(node, uuid)
            later = nodeinfo.without(gpus[uuid], usage, [s for s in on if s.ending is not None], staying)
            mends_itself = not _too_much(gpus[uuid], later, limits)
            youngest = None if mends_itself or not staying else youngest_first(staying)[0]
            what = _too_much(gpus[uuid], usage, limits)
            found.append(
                OvercommittedGpu(
                    node,
                    uuid,
                    _message(gpus[uuid], node, what),
                    youngest,
                )
            )
    return found


def too_much_for(cache: Cache, holding: Reservation) -> str:
    """The amounts that exceed the GPUs of one holding, with figures; empty if nothing does, or for a claim."""
    state = cache.snapshot.get(holding.allocation.node)
    if state is None or holding.allocation.claim:
        return ""
    held = {share.uuid for container in holding.allocation.containers for share in container.shares}
    for gpu, usage in zip(state.gpus, state.usage, strict=True):
        what = _too_much(gpu, usage, cache.engine.limits) if gpu.uuid in held else ""
        if what:
            return _message(gpu, state.name, what)
    return ""


def _message(gpu: Gpu, node: str, what: str) -> str:
    return f"GPU {gpu.index} of node {node}: more is allocated than the GPU has: {what}"


def _too_much(gpu: Gpu, usage: Usage, limits: Limits) -> str:
    """As text; empty if it does not exceed."""
    return ", ".join(_excess(each) for each in overcommitment(gpu, usage, limits))


def _excess(reason: Reason) -> str:
    match reason.code:
        case Code.MEMORY:
            return f"{mib(reason.wanted)} of {mib(reason.most)} MiB"
        case Code.CORES:
            return f"{reason.wanted} of {reason.most} % of its cores"
        case Code.SHARERS:
            return f"{reason.wanted} of {reason.most} pods"
    return f"used exclusively by one of {reason.wanted} pods"


class OvercommitReporter:
    """Reports GPUs that are promised too much and pods that are not counted, each once for as long as it lasts."""

    def __init__(
        self,
        state: SchedulerState,
        *,
        clock: Callable[[], float],
        evict: Callable[[Eviction], None] | None,
    ) -> None:
        """`evict` evicts the youngest pod of such a GPU; None if that is not wanted."""
        self._cache = state.cache
        self._records = state.records
        self._trigger = state.trigger
        self._clock = clock
        self._evict = evict
        self._overcommitted: dict[tuple[str, str], float] = {}
        """The time of the next action, by GPU and youngest pod."""
        self._reported: set[tuple[str, str]] = set()
        """GPUs that were reported, and with which youngest pod."""
        self._uncounted: frozenset[str] = frozenset()

    def report_overcommitted(self) -> None:
        """
        Report which GPUs are promised beyond what they have, and evict the youngest pod if that is wanted.

        Call it about once a second. A GPU is reported once it has been overcommitted for some seconds: while pods are
        listed again, a new pod is seen before the pod that it replaces is removed.
        """
        now, found = self._clock(), {_key(one): one for one in overcommitted(self._cache)}
        self._overcommitted = {key: self._overcommitted.get(key, now + _LASTS) for key in found}
        for key, one in found.items():
            if self._overcommitted[key] <= now:
                self._say_overcommitted(one)
                self._overcommitted[key] = now + _AGAIN
        self._reported &= {reported for key in found for reported in ((key[0], ""), key)}

    def _say_overcommitted(self, one: OvercommittedGpu) -> None:
        youngest = one.youngest
        then = "it is evicted" if self._evict is not None else "delete it, so that it is placed again"
        text = f"{one.what}. This pod is the youngest that holds a share of it: {then}"
        if (one.uuid, "") not in self._reported:
            self._records.note(EventRecord("Node", one.node, one.node, NodeEventReason.OVERCOMMITTED, one.what))
        if youngest is not None and _key(one) not in self._reported:
            self._records.note(EventRecord("Pod", youngest.key, youngest.uid, PodEventReason.OVERCOMMITTED, text))
        self._reported |= {(one.uuid, ""), _key(one)}
        self._trigger.wake()
        if self._evict is not None and youngest is not None:
            self._evict(Eviction(youngest.key, youngest.uid, None, "repair", text))

    def uncounted_found(self, event: UncountedFound, now: float) -> None:
        """Report the pods that request a share but have none that is counted."""
        found = event.pods
        for uid in found.keys() - self._uncounted:
            self._records.note(EventRecord("Pod", found[uid], uid, PodEventReason.SHARE_UNCOUNTED, _UNCOUNTED))
        self._uncounted = frozenset(found)
        self._trigger.wake()


_UNCOUNTED = (
    "requests a GPU share but has no valid allocation: the admission webhook of gpufraction.io did not see it, or its "
    "annotations were changed. Delete it and create it again. If this happens again, check that the "
    "MutatingWebhookConfiguration zz-gpufraction-webhook exists"
)


def _key(one: OvercommittedGpu) -> tuple[str, str]:
    return one.uuid, one.youngest.uid if one.youngest is not None else ""
