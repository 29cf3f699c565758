"""What the registry says of one reason, and the types that keep every reason in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum, StrEnum

Figure = Callable[[int], object]


class Change(StrEnum):
    """
    What can cure a reason, as kube-scheduler's cluster events do: a word for `docs/reasons.md`, and what it means.

    One event brings several: a pod with a share that ends brings `SHARE`, `ROOM`, `PORTS` and `POD`.
    """

    doc: str

    def __new__(cls, word: str, doc: str) -> Change:
        """One row."""
        member = str.__new__(cls, word)
        member._value_ = word
        member.doc = doc
        return member

    NODE = "node joins", "a Node or its GPUNode is new"
    LABELS = "node labels", "labels of a Node change"
    TAINTS = "taints", "taints of a Node change, or it is uncordoned"
    READY = "node ready", "a Node becomes ready"
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


def changes(*found: Change) -> frozenset[Change]:
    """A set of them."""
    return frozenset(found)


NEVER = changes()
STORAGE = changes(
    Change.VOLUME_CLAIM,
    Change.VOLUME,
    Change.CLASS,
    Change.CSI_NODE,
    Change.CSI_DRIVER,
    Change.CAPACITY,
    Change.ATTACHMENT,
)
"""Changes of what a pod's volumes depend on."""


class Kind(StrEnum):
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
    """What is said of one reason."""

    kind: Kind
    text: str
    """Its message, or what its message says; of a node, the phrase with its figures (`contract.reasons.nodes`)."""
    cure: str
    """What a tenant or an administrator can do, as one sentence; empty where there is nothing to do."""
    cured_by: frozenset[Change] = NEVER
    page: str = ""
    """Where more is said: a path in `docs`, with a heading where one helps."""


class Word(str):
    """
    The name of a reason in conditions and Events. Only the registry makes one, so no other can be written.

    Initialisms are spelled in capitals, as in Kubernetes' API: `GPUGone`, `NoGPUs`, `MPSFault`.
    """

    __slots__ = ()


class Reasons(Word, Enum):
    """Base of the tables. A member is its name, and has what is said of it as `row`."""

    row: Row

    def __new__(cls, word: str, row: Row) -> Reasons:
        """One row."""
        member = str.__new__(cls, word)
        member._value_ = word
        member.row = row
        return member

    __str__ = str.__str__
    __format__ = str.__format__

    __hash__ = str.__hash__


def cures(rows: Iterable[Row]) -> frozenset[Change]:
    """What can cure any of these."""
    return frozenset(change for row in rows for change in row.cured_by)
