"""
One card's figures from NVML. A figure that an old driver or the card lacks is left out.

Must not: store anything between calls.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from contract.model import WHOLE
from nodeagent.gpus.library import ACTIVE_SECONDS, Card
from nodeagent.gpus.nvml_calls import NvmlFailure, call, is_fatal, maybe, optional, text

_MOST_EVENTS = 256
"""Events read in one look, so that a card that reports without end does not block the agent."""
_MOST_LINKS = 18
"""NVLinks that are queried: no present GPU has more."""
_PATHS = {0: "Board", 10: "Switch", 20: "Switches", 30: "HostBridge", 40: "NumaNode", 50: "System"}
"""nvml.h, `nvmlGpuTopologyLevel_t`."""


_SLICED = "the GPU is in MIG mode and cannot be shared as a whole"
"""This is no fault of the card, and not a reason for its slices."""
_BUSY_SECONDS = 5.0
"""The time over which a process's samples are averaged; the driver takes several a second."""
_ENGINES = ("smUtil", "memUtil", "encUtil", "decUtil")


@dataclass(frozen=True, slots=True)
class Fixed:
    """What does not change while a card has its UUID."""

    pci: str
    capability: str
    numa: int
    nvlinks: int
    links: tuple[tuple[str, str], ...]


def read_card(nvml: Any, index: int) -> Card:
    handle = call(nvml, "nvmlDeviceGetHandleByIndex", index)
    uuid = text(call(nvml, "nvmlDeviceGetUUID", handle))
    model = text(call(nvml, "nvmlDeviceGetName", handle))
    total, reserved, used = _memory(nvml, handle)
    rates = optional(nvml, "nvmlDeviceGetUtilizationRates", handle)
    sliced = bool((optional(nvml, "nvmlDeviceGetMigMode", handle) or [0])[0])
    now = time.time()
    samples = None if sliced else _samples(nvml, handle, now)
    reason = _fault(nvml, handle)
    if total == 0:
        reason = "the driver does not report how much memory this GPU has"
    elif sliced:
        reason = reason or _SLICED
    return Card(
        index=index,
        uuid=uuid,
        model=model,
        memory_bytes=total,
        reserved_bytes=reserved,
        healthy=not reason,
        reason=reason,
        used_bytes=used,
        utilisation=None if rates is None else int(rates.gpu),
        minor=-1 if (minor := maybe(nvml, "nvmlDeviceGetMinorNumber", handle)) is None else int(minor),
        sliced=sliced,
        # For a card in MIG mode the slices report them.
        processes=None if sliced else _processes(nvml, handle),
        busy=None if samples is None else _busy(samples, now),
        active=None if samples is None else _active(samples),
        ecc=_ecc(nvml, handle),
    )


def _processes(nvml: Any, handle: Any) -> tuple[tuple[int, int], ...] | None:
    """
    Processes that compute, by the host's ids. Unknown memory (no permission to see it) counts as 0.

    The list of graphics processes is not read: those of a container with a share are in both lists.
    """
    found = maybe(nvml, "nvmlDeviceGetComputeRunningProcesses", handle)
    if found is None:
        return None
    return tuple(sorted((int(one.pid), int(one.usedGpuMemory or 0)) for one in found))


def _samples(nvml: Any, handle: Any, now: float) -> Sequence[Any] | None:
    """How much of the card processes used in the last seconds; None where the driver does not report it."""
    try:
        found: Sequence[Any] = call(nvml, "nvmlDeviceGetProcessUtilization", handle, int((now - ACTIVE_SECONDS) * 1e6))
        return found
    except NvmlFailure as failure:
        if failure.code == nvml.NVML_ERROR_NOT_FOUND:  # no process computed
            return ()
        if is_fatal(failure):
            raise
        return None


def _busy(samples: Iterable[Any], now: float) -> tuple[tuple[int, int], ...]:
    """
    The percentage of the multiprocessors that each process used, averaged over its samples of the last seconds. With
    the older samples that the driver still has, an idle process would look busy.
    """
    by_pid: dict[int, list[int]] = {}
    for sample in samples:
        if int(sample.timeStamp) >= (now - _BUSY_SECONDS) * 1e6:
            by_pid.setdefault(int(sample.pid), []).append(min(int(sample.smUtil), WHOLE))
    return tuple(sorted((pid, sum(found) // len(found)) for pid, found in by_pid.items()))


def _active(samples: Iterable[Any]) -> tuple[int, ...]:
    """
    The processes of which a sample shows any use, whatever the average says of it: an average of half a percent would
    be none, and a program that decodes video uses no multiprocessor.
    """
    return tuple(sorted({int(each.pid) for each in samples if any(int(getattr(each, part)) for part in _ENGINES)}))


def _fault(nvml: Any, handle: Any) -> str:
    """A fault of the card's memory (nvml.h, `nvmlDeviceGetRemappedRows`; Ampere and later), or empty."""
    rows = maybe(nvml, "nvmlDeviceGetRemappedRows", handle)
    if rows is None:
        return ""
    _, _, pending, failed = rows
    if failed:
        return "a row of the GPU's memory is broken and could not be replaced; the card must be"
    return "a row of the GPU's memory waits to be replaced; the GPU needs a reset" if pending else ""


def _ecc(nvml: Any, handle: Any) -> int | None:
    kinds = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
    count = maybe(nvml, "nvmlDeviceGetTotalEccErrors", handle, *kinds)
    return None if count is None else int(count)


def fixed_of(nvml: Any, uuid: str, handles: dict[str, Any]) -> Fixed:
    handle = handles[uuid]
    pci = maybe(nvml, "nvmlDeviceGetPciInfo", handle)
    capability = maybe(nvml, "nvmlDeviceGetCudaComputeCapability", handle)
    numa = maybe(nvml, "nvmlDeviceGetNumaNodeId", handle)
    up = 0
    for link in range(_MOST_LINKS):
        state = maybe(nvml, "nvmlDeviceGetNvLinkState", handle, link)
        if state is None:
            break
        up += int(state)
    links = ((peer, _path(nvml, handle, other)) for peer, other in handles.items() if peer != uuid)
    return Fixed(
        pci=text(pci.busId).upper() if pci is not None else "",
        capability=".".join(str(part) for part in capability) if capability else "",
        numa=-1 if numa is None or not 0 <= numa < 1 << 16 else int(numa),
        nvlinks=up,
        links=tuple((peer, path) for peer, path in links if path),
    )


def _path(nvml: Any, one: Any, other: Any) -> str:
    """The nearest path between two cards. NVLink through a switch counts too, hence not by the links' ends."""
    if maybe(nvml, "nvmlDeviceGetP2PStatus", one, other, nvml.NVML_P2P_CAPS_INDEX_NVLINK) == 0:
        return "NVLink"
    level = maybe(nvml, "nvmlDeviceGetTopologyCommonAncestor", one, other)
    return _PATHS.get(level, "") if level is not None else ""


def slices(nvml: Any, card: Card) -> list[Card]:
    """
    The MIG slices of a card, in the order of their numbers, without those that are removed meanwhile. Raises
    `NvmlFailure` if the card does not answer.
    """
    handle = call(nvml, "nvmlDeviceGetHandleByIndex", card.index)
    fault = "" if card.reason == _SLICED else card.reason
    found = []
    for number in range(optional(nvml, "nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
        part = maybe(nvml, "nvmlDeviceGetMigDeviceHandleByIndex", handle, number)
        if part is None:
            continue
        uuid, model = maybe(nvml, "nvmlDeviceGetUUID", part), maybe(nvml, "nvmlDeviceGetName", part)
        memory = maybe(nvml, "nvmlDeviceGetMemoryInfo", part)
        if uuid is None or memory is None:
            continue
        gpu_instance = maybe(nvml, "nvmlDeviceGetGpuInstanceId", part)
        compute_instance = maybe(nvml, "nvmlDeviceGetComputeInstanceId", part)
        known = gpu_instance is not None and compute_instance is not None
        found.append(
            replace(
                card,
                uuid=text(uuid),
                model=text(model or card.model),
                memory_bytes=int(memory.total),
                reserved_bytes=0,
                used_bytes=int(memory.used),
                utilisation=None,
                processes=_processes(nvml, part),
                busy=None,
                active=None,
                healthy=not fault,
                reason=fault,
                parent=card.uuid,
                instances=(int(gpu_instance), int(compute_instance)) if known else None,
                sliced=False,
                links=(),
                nvlinks=0,
            )
        )
    return found


def register(nvml: Any) -> Any:
    """An event set with every card's XIDs; None if the driver has none, which is no fault."""
    events = maybe(nvml, "nvmlEventSetCreate")
    if events is None:
        return None
    for index in range(call(nvml, "nvmlDeviceGetCount")):
        handle = maybe(nvml, "nvmlDeviceGetHandleByIndex", index)
        if handle is not None:
            maybe(nvml, "nvmlDeviceRegisterEvents", handle, nvml.nvmlEventTypeXidCriticalError, events)
    return events


def xids_of(nvml: Any, events: Any) -> dict[str, tuple[int, ...]]:
    """The new XIDs by UUID. Those without a card are under the empty UUID and count for every card."""
    found: dict[str, tuple[int, ...]] = {}
    for _ in range(_MOST_EVENTS if events is not None else 0):
        event = maybe(nvml, "nvmlEventSetWait_v2", events, 0)
        if event is None:
            break
        if event.eventType == nvml.nvmlEventTypeXidCriticalError:
            uuid = maybe(nvml, "nvmlDeviceGetUUID", event.device) if event.device else None
            key = text(uuid) if uuid is not None else ""
            found[key] = (*found.get(key, ()), int(event.eventData))
    return found


def _memory(nvml: Any, handle: Any) -> tuple[int, int, int | None]:
    """
    Total, reserved by the driver, and used bytes.

    The second version of the call (driver 510 and later) reports the reserve; the first counts it in `used`.
    """
    info = optional(nvml, "nvmlDeviceGetMemoryInfo", handle, nvml.nvmlMemory_v2)
    if info is not None:
        return int(info.total), int(info.reserved), int(info.used)
    info = optional(nvml, "nvmlDeviceGetMemoryInfo", handle)
    return (int(info.total), 0, int(info.used)) if info is not None else (0, 0, None)
