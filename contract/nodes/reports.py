"""
The reports of a node's agent about the pods on its node, in the status of the GPUNode (`status.reports`).

An agent may not write about pods or evict them, because a stolen agent could then do so for all pods. It reports, and
the allocator writes the Event and evicts, only for pods with a share on that same node.

A report is a code from a closed list and figures; it has no text of its author. The pod is named by its uid and the
container by its place in the allocation, since tenants who may read GPUNodes must not learn which other teams' pods
there are. What is damaged counts as absent. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from contract.encoding.quantity import mib
from contract.encoding.wire import FLAG, GPU_UUID, TIME, UID, number, one_of, readable, record
from contract.model import MOST_CONTAINERS, MOST_MEMORY, Allocation, GpuShare
from contract.reasons.pods import FORMER, PodEventReason

FIELD = "reports"
MOST_REPORTS = 256
"""Reports of one GPUNode, the oldest first; a node with more than that is repaired, not listed."""
_LONGEST_WAIT = 1 << 31

OVERUSE, PRESSURE = PodEventReason.MEMORY_OVERUSE, PodEventReason.MEMORY_PRESSURE
UNHEALTHY, MPS_FAULT = PodEventReason.UNHEALTHY, PodEventReason.MPS_FAULT
CODES = (OVERUSE, PRESSURE, UNHEALTHY, MPS_FAULT)
"""The reasons of the Events that follow."""
_SPELLED: Mapping[str, PodEventReason] = {**{str(code): code for code in CODES}, **FORMER}
"""The codes by each spelling that an agent of this version or of a former one writes."""
EVICTING = {OVERUSE: "overuse", PRESSURE: "overuse", UNHEALTHY: "unhealthy"}
"""The codes with which an agent may request an eviction, and the cause that the metric names."""


@dataclass(frozen=True, slots=True, order=True)
class PodReport:
    """One container of a pod on one GPU, and what is wrong with it."""

    since: int
    """Since when: whole seconds since 1970, by the node's clock."""
    pod: str
    """The pod's uid."""
    code: PodEventReason
    """One of `CODES`."""
    container: int
    """Its place in the pod's allocation, from 0."""
    gpu: str
    """UUID."""
    used: int = 0
    """Bytes of the GPU that the container used when this was reported; 0 if the code is not about memory."""
    others: int = 0
    """Bytes that other users of the same claim used alongside it."""
    evict: bool = False
    """Whether the agent requests the pod's eviction."""
    evict_after: int = 0
    """Seconds after this report until the pod is evicted if nothing changes; 0: never, or now."""

    def share(self, allocation: Allocation) -> GpuShare | None:
        """The share that is reported about; None if the allocation has no such share."""
        if self.container >= len(allocation.containers):
            return None
        shares = allocation.containers[self.container].shares
        return next((share for share in shares if share.uuid == self.gpu), None)


_REPORT = record(
    PodReport,
    {
        "pod": UID,
        "code": one_of(tuple(_SPELLED)).then(_SPELLED.__getitem__),
        "container": number(MOST_CONTAINERS),
        "gpu": GPU_UUID,
        "since": TIME,
        "used": number(MOST_MEMORY).named("usedBytes"),
        "others": number(MOST_MEMORY).named("othersUsedBytes"),
        "evict": FLAG,
        "evict_after": number(_LONGEST_WAIT).named("evictAfterSeconds"),
    },
)


def reports_to_status(reports: Iterable[PodReport]) -> list[dict[str, Any]] | None:
    """The field of the status; None if there is nothing to report, which removes it."""
    return [_REPORT.to_json(each) for each in sorted(reports)[:MOST_REPORTS]] or None


def reports_from_object(gpunode: object) -> tuple[PodReport, ...]:
    """Read a GPUNode: each report once, the first `MOST_REPORTS` of them. Never raises."""
    status = gpunode.get("status") if isinstance(gpunode, Mapping) else None
    listed = status.get(FIELD) if isinstance(status, Mapping) else None
    found: dict[tuple[str, str, int, str], PodReport] = {}
    for report in readable(_REPORT, listed, MOST_REPORTS):
        if report.code in EVICTING or not report.evict:
            found.setdefault((report.pod, report.code, report.container, report.gpu), report)
    return tuple(found.values())


# -- words --------------------------------------------------------------------------------------------------------


def words(report: PodReport, container: str, share: GpuShare) -> str:
    """The message of the Event. All figures of the share are the allocation's own."""
    if report.code == MPS_FAULT:
        return (
            f"a program on GPU {report.gpu} caused a fault in its MPS server: the CUDA calls of all programs there "
            "fail. The server accepts new programs only after all of them have ended. Restart this pod"
        )
    if report.code == UNHEALTHY:
        return f"GPU {report.gpu} is unhealthy, as the agent of its node reports" + _then(report)
    beside = f" and the others of its claim {mib(report.others)} MiB" if report.others else ""
    uses = f"container {container} uses {mib(report.used)} MiB of GPU {report.gpu}{beside}, "
    used = report.used + report.others
    if report.code == PRESSURE:
        return (
            f"{uses}{mib(max(0, used - share.memory))} MiB more than its booked {mib(share.memory)} MiB, and the GPU "
            f"is full while other pods on it have less than they booked" + _then(report)
        )
    bound = "memory limit" if share.burst else "share"
    more = mib(max(0, used - share.limit))
    return f"{uses}{more} MiB more than its {bound} of {mib(share.limit)} MiB{_then(report)}"


def _then(report: PodReport) -> str:
    if report.evict:
        return "; the pod is evicted as soon as its disruption budgets allow it"
    return f"; the pod is evicted if this continues for {report.evict_after} s" if report.evict_after else ""
