"""
The pods of this node that hold shares, and the GPUs that holder pods report.

A watch on this node's pods feeds it; it keeps its state while the API server is unavailable. One thread may feed it
while others read.

Must not: judge a pod.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from contract import names, pods
from contract.encoding import codec
from contract.encoding.reading import Malformed, words
from contract.model import Allocation
from contract.pods import UnreadShare
from runtime.kubernetes.client import JSON
from runtime.kubernetes.watch import Deleted, Event, Put, Replaced

_ANNOTATIONS = (names.ALLOCATION, names.HELD_GPUS)
_MARKS = (names.REQUEST, pods.MIRROR)
"""Annotations of which only the presence is read."""
_AGENT = ("gpufraction", "nodeagent")


@dataclass(frozen=True, slots=True)
class Resident:
    """
    A pod with shares or with GPUs held for us. `containers`: name by container id, without the runtime's prefix.

    `unread`: a share that this agent cannot read, such as one that a later version wrote; `allocation` is None then.
    """

    uid: str
    namespace: str
    name: str
    allocation: Allocation | None = None
    held: frozenset[str] = frozenset()
    containers: tuple[tuple[str, str], ...] = ()
    unread: UnreadShare | None = None


def trim(pod: JSON) -> JSON:
    """The part of a pod that is read here; whole pods would take much memory."""
    metadata, status = pod.get("metadata") or {}, pod.get("status") or {}
    slim = {key: metadata[key] for key in ("name", "namespace", "uid", "resourceVersion", "labels") if key in metadata}
    if metadata.get("deletionTimestamp"):
        slim["deletionTimestamp"] = metadata["deletionTimestamp"]
    annotations = metadata.get("annotations") or {}
    slim["annotations"] = {key: annotations[key] for key in _ANNOTATIONS if key in annotations}
    slim["annotations"] |= dict.fromkeys((key for key in _MARKS if key in annotations), "")
    statuses = [
        {"name": item.get("name", ""), "containerID": item.get("containerID") or ""}
        for kind in ("initContainerStatuses", "containerStatuses")
        for item in status.get(kind) or ()
    ]
    outcome = {"phase": status.get("phase", ""), "containerStatuses": statuses}
    return {"metadata": slim, "spec": {"nodeName": (pod.get("spec") or {}).get("nodeName", "")}, "status": outcome}


def resident(pod: Mapping[str, Any]) -> Resident | None:
    """Read a trimmed pod; None if it has ended or has no share and no held GPU."""
    if pods.finished(pod):
        return None
    metadata = pod.get("metadata") or {}
    annotations = pods.annotations_of(pod)
    try:
        allocation = codec.allocation_from_text(annotations[names.ALLOCATION])
    except (KeyError, Malformed):
        allocation = None
    held, unread = _held(pod), _unread(pod)
    if allocation is None and unread is None and not held:
        return None
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    return Resident(
        uid=pods.uid(pod),
        namespace=str(metadata.get("namespace", "")),
        name=str(metadata.get("name", "")),
        allocation=allocation,
        held=held,
        containers=tuple(
            (item["containerID"].rpartition("//")[2], item["name"]) for item in statuses if item["containerID"]
        ),
        unread=unread,
    )


def _unread(pod: Mapping[str, Any]) -> UnreadShare | None:
    """The unreadable share of an admitted pod. Kubelets write mirror pods past admission."""
    annotations = pods.annotations_of(pod)
    if names.REQUEST not in annotations or pods.MIRROR in annotations:
        return None
    return pods.unread_allocation(pod)


def _held(pod: Mapping[str, Any]) -> frozenset[str]:
    """
    The UUIDs that a holder reports. Only pods of our own namespace count, where tenants may not create any. A holder
    that is being deleted does not count, since the plugin gives its GPUs to other pods a moment later.
    """
    metadata = pod.get("metadata") or {}
    ours = metadata.get("namespace") == names.NAMESPACE and (metadata.get("labels") or {}).get(names.HOLDER) == "true"
    if not ours or metadata.get("deletionTimestamp") or (pod.get("status") or {}).get("phase") != "Running":
        return frozenset()
    return frozenset(words(pods.annotations_of(pod).get(names.HELD_GPUS)))


def _is_former_agent(pod: Mapping[str, Any]) -> bool:
    """Whether it is an agent of an earlier installation, which ran in the namespace of the other programs."""
    metadata = pod.get("metadata") or {}
    labels = metadata.get("labels") or {}
    return (
        metadata.get("namespace") == names.NAMESPACE
        and (labels.get("app.kubernetes.io/name"), labels.get("app.kubernetes.io/component")) == _AGENT
        and not pods.finished(pod)
    )


class Residents:
    """The pods of this node. `on_change` is called on the watch's thread after each change."""

    def __init__(
        self,
        *,
        on_change: Callable[[], None] = lambda: None,
        known: bool = False,
        followed: bool = True,
    ) -> None:
        self._on_change = on_change
        self._lock = threading.Lock()
        self._by_key: dict[str, Resident] = {}
        self._former = set[str]()
        self.known = known
        """Whether the pods were listed once; before that, an empty set means nothing."""
        self.followed = followed
        """Whether there is a watch on the pods at all."""

    def event(self, event: Event) -> None:
        """An event of the watch."""
        with self._lock:
            before = (self.known, dict(self._by_key), set(self._former))
            match event:
                case Put(pod):
                    self._put(pod)
                case Deleted(pod):
                    self._by_key.pop(pods.key(pod), None)
                    self._former.discard(pods.key(pod))
                case Replaced(listed):
                    self.known = True
                    self._by_key.clear()
                    self._former.clear()
                    for pod in listed:
                        self._put(pod)
            changed = before != (self.known, self._by_key, self._former)
        if changed:
            self._on_change()

    def _put(self, pod: Mapping[str, Any]) -> None:
        if _is_former_agent(pod):
            self._former.add(pods.key(pod))
        else:
            self._former.discard(pods.key(pod))
        found = resident(pod)
        if found is None:
            self._by_key.pop(pods.key(pod), None)
        else:
            self._by_key[pods.key(pod)] = found

    def all(self) -> tuple[Resident, ...]:
        """All of them, by namespace and name."""
        with self._lock:
            return tuple(found for _, found in sorted(self._by_key.items()))

    def former_agents(self) -> tuple[str, ...]:
        """Pods of our namespace that are node agents, by namespace and name."""
        with self._lock:
            return tuple(sorted(self._former))

    def allocations(self) -> tuple[Allocation, ...]:
        """The allocations of the pods here."""
        return tuple(found.allocation for found in self.all() if found.allocation is not None)

    def held(self) -> frozenset[str]:
        """UUIDs that holder pods report."""
        return frozenset().union(*(found.held for found in self.all()))
