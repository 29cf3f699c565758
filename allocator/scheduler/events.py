"""
The core's input and output: values only.

An **event** is something that happened: the watch brought an object, a write was answered, a check came back. The core
takes it in with `Controller.handle`. An **effect** is something that a worker must do: `Controller.tick` gives the
effects of a phase, each once. The worker carries them out and reports the results by events.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

from allocator.cache.capacities import HeldBeyond
from allocator.cache.ledger import Reservation
from allocator.cache.podinfo import PodEvent, pod_event
from allocator.cache.repeated import RepeatedNote
from allocator.neighbours.followed import Key as StorageKey
from allocator.queue.parking import ParkedPod
from allocator.queue.queue import QueuedPodInfo
from allocator.queue.records import Binding, EventRecord, Eviction, StatusUpdate
from contract.model import Inventory, NodeState
from contract.nodes.attributes import NodeFacts
from contract.nodes.excluded import KeptOut
from contract.nodes.heartbeat import Heartbeat
from contract.nodes.idle import IdleReport
from contract.nodes.reports import PodReport
from contract.scheduling.clusterfilters.objects import Profile

JSON = dict[str, Any]

# -- events: what the watches bring -----------------------------------------------------------------------------------
# `PodEvent` is the event of a pod that is new or changed.


@dataclass(frozen=True, slots=True)
class PodsListed:
    """
    The list of pods, or a part of it: other threads get the lock between two parts, and the whole list is never in
    memory.

    `first`, `last`: this part begins the list, and ends it. `term`: the list was requested in this term of leadership,
    after it began.
    """

    pods: tuple[PodEvent, ...]
    first: bool = True
    last: bool = True
    term: int | None = None


def pods_listed(items: Iterable[JSON], *, first: bool = True, last: bool = True, term: int | None = None) -> PodsListed:
    """The event of a list of trimmed pods, each read."""
    return PodsListed(tuple(map(pod_event, items)), first, last, term)


@dataclass(frozen=True, slots=True)
class PodDeleted:
    """A pod was deleted."""

    uid: str


@dataclass(frozen=True, slots=True)
class NamespacesLabelled:
    """The labels of all namespaces."""

    labels: Mapping[str, Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class ProfilesDeclared:
    """The administrator's settings of kube-scheduler's profiles, by `schedulerName`."""

    profiles: Mapping[str, Profile]


@dataclass(frozen=True, slots=True)
class StorageListed:
    """All objects of a kind that is followed once it is needed (`allocator.neighbours.followed`), with their keys."""

    plural: str
    found: tuple[tuple[StorageKey, object], ...]


@dataclass(frozen=True, slots=True)
class StorageChanged:
    """An object of such a kind is new or changed."""

    plural: str
    key: StorageKey
    found: object


@dataclass(frozen=True, slots=True)
class StorageDeleted:
    """An object of such a kind was deleted."""

    plural: str
    key: StorageKey


@dataclass(frozen=True, slots=True)
class NodesListed:
    """The whole list of nodes."""

    nodes: tuple[NodeFacts, ...]


@dataclass(frozen=True, slots=True)
class NodeChanged:
    """A node is new or changed."""

    node: NodeFacts


@dataclass(frozen=True, slots=True)
class NodeDeleted:
    """A node was deleted."""

    name: str


@dataclass(frozen=True, slots=True)
class InventoriesListed:
    """The whole list of GPUNodes."""

    inventories: tuple[Inventory, ...]


@dataclass(frozen=True, slots=True)
class InventoryChanged:
    """A GPUNode is new or changed."""

    inventory: Inventory


@dataclass(frozen=True, slots=True)
class InventoryDeleted:
    """A GPUNode was deleted."""

    node: str


@dataclass(frozen=True, slots=True)
class HeldBeyondChanged:
    """
    What a GPUNode says about what pods hold beyond its GPUs' promise, and about its cards that other nodes also report;
    empty if it says nothing.
    """

    node: str
    text: str
    repeated: str = ""


@dataclass(frozen=True, slots=True)
class ExcludedGpusListed:
    """Every list of GPUs that an administrator excludes."""

    lists: tuple[KeptOut, ...]


@dataclass(frozen=True, slots=True)
class ExcludedGpusChanged:
    """A node's list of excluded GPUs is new or changed; None if it was deleted."""

    node: str
    found: KeptOut | None


@dataclass(frozen=True, slots=True)
class IdleSharesReported:
    """A GPUNode's report about the idle shares of its node. `listed`: it came with a list."""

    node: str
    report: IdleReport
    listed: bool = False


@dataclass(frozen=True, slots=True)
class AgentsHeard:
    """When the agents of GPUNodes last wrote, by node; `listed`: these are all existing GPUNodes."""

    beats: Mapping[str, Heartbeat]
    listed: bool = False


@dataclass(frozen=True, slots=True)
class PodsReported:
    """The reports of GPUNodes about the pods of their nodes, by node; `listed`: these are all existing GPUNodes."""

    reports: Mapping[str, tuple[PodReport, ...]]
    listed: bool = False


# -- events: what became of effects -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BindSucceeded:
    """The binding took effect; `pod` is what the API server answered."""

    binding: Binding
    pod: PodEvent


@dataclass(frozen=True, slots=True)
class BindFailed:
    """
    The binding did not take effect; the pod as it is now, None if it was deleted.

    `refused`: the API server rejects it, such as because of a policy, although the pod has not changed.
    """

    binding: Binding
    pod: PodEvent | None
    why: str = ""
    refused: bool = False


@dataclass(frozen=True, slots=True)
class BindUnknown:
    """
    It is unknown whether the binding took effect, or still may.

    Its share stays reserved until the same binding is written again or, if this replica may not write, the pod is read
    back (`ReadBack`).
    """

    binding: Binding
    why: str = ""


@dataclass(frozen=True, slots=True)
class BindFaulted:
    """The binding caused an internal error, which is being handled; `sent`: the write may have taken effect."""

    binding: Binding
    sent: bool = True


@dataclass(frozen=True, slots=True)
class BindAbandoned:
    """The binding was not written, since the term in which it was decided is over."""

    binding: Binding


@dataclass(frozen=True, slots=True)
class PodFenced:
    """A pod has a later version, which came with `pod`; None if it can no longer be written."""

    uid: str
    pod: PodEvent | None


@dataclass(frozen=True, slots=True)
class BarrierWritten:
    """The pod was given this fencing token; None if it could not be written, or no answer came."""

    term: int
    uid: str
    word: str | None


@dataclass(frozen=True, slots=True)
class UntoldRead:
    """The read of this number: the pod; None if it could not be read. `deleted`: there is no such pod."""

    uid: str
    number: int
    pod: PodEvent | None
    deleted: bool = False


@dataclass(frozen=True, slots=True)
class ParkedRead:
    """A parked pod was read; None if it could not be. `deleted`: there is no such pod."""

    uid: str
    pod: PodEvent | None
    deleted: bool = False


@dataclass(frozen=True, slots=True)
class FenceRefused:
    """The API server permanently refuses the write that would fence the pod, with this message."""

    pod: QueuedPodInfo | ParkedPod
    words: str


@dataclass(frozen=True, slots=True)
class LatePodFailed:
    """The kubelet was asked to fail this pod, or it was deleted."""

    late: LatePod


@dataclass(frozen=True, slots=True)
class ShareTaken:
    """A share was removed from its pod, or the pod was deleted."""

    take: TakeShare


@dataclass(frozen=True, slots=True)
class AssumedChecked:
    """`exist`: the allocation ids that existing pods carry; None if that could not be found out."""

    reservations: tuple[Reservation, ...]
    exist: Container[str] | None


EvictionOutcome = Literal["evicted", "gone", "budget", "failed"]
"""The result of an eviction; `budget`: a PodDisruptionBudget does not allow it now."""


@dataclass(frozen=True, slots=True)
class EvictionAnswered:
    """The result of one eviction of a preemption, or of its dry run."""

    eviction: Eviction
    outcome: EvictionOutcome


@dataclass(frozen=True, slots=True)
class DriftFound:
    """The state differs from what the API server says."""


@dataclass(frozen=True, slots=True)
class UncountedFound:
    """All pods that request a share but have none that is counted: `namespace/name` by uid."""

    pods: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PoolsDeclared:
    """
    The empty nodes of all declared pools, under the pools' names.

    `learned`: the pools of which nodes were seen, so that the GPUs are real and not only declared.
    """

    nodes: tuple[NodeState, ...]
    learned: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class QueueWeighed:
    """The weights of namespaces in the fair order of the queue. All that have one; the others have 1."""

    weights: Mapping[str, int]


Event = (
    PodsListed
    | PodEvent
    | PodDeleted
    | NamespacesLabelled
    | ProfilesDeclared
    | StorageListed
    | StorageChanged
    | StorageDeleted
    | ParkedRead
    | NodesListed
    | NodeChanged
    | NodeDeleted
    | InventoriesListed
    | InventoryChanged
    | InventoryDeleted
    | HeldBeyondChanged
    | IdleSharesReported
    | AgentsHeard
    | PodsReported
    | ExcludedGpusListed
    | ExcludedGpusChanged
    | BindSucceeded
    | BindFailed
    | BindUnknown
    | BindFaulted
    | BindAbandoned
    | UntoldRead
    | BarrierWritten
    | PodFenced
    | FenceRefused
    | LatePodFailed
    | ShareTaken
    | AssumedChecked
    | EvictionAnswered
    | DriftFound
    | UncountedFound
    | PoolsDeclared
    | QueueWeighed
)

# -- effects ----------------------------------------------------------------------------------------------------------
# `Binding`, `Eviction`, `StatusUpdate`, `EventRecord`, `HeldBeyond` and `RepeatedNote` are effects too.


@dataclass(frozen=True, slots=True)
class Relist:
    """
    List what is booked again, by new watches; for this term of leadership, None if there is no election. Without
    `pods`, only what features book by, such as ElasticGPUs.
    """

    term: int | None
    pods: bool = True


@dataclass(frozen=True, slots=True)
class WriteBarrier:
    """Give this pod a fencing token of this term, and answer with `BarrierWritten`; see `Barrier`."""

    term: int
    key: str
    """`namespace/name`."""
    uid: str


@dataclass(frozen=True, slots=True)
class ReadUntold:
    """Read this pod, and answer with `UntoldRead`; see `Untold`."""

    key: str
    """`namespace/name`."""
    uid: str
    number: int


@dataclass(frozen=True, slots=True)
class FencePods:
    """Give each of these pods a later version; see `Fence`."""

    term: int
    pods: tuple[QueuedPodInfo | ParkedPod, ...]


@dataclass(frozen=True, slots=True)
class ReadParked:
    """Read this parked pod, and answer with `ParkedRead`."""

    pod: ParkedPod


@dataclass(frozen=True, slots=True)
class LatePod:
    """Fail this pod: it came after its share had been given to others. `why` is its message."""

    key: str
    """`namespace/name`."""
    uid: str
    why: str
    annotations: tuple[str, ...] = ()
    """Those from which its containers' environment is read."""


@dataclass(frozen=True, slots=True)
class TakeShare:
    """
    Remove the share from a pod that another system's gate holds, or that kube-scheduler does not bind, so that others
    can get it.
    """

    key: str
    """`namespace/name`."""
    uid: str
    version: int | None
    """The version of the pod that was behind the gate, or had no node; no other is changed."""
    annotations: tuple[str, ...]
    """The allocation, and those from which the containers' environment is read."""
    gate: str = ""
    withdrawn_from: str = ""
    """The node on which kube-scheduler does not bind the pod; it is noted on the pod."""


@dataclass(frozen=True, slots=True)
class ReadBack:
    """Read the pod of this binding, to learn whether it took effect. This replica may not write it."""

    binding: Binding


@dataclass(frozen=True, slots=True)
class CheckAssumed:
    """Ask the API server whether the pods of these overdue reservations exist; the watch may be behind."""

    reservations: tuple[Reservation, ...]


Effect = (
    Relist
    | WriteBarrier
    | ReadUntold
    | FencePods
    | ReadParked
    | LatePod
    | TakeShare
    | Binding
    | ReadBack
    | CheckAssumed
    | Eviction
    | StatusUpdate
    | EventRecord
    | HeldBeyond
    | RepeatedNote
)


class TickPhase(StrEnum):
    """The parts of a tick. Each is carried out separately, so that a failure does not affect the others."""

    TAKE_OVER = "take-over"
    """`Relist`, `WriteBarrier`, `FencePods`, `ReadUntold`: what a new leader does, most of it before it decides."""
    LATE_PODS = "late-pods"
    """`LatePod`."""
    FOREIGN_GATES = "foreign-gates"
    """`TakeShare`."""
    UNBOUND_PODS = "unbound-pods"
    """`TakeShare`."""
    UPKEEP = "upkeep"
    """`StatusUpdate`, `HeldBeyond`, `RepeatedNote`, `ReadParked`; pauses end, and nodes are reserved."""
    BINDINGS = "bindings"
    """`Binding`, `ReadBack`: bindings whose outcome is unknown."""
    RESERVATIONS = "reservations"
    """`CheckAssumed`."""
    EVICTIONS = "evictions"
    """`Eviction`."""
