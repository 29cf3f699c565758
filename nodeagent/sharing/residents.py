"""
The pods of this node, as far as they concern GPUs: who holds shares, and which GPUs holder pods report.

Fed by a watch on this node's pods, kept while the API server is away. Safe to feed from one thread and read from
another.

Must not: judge anybody.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from contract import names, pods
from contract.encoding import codec
from contract.encoding.reading import Malformed
from contract.model import Allocation
from runtime.kubernetes.client import JSON
from runtime.kubernetes.watch import Event, Gone, Put, Replaced

_ANNOTATIONS = (names.ALLOCATION, names.HELD_GPUS)


@dataclass(frozen=True, slots=True)
class Resident:
    """
    One pod that runs here and has shares, or holds GPUs for us.

    `containers`: name by container id, without the runtime's prefix.
    """

    uid: str
    namespace: str
    name: str
    allocation: Allocation | None = None
    held: frozenset[str] = frozenset()
    containers: tuple[tuple[str, str], ...] = ()


def trim(pod: JSON) -> JSON:
    """Only what is read here: a node's pods are many and their specs long."""
    metadata, status = pod.get("metadata") or {}, pod.get("status") or {}
    slim = {key: metadata[key] for key in ("name", "namespace", "uid", "resourceVersion", "labels") if key in metadata}
    if metadata.get("deletionTimestamp"):
        slim["deletionTimestamp"] = metadata["deletionTimestamp"]
    annotations = metadata.get("annotations") or {}
    slim["annotations"] = {key: annotations[key] for key in _ANNOTATIONS if key in annotations}
    statuses = [
        {"name": item.get("name", ""), "containerID": item.get("containerID") or ""}
        for kind in ("initContainerStatuses", "containerStatuses")
        for item in status.get(kind) or ()
    ]
    return {"metadata": slim, "status": {"phase": status.get("phase", ""), "containerStatuses": statuses}}


def resident(pod: Mapping[str, Any], namespace: str) -> Resident | None:
    """A pod as trimmed; None where it has ended or has nothing of ours. `namespace`: where holders count."""
    if pods.finished(pod):
        return None
    metadata = pod.get("metadata") or {}
    annotations = pods.annotations_of(pod)
    try:
        allocation = codec.allocation_from_text(annotations[names.ALLOCATION])
    except (KeyError, Malformed):
        allocation = None
    held = _held(pod, namespace)
    if allocation is None and not held:
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
    )


def _held(pod: Mapping[str, Any], namespace: str) -> frozenset[str]:
    """
    What a holder reports. Only pods of our own namespace count, where tenants may not create any; one that is being
    deleted does not, since the plugin gives its GPUs away a moment later.
    """
    metadata = pod.get("metadata") or {}
    ours = metadata.get("namespace") == namespace and (metadata.get("labels") or {}).get(names.HOLDER) == "true"
    if not ours or metadata.get("deletionTimestamp") or (pod.get("status") or {}).get("phase") != "Running":
        return frozenset()
    text = pods.annotations_of(pod).get(names.HELD_GPUS, "")
    return frozenset(word.strip() for word in text.split(",")) - {""}


class Residents:
    """The pods of this node. `on_change` is called, on the watch's thread, whenever something that matters changes."""

    def __init__(
        self,
        *,
        namespace: str = names.NAMESPACE,
        on_change: Callable[[], None] = lambda: None,
        known: bool = False,
        followed: bool = True,
    ) -> None:
        self._namespace, self._on_change = namespace, on_change
        self._lock = threading.Lock()
        self._by_key: dict[str, Resident] = {}
        self.known = known
        """Whether the pods were listed once: before that, nobody being here means nothing."""
        self.followed = followed
        """Whether there is a watch on the pods at all."""

    def event(self, event: Event) -> None:
        """An event of the watch."""
        with self._lock:
            before = (self.known, dict(self._by_key))
            match event:
                case Put(pod):
                    self._put(pod)
                case Gone(pod):
                    self._by_key.pop(pods.key(pod), None)
                case Replaced(listed):
                    self.known = True
                    self._by_key.clear()
                    for pod in listed:
                        self._put(pod)
            changed = before != (self.known, self._by_key)
        if changed:
            self._on_change()

    def _put(self, pod: Mapping[str, Any]) -> None:
        found = resident(pod, self._namespace)
        if found is None:
            self._by_key.pop(pods.key(pod), None)
        else:
            self._by_key[pods.key(pod)] = found

    def all(self) -> tuple[Resident, ...]:
        """Everybody, in the order of namespace and name."""
        with self._lock:
            return tuple(found for _, found in sorted(self._by_key.items()))

    def allocations(self) -> tuple[Allocation, ...]:
        """What the pods here have."""
        return tuple(found.allocation for found in self.all() if found.allocation is not None)

    def held(self) -> frozenset[str]:
        """UUIDs that holder pods report."""
        return frozenset().union(*(found.held for found in self.all()))
