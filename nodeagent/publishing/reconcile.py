"""
The writes to the API server, given the desired and the present objects.

Pure: no clock, no API, no randomness. The agent reads, calls `reconcile`, carries out its plan and stores the answers:

        read ──▶ Published ──┐
                             ├──▶ reconcile ──▶ actions ──▶ written: the answer is the new Published
        look ──▶ Desired ────┘                         └──▶ failed or unknown: read again, then reconcile

The rules:
- A change on the machine is written at once.
- A write that was undone (by a kubelet that registered its node again, or by hand) is repeated. Each time it is undone
  the pause before the next write doubles, up to the heartbeat. So a fight with another writer, or a field that an older
  CustomResourceDefinition drops, costs the API server little.
- The startup taint goes last, when all of that is there: it keeps pods away until the GPUs are published. It is removed
  whenever it exists, because a kubelet or a cloud adds it again with a new registration of the node.
- A status that is as it should be is written again only on the heartbeat, whose time is read from the object itself. So
  a rollout that restarts every agent of a cluster writes nothing.

Must not: look at anything but its arguments.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from contract import names
from contract.backoff import backoff
from contract.encoding import moments
from contract.encoding.quantity import format_bytes, integer_or
from contract.encoding.reading import words
from contract.model import Gpu
from contract.nodes.capacity import Amounts
from nodeagent.publishing import startup
from nodeagent.publishing.changes import Change, changes, new_warnings, published_gpus
from nodeagent.publishing.status import JSON, Desired, content_of, says, status_of
from nodeagent.sharing import ownership
from nodeagent.sharing.ownership import Ownership

LABELS = {"app.kubernetes.io/name": "gpufraction", "app.kubernetes.io/managed-by": "gpufraction-nodeagent"}
"""On every GPUNode, so that `kubectl get -l` and a clean-up find them."""

_UNREADABLE = -1


@dataclass(frozen=True, slots=True)
class NodeView:
    """A Node, as far as it is read. An absent resource is 0; one that is no whole number is -1, equal to no other."""

    uid: str
    capacity: Amounts
    allocatable: Amounts
    cordoned: frozenset[str] = frozenset()
    """The words of the cordon annotation."""
    ownership: Ownership = field(default_factory=Ownership)
    labels: Mapping[str, str] = field(default_factory=dict)
    """They decide which pool the node is in."""
    startup_taints: startup.Taints = ()
    """The startup taints, with their positions among all taints of the Node."""


@dataclass(frozen=True, slots=True)
class ObjectView:
    """The part of the GPUNode that is read. `owner` is the UID of its owning Node, empty if it has none."""

    owner: str
    labels: Mapping[str, str]
    status: JSON
    beyond: str = ""
    """The allocator's annotation about pods that hold more than the GPUs promise, unread."""
    repeated: str = ""
    """The allocator's annotation about cards that other nodes report too, unread."""
    proof: str = ""
    """The allocator's annotation about the last canary here, unread."""


@dataclass(frozen=True, slots=True)
class Published:
    """The objects on the API server; None for an object that does not exist."""

    node: NodeView | None
    gpunode: ObjectView | None


@dataclass(frozen=True, slots=True)
class Written:
    """Our last write of one thing: its content, its time (seconds since the epoch), and how often it was undone."""

    content: Any
    at: float
    undone: int = 0


@dataclass(frozen=True, slots=True)
class History:
    """Our last writes, and the GPUs of the last round. Empty after a start."""

    metadata: Written | None = None
    status: Written | None = None
    capacity: Written | None = None
    taints: Written | None = None
    gpus: tuple[Gpu, ...] = ()
    """The GPUs that were seen last. None are published while the driver is unavailable, so these count before the
    status."""


@dataclass(frozen=True, slots=True)
class PublishingPace:
    """Seconds between heartbeats, and between two writes of the same thing that another writer undoes."""

    heartbeat: float = 120.0
    rewrite: float = 10.0


@dataclass(frozen=True, slots=True)
class CreateObject:
    """POST the GPUNode."""

    body: JSON


@dataclass(frozen=True, slots=True)
class AdoptObject:
    """Merge this into the GPUNode: its labels, and its Node as owner, so that it is deleted with the Node."""

    patch: JSON


@dataclass(frozen=True, slots=True)
class WriteStatus:
    """Merge this into the GPUNode's status subresource."""

    patch: JSON


@dataclass(frozen=True, slots=True)
class WriteCapacity:
    """Merge this into the Node's status subresource."""

    patch: JSON


@dataclass(frozen=True, slots=True)
class RemoveTaints:
    """Apply these JSON patch operations to the Node: they remove the startup taint and nothing else."""

    operations: tuple[JSON, ...]


Action = CreateObject | AdoptObject | WriteStatus | WriteCapacity | RemoveTaints


@dataclass(frozen=True, slots=True)
class PublishingPlan:
    """The writes in their order, the Events to record after them, and the history after all writes succeeded."""

    actions: tuple[Action, ...] = ()
    events: tuple[Change, ...] = ()
    history: History = field(default_factory=History)


def reconcile(
    wanted: Desired, published: Published, history: History, now: float, pace: PublishingPace
) -> PublishingPlan:
    """
    The writes that make `published` what is `wanted`.

    Without a Node object there is no GPUNode: nothing could own it, and no pod could run there.
    """
    if published.node is None:
        return PublishingPlan(history=history)
    found = published.gpunode
    status = found.status if found else {}
    actions: list[Action] = []
    metadata = _metadata(wanted.inventory.node, published.node.uid)
    wrote_metadata, wrote_status, wrote_capacity = history.metadata, history.status, history.capacity
    if found is None:
        about = {"apiVersion": names.GPUNODE_GROUP_VERSION, "kind": names.GPUNODE_KIND}
        actions.append(CreateObject({**about, **metadata}))
    amounts, here = wanted.amounts, published.node.allocatable
    resize: list[Action] = []
    sized = published.node.capacity == amounts == here
    if not sized and _may_write(wrote_capacity, amounts, now, pace):
        resize = [WriteCapacity(_capacity_patch(amounts, published.node))]
        wrote_capacity = _after(wrote_capacity, amounts, now, pace)
    # Capacity that grows must be on the Node before the allocator learns of it from the status. Capacity that shrinks
    # must leave the status first.
    grows = here.memory < amounts.memory or here.cores < amounts.cores
    if grows:
        actions += resize
    content = (content_of(wanted), wanted.condition, wanted.others)
    due = not says(status, wanted) or _heartbeat_due(status, now, pace)
    # A new object has no status that could have been undone.
    if found is None or (due and _may_write(wrote_status, content, now, pace)):
        actions.append(WriteStatus({"status": status_of(wanted, previous=status, now=now)}))
        wrote_status = _after(None if says(status, wanted) else wrote_status, content, now, pace)
    if not grows:
        actions += resize
    # After the figures: a pod that comes because the taint is removed finds them.
    stated = says(status, wanted) or any(isinstance(action, WriteStatus) for action in actions)
    taints, wrote_taints = published.node.startup_taints, history.taints
    complete = stated and (sized or bool(resize))
    if taints and complete and wanted.started and _may_write(wrote_taints, taints, now, pace):
        actions.append(RemoveTaints(startup.removal(taints)))
        wrote_taints = _after(wrote_taints, taints, now, pace)
    # Last, because a cluster may forbid a change of owners, which must not block the figures.
    ours = found is None or (found.owner == published.node.uid and LABELS.items() <= found.labels.items())
    if not ours and _may_write(wrote_metadata, metadata, now, pace):
        actions.append(AdoptObject(metadata))
        wrote_metadata = _after(wrote_metadata, metadata, now, pace)
    before = history.gpus or published_gpus(status)
    events = (*changes(before, wanted.inventory), *new_warnings(wanted.others, status))
    gpus = before if wanted.inventory.problem else wanted.inventory.gpus
    after = History(wrote_metadata, wrote_status, wrote_capacity, wrote_taints, gpus)
    return PublishingPlan(tuple(actions), events, after)


def settled(wanted: Desired, published: Published) -> bool:
    """Whether the API server holds what it should, apart from the times of heartbeats."""
    node, gpunode = published.node, published.gpunode
    if node is None or gpunode is None:
        return False
    return node.capacity == wanted.amounts == node.allocatable and says(gpunode.status, wanted)


def jittered(interval: float, node: str) -> float:
    """`interval`, up to 10 % shorter or longer by the node's name, so that nodes do not write at the same time."""
    digest = hashlib.sha256(node.encode()).digest()
    return interval * (0.9 + 0.2 * int.from_bytes(digest[:4]) / (1 << 32))


def node_view(node: Mapping[str, Any]) -> NodeView:
    """Read a Node."""
    metadata, status = node.get("metadata") or {}, node.get("status") or {}
    return NodeView(
        uid=str(metadata.get("uid", "")),
        capacity=_amounts(status.get("capacity") or {}),
        allocatable=_amounts(status.get("allocatable") or {}),
        cordoned=frozenset(words(_annotations(node).get(names.CORDON))),
        ownership=ownership.read(node),
        labels=metadata.get("labels") or {},
        startup_taints=startup.taints_of(node),
    )


def object_view(gpunode: Mapping[str, Any]) -> ObjectView:
    """Read a GPUNode."""
    metadata = gpunode.get("metadata") or {}
    owners = [item.get("uid", "") for item in metadata.get("ownerReferences") or () if item.get("kind") == "Node"]
    labels = metadata.get("labels") or {}
    return ObjectView(
        owner=owners[0] if len(owners) == 1 else "",
        labels={key: labels[key] for key in LABELS if key in labels},
        status=gpunode.get("status") or {},
        beyond=str(_annotations(gpunode).get(names.BEYOND) or ""),
        repeated=str(_annotations(gpunode).get(names.REPEATED) or ""),
        proof=str(_annotations(gpunode).get(names.PROOF) or ""),
    )


def _annotations(item: Mapping[str, Any]) -> Mapping[str, Any]:
    return (item.get("metadata") or {}).get("annotations") or {}


def _amounts(resources: Mapping[str, Any]) -> Amounts:
    counted = (names.GPU_MEMORY, names.GPU_CORES, names.GPU_MEMORY_LIMIT)
    return Amounts(*(integer_or(resources.get(name, "0"), _UNREADABLE) for name in counted))


def _metadata(node: str, uid: str) -> JSON:
    owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid}
    return {"metadata": {"name": node, "labels": dict(LABELS), "ownerReferences": [owner]}}


def _capacity_patch(amounts: Amounts, before: NodeView) -> JSON:
    resources: JSON = {str(names.GPU_MEMORY): format_bytes(amounts.memory), str(names.GPU_CORES): str(amounts.cores)}
    if amounts.limits:
        resources[str(names.GPU_MEMORY_LIMIT)] = format_bytes(amounts.limits)
    elif before.capacity.limits or before.allocatable.limits:
        resources[str(names.GPU_MEMORY_LIMIT)] = None
    return {"status": {"capacity": resources, "allocatable": dict(resources)}}


def _heartbeat_due(status: JSON, now: float, pace: PublishingPace) -> bool:
    observed = moments.seconds(status.get("observedAt"))
    # A time in the future comes from a clock that was set back since; it would stop the heartbeat.
    return observed is None or not 0 <= now - observed < pace.heartbeat


def _may_write(last: Written | None, content: Any, now: float, pace: PublishingPace) -> bool:
    """Whether to write: new content always, the same content after a pause that doubles each time it was undone."""
    if last is None or last.content != content:
        return True
    gap = backoff(last.undone + 1, pace.rewrite, pace.heartbeat)
    return not 0 <= now - last.at < gap


def _after(last: Written | None, content: Any, now: float, pace: PublishingPace) -> Written:
    """The record of a write. `last`: the earlier write that was undone, if any; it counts for two heartbeats."""
    if last is None or last.content != content or not 0 <= now - last.at < 2 * pace.heartbeat:
        return Written(content, now)
    return Written(content, now, last.undone + 1)
