"""
Why a node, or the cluster, cannot take a pod: codes, figures, and the sentence that a tenant reads.

A reason is a value. Only this module makes the sentence, so kubectl's warning, the pod's condition, the Event and the
command line agree. It names no other tenant.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum

from contract import names
from contract.encoding.quantity import mib
from contract.model import WITHHELD, Gpu


class Code(IntEnum):
    """
    What a node lacks, in the order of the checks: of several reasons on one node, the highest is reported.

    From `EXCLUSIVE` on, a released share can cure it.
    """

    NO_GPUS = 1
    NODE_NAME = 2
    DELIVERY = 3
    ISOLATION = 4
    LIMIT_NOT_HELD = 5
    CORDONED = 6
    NOT_READY = 7
    TAINT = 8
    SELECTOR = 9
    PORTS = 10
    CLAIM = 11
    VOLUME = 12
    NO_VOLUME = 13
    STORAGE_CAPACITY = 14
    VOLUME_IN_USE = 15
    VOLUME_LIMIT = 16
    TOPOLOGY_LABEL = 17
    TOPOLOGY_SPREAD = 18
    POD_AFFINITY = 19
    POD_ANTI_AFFINITY = 20
    CPU = 21
    MEMORY_OF_NODE = 22
    STORAGE = 23
    PODS = 24
    TOO_FEW_GPUS = 25
    UNHEALTHY = 26
    NOT_SHARED = 27
    GPU_CORDONED = 28
    UUID = 29
    MODEL = 30
    LIMIT_TOO_LARGE = 31
    EXCLUSIVE = 32
    BUSY = 33
    SHARERS = 34
    MEMORY = 35
    LIMITS_IN_ALL = 36
    CORES = 37
    NUMA = 38
    RESERVED = 99


@dataclass(frozen=True, slots=True)
class Reason:
    """Why one node does not fit: the amount wanted and the most that is free, in the code's unit (0 for none)."""

    code: Code
    wanted: int = 0
    most: int = 0
    what: str = ""
    """The taint, port or claim in the way; empty otherwise."""


@dataclass(frozen=True, slots=True)
class ReasonCount:
    """How many nodes gave one code, with the largest figures among them and the first `what`."""

    code: Code
    nodes: int
    wanted: int = 0
    most: int = 0
    what: str = ""


def tally(reasons: Iterable[Reason]) -> tuple[ReasonCount, ...]:
    """Reasons added up by code, in the order of the codes."""
    by_code: dict[Code, list[Reason]] = {}
    for reason in reasons:
        by_code.setdefault(reason.code, []).append(reason)
    return tuple(
        ReasonCount(
            code,
            len(group),
            max(r.wanted for r in group),
            max(r.most for r in group),
            min(r.what for r in group),
        )
        for code, group in sorted(by_code.items())
    )


_PLAIN: Mapping[Code, str] = {
    Code.NO_GPUS: "without GPUs to share",
    Code.NODE_NAME: "not the node that the pod names",
    Code.DELIVERY: "that cannot deliver GPUs to the pod: its runtime class, several GPUs under MPS, or no "
    "ResourceClaim (see status.delivery of the GPUNode)",
    Code.ISOLATION: "that do not enforce the isolation asked for (gpufraction.io/isolation)",
    Code.LIMIT_NOT_HELD: "that enforce no memory limit above the request (it takes the level driver, mps or preload)",
    Code.CORDONED: "cordoned",
    Code.NOT_READY: "not ready",
    Code.SELECTOR: "not matching the pod's node selector or affinity",
    Code.VOLUME: "because of a volume that the node does not reach",
    Code.NO_VOLUME: "because of a claim for which no volume can be bound there",
    Code.STORAGE_CAPACITY: "short of storage for a new volume",
    Code.VOLUME_IN_USE: "because of a volume that another pod uses and cannot share",
    Code.VOLUME_LIMIT: "with as many volumes as can be attached",
    Code.TOPOLOGY_LABEL: "without a label of the pod's topology spread constraints",
    Code.TOPOLOGY_SPREAD: "because of a topology spread constraint",
    Code.POD_AFFINITY: "because of required affinity to another pod",
    Code.POD_ANTI_AFFINITY: "because of anti-affinity to another pod",
    Code.UNHEALTHY: "with unhealthy GPUs",
    Code.NOT_SHARED: "with GPUs that are not shared, since a vendor's device plugin may allocate them",
    Code.GPU_CORDONED: "with GPUs that an administrator cordoned",
    Code.UUID: "without the GPU UUIDs asked for",
    Code.MODEL: "without the GPU model asked for",
    Code.EXCLUSIVE: "with GPUs held whole by others",
    Code.RESERVED: "reserved for a pod ahead in the queue",
    Code.BUSY: "with no GPU that is entirely free",
}


_OF_BYTES: Mapping[Code, tuple[str, str]] = {
    Code.MEMORY: ("short of memory", "largest free"),
    Code.LIMIT_TOO_LARGE: ("that allow no memory limit this far above the request", "largest"),
    Code.LIMITS_IN_ALL: ("on whose GPUs the memory limits would add up to too much", "most left"),
    Code.MEMORY_OF_NODE: ("short of node memory", "most free"),
    Code.STORAGE: ("short of ephemeral storage", "most free"),
}
"""What a node is short of, and what its figure is the amount of."""


def _sentence(found: ReasonCount) -> str:
    count, wanted, most = found.nodes, found.wanted, found.most
    match found.code:
        case Code.CORES:
            return f"{count} short of cores (most free {most} %, wanted {wanted} %)"
        case Code.SHARERS:
            return f"{count} with {wanted} pods on each GPU already"
        case Code.TOO_FEW_GPUS:
            return f"{count} with too few GPUs (most {most}, wanted {wanted})"
        case Code.NUMA:
            return f"{count} without enough such GPUs on one NUMA node (most {most}, wanted {wanted})"
        case Code.CPU:
            return f"{count} short of CPU (most free {most / 1000:g}, wanted {wanted / 1000:g})"
        case Code.PODS:
            return f"{count} full of pods"
        case Code.TAINT:
            until = ", until the node's GPUs are published" if found.what.startswith(names.STARTUP_TAINT) else ""
            return f"{count} with a taint that the pod does not tolerate ({found.what}{until})"
        case Code.CLAIM:
            return f"{count} because of a PersistentVolumeClaim {found.what}"
        case Code.PORTS:
            return f"{count} with the host port in use ({found.what})"
    if found.code in _OF_BYTES:
        short, room = _OF_BYTES[found.code]
        return f"{count} {short} ({room} {mib(most)} MiB, wanted {mib(wanted)})"
    return f"{count} {_PLAIN[found.code]}"


def summary(tallies: Iterable[ReasonCount]) -> str:
    """One sentence over all nodes: `0 of 3 GPU nodes fit: 2 short of memory (...), 1 cordoned`."""
    order = sorted(tallies, key=lambda t: (-t.nodes, -t.code))
    if not order:
        return "no GPU node has reported its GPUs yet"
    total = sum(found.nodes for found in order)
    return f"0 of {total} GPU nodes fit: {', '.join(map(_sentence, order))}"


def of_one(reason: Reason) -> str:
    """What one node lacks, as a phrase after its name."""
    return _sentence(tally((reason,))[0]).removeprefix("1 ")


def leading(tallies: Iterable[ReasonCount]) -> Code:
    """
    The code of the node that passed the most checks, since that node needs the least change, however many nodes have
    another code; `NO_GPUS` without nodes.
    """
    return max((found.code for found in tallies), default=Code.NO_GPUS)


def name_of(code: Code) -> str:
    """`MEMORY_OF_NODE` as `MemoryOfNode`, the form of reasons in conditions and Events."""
    return "".join(word.capitalize() for word in code.name.split("_"))


def of_withheld(gpu: Gpu) -> Code:
    """The code of a GPU that takes no new pods, because it is unhealthy or withheld."""
    return _WITHHELD.get(gpu.withheld, Code.UNHEALTHY)


_WITHHELD: Mapping[str, Code] = dict(zip(WITHHELD, (Code.GPU_CORDONED, Code.NOT_SHARED), strict=True))
