"""
Why a node, or the cluster, cannot take a pod: codes, figures, and the sentence that a tenant reads.

A reason is a value. Only this module makes the sentence, so kubectl's warning, the pod's condition, the Event and the
command line agree. It names no other tenant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Self

from contract import names
from contract.encoding.quantity import mib
from contract.isolation import LIMITING, listed
from contract.model import WITHHELD, Gpu
from contract.reasons.base import STORAGE, Cure, ReasonKind, ReasonName, Row, SpelledReason, cures, either
from contract.reslicing import STATE_LABEL

_FIXED = either(Cure.NODE, Cure.RESERVATION)
"""
A node that joins may have what others lack, and so may a node that was reserved for another pod: both can cure every
code.
"""
_CARDS = _FIXED | {Cure.GPUS}
_HELD = _CARDS | {Cure.SHARE}
"""
A node with several GPUs reports the one that passed the most checks. A GPU with an earlier code may still become the
one that fits, so each code of a GPU has the cures of the codes before it.
"""
_NODES_ROOM = _FIXED | {Cure.ROOM, Cure.ALLOCATABLE}
_VOLUMES = _FIXED | STORAGE | {Cure.LABELS, Cure.NODE_GONE}
_DEVICES = _FIXED | {Cure.DEVICE_CLAIM, Cure.DEVICE_CLASS, Cure.LABELS}
_NEIGHBOURS = _FIXED | {Cure.POD, Cure.NAMESPACE, Cure.LABELS, Cure.NODE_GONE}


def _cpu(thousandths: int) -> str:
    return f"{thousandths / 1000:g}"


def _row(text: str, cure: str, cured_by: frozenset[Cure], page: str = "") -> Row:
    return Row(ReasonKind.NODE, text, cure, cured_by, page)


class NodeCode(IntEnum):
    """
    Base of the tables of what a node lacks. Of several reasons on one node, the highest is reported.

    `word` is the member's name in conditions and Events, and `row` is its text. Its text may have the figures of
    `ReasonCount`; `{free}` is left out where figures are not of now.
    """

    word: ReasonName
    row: Row
    shown: Callable[[int], object]

    def __new__(cls, word: str, row: Row, shown: Callable[[int], object] = int, number: int = 0) -> Self:
        """
        One row. `shown`: how its figures are shown, which have the unit of `ReasonCount`. `number`: its place in the
        order of the checks; 0: that in its table.
        """
        member = int.__new__(cls, number or len(cls.__members__) + 1)
        member._value_ = int(member)
        member.word = SpelledReason(word)
        member.row = row
        member.shown = shown
        return member


class Code(NodeCode):
    """The possible shortages of a node, in the order of the checks."""

    NO_GPUS = (
        "NoGPUs",
        _row(
            "without GPUs to share",
            "See why the nodes have no usable GPUNode: `kubectl get gpunodes`.",
            _CARDS,
            "troubleshooting.md#a-node-gets-no-pods",
        ),
    )
    NODE_NAME = (
        "NodeName",
        _row("not the node that the pod names", "Remove `spec.nodeName`, or name a node with room.", _FIXED),
    )
    DELIVERY = (
        "Delivery",
        _row(
            "that cannot deliver GPUs to the pod: its runtime class, several GPUs under MPS, or no "
            "ResourceClaim (see status.delivery of the GPUNode)",
            "Remove `runtimeClassName`, or ask for one GPU where MPS limits containers.",
            _CARDS,
            "isolation.md",
        ),
    )
    ISOLATION = (
        "Isolation",
        _row(
            f"that do not enforce the requested isolation ({names.ISOLATION})",
            "Ask for a weaker level, or have an administrator enable that level.",
            _CARDS,
            "isolation.md#switch-a-limiter-on",
        ),
    )
    LIMIT_NOT_HELD = (
        "LimitNotHeld",
        _row(
            f"that enforce no memory limit above the request (this requires the level {listed(LIMITING)})",
            "Remove `gpu-memory-limit`, or have an administrator enable a level that enforces it.",
            _CARDS,
            "isolation.md#switch-a-limiter-on",
        ),
    )
    FEATURES = (
        "Features",
        _row(
            "without a node feature that the pod needs (hostUsers, restartPolicyRules)",
            "Remove the fields that need the feature, or have an administrator enable it: "
            "`kubectl get node NODE -o yaml`, `status.declaredFeatures`.",
            _FIXED | {Cure.FEATURES},
        ),
    )
    CORDONED = (
        "Cordoned",
        _row("cordoned", "Wait, or have an administrator uncordon nodes: `kubectl get nodes`.", _FIXED | {Cure.TAINTS}),
    )
    NOT_READY = (
        "NotReady",
        _row("not ready", "Have an administrator repair the nodes: `kubectl get nodes`.", _FIXED | {Cure.READY}),
    )
    AGENT_SILENT = (
        "AgentSilent",
        _row(
            "whose agent has not reported for too long, so GPU faults would go unnoticed",
            "Wait, or have an administrator check the agents' pods: `kubectl get pods --all-namespaces -o wide "
            "-l app.kubernetes.io/component=nodeagent`.",
            _FIXED | {Cure.READY},
            "runbooks.md#gpufractionagentsilent",
        ),
    )
    RESLICING = (
        "Reslicing",
        _row(
            f"whose GPUs are being repartitioned by NVIDIA's MIG manager ({STATE_LABEL})",
            "Wait, or have an administrator check the label: `kubectl get nodes -L nvidia.com/mig.config.state`.",
            _FIXED | {Cure.LABELS},
            "constraints.md#nvidias-gpu-operator",
        ),
    )
    TAINT = (
        "Taint",
        _row(
            "with a taint that the pod does not tolerate ({what})",
            "Add a toleration to the pod, or remove the taint from the node. The node's agent removes a startup taint "
            "itself; if it stays, see the conditions `Ready` and `StartupTaint` of the GPUNode.",
            _FIXED | {Cure.TAINTS},
        ),
    )
    SELECTOR = (
        "Selector",
        _row(
            "not matching the pod's node selector or affinity",
            "Change the pod's node selector or affinity, or label nodes.",
            _FIXED | {Cure.LABELS},
        ),
    )
    ADDED_AFFINITY = (
        "AddedAffinity",
        _row(
            "not matching the node affinity that the pod's scheduler profile adds",
            "Have an administrator label nodes, or change `addedAffinity` in kube-scheduler's profile and in "
            "`schedulerProfiles` of the options.",
            _FIXED | {Cure.LABELS, Cure.PROFILE},
            "settings.md#arguments-of-kube-schedulers-profiles",
        ),
    )
    PORTS = (
        "Ports",
        _row(
            "with the host port in use ({what})",
            "Use another host port, or wait until the pod with that port ends.",
            _FIXED | {Cure.PORTS},
        ),
    )
    CLAIM = (
        "Claim",
        _row(
            "because of a PersistentVolumeClaim {what}",
            "See `kubectl describe pvc NAME`. `that is still being read` ends by itself within seconds.",
            _VOLUMES,
        ),
    )
    VOLUME = (
        "Volume",
        _row(
            "because of a volume that the node cannot reach",
            "The volume is in another zone, or on another node that has no room. Wait, or move the data.",
            _VOLUMES,
        ),
    )
    NO_VOLUME = (
        "NoVolume",
        _row(
            "because of a claim for which no volume can be bound there",
            "No free volume fits and none can be created on those nodes: see the claim's StorageClass.",
            _VOLUMES,
        ),
    )
    STORAGE_CAPACITY = (
        "StorageCapacity",
        _row(
            "short of storage for a new volume",
            "Ask for a smaller volume, or have an administrator add storage: `kubectl get csistoragecapacities -A`.",
            _VOLUMES,
        ),
    )
    VOLUME_IN_USE = (
        "VolumeInUse",
        _row(
            "because of a volume that another pod uses and cannot share",
            "Wait until the other pod ends, or use another volume.",
            _VOLUMES | {Cure.POD},
        ),
    )
    VOLUME_LIMIT = (
        "VolumeLimit",
        _row(
            "with the maximum number of volumes attached",
            "Wait until other pods with volumes end, or add nodes.",
            _VOLUMES | {Cure.POD},
        ),
    )
    RESOURCE_CLAIM = (
        "ResourceClaim",
        _row(
            "because of a ResourceClaim {what}",
            "See `kubectl describe resourceclaim NAME`. `that is still being read` and `that is not made yet` end by "
            "themselves within seconds; if the latter does not, an Event of the pod says why, such as a quota of "
            "devices. `that another pod uses`, of a claim of the DeviceClass share.gpufraction.io: wait until that pod "
            "ends, or give each pod a claim by a template. `that 256 pods use`: no claim has more at the same time.",
            _DEVICES,
        ),
    )
    DEVICES_ELSEWHERE = (
        "DevicesElsewhere",
        _row(
            "because of a ResourceClaim whose devices are on other nodes",
            "The claim's devices are on nodes that have no room for the pod, or where it cannot run. Wait until no "
            "pod uses the claim, or use another claim.",
            _DEVICES,
        ),
    )
    TOPOLOGY_LABEL = (
        "TopologyLabel",
        _row(
            "without a label of the pod's topology spread constraints",
            "Label the nodes with the constraint's `topologyKey`, or change the constraint.",
            _FIXED | {Cure.LABELS, Cure.SELECTING, Cure.PROFILE},
        ),
    )
    TOPOLOGY_SPREAD = (
        "TopologySpread",
        _row(
            "because of a topology spread constraint",
            "Add GPU nodes to the emptier domains, raise `maxSkew`, or use `ScheduleAnyway`.",
            _NEIGHBOURS | {Cure.TAINTS, Cure.SELECTING, Cure.PROFILE},
        ),
    )
    SPREAD_UNKNOWN = (
        "SpreadUnknown",
        _row(
            "until the Services and controllers for default topology spread constraints are read",
            "This ends by itself within seconds. If it stays, have an administrator add the component default-spread.",
            _FIXED | {Cure.SELECTING, Cure.PROFILE},
            "settings.md#arguments-of-kube-schedulers-profiles",
        ),
    )
    POD_AFFINITY = (
        "PodAffinity",
        _row(
            "because of required affinity to another pod",
            "First start the pod that yours requires, or make room on its node.",
            _NEIGHBOURS,
        ),
    )
    POD_ANTI_AFFINITY = (
        "PodAntiAffinity",
        _row(
            "because of anti-affinity to another pod",
            "The pod's own anti-affinity or that of a running pod excludes the node. Wait until that pod ends, or add "
            "nodes. "
            "The message does not name a pod of another namespace.",
            _NEIGHBOURS,
        ),
    )
    REFUSED_BY_SCHEDULER = (
        "RefusedByScheduler",
        _row(
            "that kube-scheduler refused ({what})",
            "A pod of the same controller or name was pinned there, and kube-scheduler refused it with this message. "
            "Resolve the cause. The node is tried again after 10 min.",
            _FIXED | {Cure.TIME},
            "operations-reference.md#pods-that-are-not-bound",
        ),
    )
    CPU = (
        "CPU",
        _row(
            "short of CPU (most{free} {most}, wanted {wanted})",
            "Request less CPU, or wait until pods on GPU nodes end.",
            _NODES_ROOM,
        ),
        _cpu,
    )
    MEMORY_OF_NODE = (
        "MemoryOfNode",
        _row(
            "short of node memory (most{free} {most} MiB, wanted {wanted})",
            "Request less memory, or wait until pods on GPU nodes end.",
            _NODES_ROOM,
        ),
        mib,
    )
    STORAGE = (
        "Storage",
        _row(
            "short of ephemeral storage (most{free} {most} MiB, wanted {wanted})",
            "Request less ephemeral storage, or wait until pods on GPU nodes end.",
            _NODES_ROOM,
        ),
        mib,
    )
    PODS = ("Pods", _row("full of pods", "Wait until pods on GPU nodes end, or add nodes.", _NODES_ROOM))
    RESOURCE = (
        "Resource",
        _row(
            "short of {what} (most{free} {most}, wanted {wanted})",
            "Request less of that resource, or wait until pods on GPU nodes end.",
            _NODES_ROOM | {Cure.DEVICE_CLASS, Cure.GPUS, Cure.SHARE},
        ),
    )
    TOO_FEW_GPUS = (
        "TooFewGPUs",
        _row(
            "with too few GPUs (most {most}, wanted {wanted})",
            "Ask for fewer GPUs, or have an administrator add nodes with more.",
            _CARDS,
        ),
    )
    UNHEALTHY = (
        "Unhealthy",
        _row(
            "with unhealthy GPUs",
            "See which and why: `kubectl get gpunode NODE -o yaml`.",
            _CARDS,
            "troubleshooting.md#a-node-gets-no-pods",
        ),
    )
    NOT_SHARED = (
        "NotShared",
        _row(
            "with GPUs that are not shared, since a vendor's device plugin may allocate them",
            "An administrator: see the condition `PluginConflict` or `Held` of the GPUNode.",
            _CARDS,
            "installing.md",
        ),
    )
    GPU_CORDONED = (
        "GPUCordoned",
        _row(
            "with GPUs that an administrator cordoned",
            "See the Node's annotation `gpufraction.io/cordon`, or the ConfigMap `unhealthy-gpu-NODE` of kube-system; "
            "`kubectl gpufraction nodes -o wide` says which.",
            _CARDS,
        ),
    )
    UUID = (
        "UUID",
        _row(
            "without the requested GPU UUIDs",
            "Change the pod's annotations; `kubectl gpufraction nodes -o json` lists the UUIDs.",
            _CARDS,
        ),
    )
    MODEL = (
        "Model",
        _row(
            "without the requested GPU model",
            "Change the pod's annotations; `kubectl gpufraction nodes` lists the models.",
            _CARDS,
        ),
    )
    GPU_SELECTOR = (
        "GPUSelector",
        _row(
            "without enough GPUs that the selectors of the pod's ResourceClaims accept",
            "Change the selectors: `kubectl gpufraction nodes -o json` lists models and memory, and the page lists the "
            "attributes. An expression that fails for a GPU, such as one about an attribute that it lacks, does not "
            "accept it.",
            _CARDS,
            "upstream.md#choose-cards-by-selectors",
        ),
    )
    LIMIT_TOO_LARGE = (
        "LimitTooLarge",
        _row(
            "that do not allow a memory limit this far above the request (largest {most} MiB, wanted {wanted})",
            "Set a smaller limit or a larger request; an administrator can raise `memoryLimitRatio`. A limit cannot "
            "exceed the GPU's memory, and MIG slices allow no limit above the request.",
            _CARDS,
            "tenants.md#memory-that-may-burst",
        ),
        mib,
    )
    EXCLUSIVE = (
        "Exclusive",
        _row("with GPUs that other pods use exclusively", "Wait until one of these pods ends, or add nodes.", _HELD),
    )
    BUSY = (
        "Busy",
        _row(
            "with no GPU that is entirely free",
            "Wait, or see `kubectl gpufraction advise` for the fewest evictions that make room.",
            _HELD,
        ),
    )
    SHARERS = (
        "Sharers",
        _row("with {wanted} pods on every GPU already", "Wait until one of these pods ends, or add nodes.", _HELD),
    )
    MEMORY = (
        "Memory",
        _row(
            "short of memory (largest{free} {most} MiB, wanted {wanted})",
            "The cluster is full: wait, ask for less, or see `kubectl gpufraction advise` for the fewest evictions "
            "that make room.",
            _HELD,
        ),
        mib,
    )
    LIMITS_IN_ALL = (
        "LimitsInAll",
        _row(
            "on whose GPUs the memory limits would exceed their maximum sum (most left {most} MiB, wanted {wanted})",
            "Wait, set a smaller limit, or remove it; an administrator can raise `memoryLimitRatio`.",
            _HELD,
            "tenants.md#memory-that-may-burst",
        ),
        mib,
    )
    CORES = (
        "Cores",
        _row(
            "short of cores (most{free} {most} %, wanted {wanted} %)",
            "The cluster is full: wait, ask for fewer cores, or see `kubectl gpufraction advise`.",
            _HELD,
        ),
    )
    NEIGHBOUR_STARTING = (
        "NeighbourStarting",
        _row(
            "with room only on GPUs where another pod that starts alone is still starting",
            "Wait: a GPU becomes available when that pod is ready, or after the setting `starts.within` (5 min by "
            f"default) at the latest. Or remove the annotation {names.START}, so that the pod starts alongside others.",
            _HELD,
            "start-alone.md",
        ),
    )
    NUMA = (
        "NUMA",
        _row(
            "without enough such GPUs on one NUMA node (most {most}, wanted {wanted})",
            "Wait, ask for fewer GPUs, or remove the requirement of one NUMA node.",
            _HELD,
        ),
    )
    ALIKE = (
        "Alike",
        _row(
            "without enough such GPUs of one model, or of one alternative (most {most}, wanted {wanted})",
            "Wait, ask for fewer GPUs, or remove the constraint of the pod's ResourceClaim.",
            _HELD,
            "upstream.md#constraints",
        ),
    )
    RESERVED = (
        "Reserved",
        _row(
            "reserved for a pod ahead in the queue",
            "Wait: a large pod has waited for longer than `starvation_timeout`, so a node is reserved for it, for at "
            "most `starvation_reservation_limit`. If that pod waits for pods of your namespace, end them.",
            _HELD,
        ),
    )


CODES: Mapping[int, Code] = {int(code): code for code in Code}
"""Every code by its number."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why one node does not fit: the amount wanted and the most that is free, in the code's unit (0 for none)."""

    code: NodeCode
    wanted: int = 0
    most: int = 0
    what: str = ""
    """The taint, port or claim in the way; empty otherwise."""


@dataclass(frozen=True, slots=True)
class ReasonCount:
    """The number of nodes with one code, with their largest figures and the first `what`."""

    code: NodeCode
    nodes: int
    wanted: int = 0
    most: int = 0
    what: str = ""


def tally(reasons: Iterable[Reason]) -> tuple[ReasonCount, ...]:
    """Reasons added up by code, in the order of the codes."""
    by_code: dict[NodeCode, list[Reason]] = {}
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


def _what(found: ReasonCount) -> str:
    if found.code is Code.TAINT and found.what.startswith(names.STARTUP_TAINT):
        return f"{found.what}, until the node's GPUs are published"
    return found.what


def _phrase(found: ReasonCount, free: bool) -> str:
    code = found.code
    wanted, most = code.shown(found.wanted), code.shown(found.most)
    return code.row.text.format(wanted=wanted, most=most, what=_what(found), free=" free" if free else "")


def summary(tallies: Iterable[ReasonCount], *, free: bool = True) -> str:
    """
    One sentence over all nodes: `0 of 3 GPU nodes fit: 2 short of memory (...), 1 cordoned`.

    `free`: the figures are what is free; otherwise the largest that there are.
    """
    order = sorted(tallies, key=lambda t: (-t.nodes, -t.code))
    if not order:
        return "no GPU node has reported its GPUs yet"
    total = sum(found.nodes for found in order)
    return f"0 of {total} GPU nodes fit: {', '.join(f'{found.nodes} {_phrase(found, free)}' for found in order)}"


def of_one(reason: Reason) -> str:
    """The missing resources of one node, as a phrase after its name."""
    return _phrase(tally((reason,))[0], True)


def leading(tallies: Iterable[ReasonCount]) -> NodeCode:
    """
    The code of the node that passed the most checks, since that node needs the least change, however many nodes have
    another code; `NO_GPUS` without nodes.
    """
    return max((found.code for found in tallies), default=Code.NO_GPUS)


@lru_cache(maxsize=4096)
def cured_by(codes: frozenset[NodeCode]) -> frozenset[Cure]:
    """The events that can cure one of these: no other event makes room for a pod whose nodes have these codes."""
    return cures(code.row for code in codes)


def codes_of(tallies: Iterable[ReasonCount]) -> frozenset[NodeCode]:
    """All codes of a pod's nodes; `NO_GPUS` without nodes."""
    return frozenset(found.code for found in tallies) or _WITHOUT_NODES


_WITHOUT_NODES: frozenset[NodeCode] = frozenset((Code.NO_GPUS,))


def of_withheld(gpu: Gpu) -> Code:
    """The code of a GPU that takes no new pods, because it is unhealthy or withheld."""
    return _WITHHELD.get(gpu.withheld, Code.UNHEALTHY)


_WITHHELD: Mapping[str, Code] = dict(zip(WITHHELD, (Code.GPU_CORDONED, Code.NOT_SHARED), strict=True))
