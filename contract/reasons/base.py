"""The registry's entry of one reason, and the types that keep every reason in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

Figure = Callable[[int], object]


class Cure(StrEnum):
    """
    What can cure a reason, as kube-scheduler's cluster events do: a word for `docs/reasons.md`, and what it means.

    One event brings several: a pod with a share that ends brings `SHARE`, `ROOM`, `PORTS` and `POD`.
    """

    doc: str

    def __new__(cls, word: str, doc: str) -> Cure:
        """One row."""
        member = str.__new__(cls, word)
        member._value_ = word
        member.doc = doc
        return member

    NODE = "node joins", "a Node or its GPUNode is new"
    LABELS = "node labels", "labels of a Node change"
    TAINTS = "taints", "taints of a Node change, or it is uncordoned"
    READY = "node ready", "a Node becomes ready, or its agent reports again after a silence"
    ALLOCATABLE = "allocatable", "a Node's allocatable CPU, memory, storage, pods or extended resources change"
    FEATURES = "node features", "a Node's declared features change"
    NODE_GONE = "node removed", "a Node is removed"
    GPUS = "GPUs", "a GPUNode changes: GPUs, their health, sharing, isolation or delivery"
    SHARE = "share", "a GPU share is released"
    ROOM = "room", "a pod on a node ends or requests less CPU, memory or storage"
    PORTS = "ports", "a pod with a host port ends"
    POD = "pods", "a pod on a node is created, relabelled or deleted"
    NAMESPACE = "namespaces", "a namespace is created or relabelled"
    VOLUME_CLAIM = "PersistentVolumeClaims", "a PersistentVolumeClaim changes"
    VOLUME = "PersistentVolumes", "a PersistentVolume changes"
    CLASS = "StorageClasses", "a StorageClass changes"
    CSI_NODE = "CSINodes", "a CSINode changes"
    CSI_DRIVER = "CSIDrivers", "a CSIDriver changes"
    CAPACITY = "capacities", "a CSIStorageCapacity changes"
    ATTACHMENT = "attachments", "a VolumeAttachment changes"
    SELECTING = "selectors", "the selector of a Service, ReplicaSet, StatefulSet or ReplicationController changes"
    PROFILE = "profiles", "an administrator changes `schedulerProfiles` in the options"
    DEVICE_CLAIM = "ResourceClaims", "a ResourceClaim changes"
    DEVICE_CLASS = "DeviceClasses", "a DeviceClass changes"
    RESERVATION = "reservation", "a node that is reserved for another pod is given up"
    GPU_CLAIM = "ElasticGPUClaim", "an ElasticGPUClaim, its class or its ElasticGPU changes"
    OWN = "itself", "the pod itself changes"
    TIME = "time", "a pause ends"


def either(*found: Cure) -> frozenset[Cure]:
    """A set of them."""
    return frozenset(found)


NEVER = either()
STORAGE = either(
    Cure.VOLUME_CLAIM,
    Cure.VOLUME,
    Cure.CLASS,
    Cure.CSI_NODE,
    Cure.CSI_DRIVER,
    Cure.CAPACITY,
    Cure.ATTACHMENT,
)
"""Changes of what a pod's volumes depend on."""


class ReasonKind(StrEnum):
    """Where a reason is read. The values are headings of `docs/reasons.md`."""

    NODE = "A node does not fit"
    WAITS = "A pod waits"
    ANSWER = "Admission answers"
    PLACED = "A pod has its share"
    POD_EVENT = "Events of pods"
    NODE_EVENT = "Events of nodes and lists of GPUs"
    CLAIM = "ElasticGPUClaims and ElasticGPUs"
    CLAIM_EVENT = "Events of ElasticGPUClaims"
    GPUNODE = "Conditions of a GPUNode"
    CHECK = "Conditions of Kueue's AdmissionCheck"


@dataclass(frozen=True, slots=True)
class Row:
    """The text of one reason."""

    kind: ReasonKind
    text: str
    """Its message, or what its message says; of a node, the phrase with its figures (`contract.reasons.nodes`)."""
    cure: str
    """The action for a tenant or an administrator, as one sentence; empty if there is none."""
    cured_by: frozenset[Cure] = NEVER
    page: str = ""
    """The page with more information: a path in `docs`, with a heading if one helps."""


class Reasons(StrEnum):
    """
    Base of the tables. A member is the name of a reason in conditions and Events, and has its text as `row`.

    Initialisms are spelled in capitals, as in Kubernetes' API: `GPUGone`, `NoGPUs`, `MPSFault`.
    """

    row: Row

    def __new__(cls, name: str, row: Row) -> Reasons:
        """One row."""
        member = str.__new__(cls, name)
        member._value_ = name
        member.row = row
        return member

    __hash__ = str.__hash__  # that of the text, which is what it equals


class SpelledReason(str):
    """The name of a reason that is not in a table of names: of a node's code, or derived from a claim's reason."""

    __slots__ = ()


def written_before(text: str) -> SpelledReason:
    """The reason in a condition of ours, in the spelling of the version that wrote it."""
    return SpelledReason(text)


ReasonName = Reasons | SpelledReason
"""The type of reasons in conditions and Events. Only the registry makes values of it, so no other can be written."""


def cures(rows: Iterable[Row]) -> frozenset[Cure]:
    """The events that can cure any of these."""
    return frozenset(change for row in rows for change in row.cured_by)
