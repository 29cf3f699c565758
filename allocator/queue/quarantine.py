"""
Pods whose handling ended in an error of ours: who they are, until when they are left alone, and what they are told.

No pod may end the allocator, or hold up others, by what it is made of. So a pod that an error came of is taken out of
what is tried, until it changes or a long pause is over; a pod that changes again and again is tried less and less
often. Pure notes by uid; time is passed in. Must not: decide what is booked. A pod that holds a share goes on being
counted, and where that cannot be told its node takes no new pods (`Cluster.close`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from allocator.queue.queue import QueuedPodInfo
from contract import names, pods
from contract.backoff import backoff
from contract.encoding import codec

T = TypeVar("T")
INTERNAL_ERROR = "InternalError"
"""The code that a quarantined pod is told."""
READING = "pod"
"""The place of an error in what a pod says; all others come of what is done for it."""
_PAUSE = 600.0
"""Seconds for which a pod that does not change is left alone."""
_CHANGED = 1.0
"""Seconds for which one that changes is, at first; doubled with each error in a row, up to `_PAUSE`."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One pod's errors. `id` is the last one's, under which the log has what happened; `place` is where."""

    id: str
    place: str
    key: str
    made_of: object
    """Tells one state of the pod from another; its version would change with each condition that we write."""
    since: float
    number: int = 1
    """Errors in a row."""

    def until(self, made_of: object) -> float:
        """When the pod is tried again, if it is made of this by now."""
        if made_of == self.made_of:
            return self.since + _PAUSE
        return self.since + backoff(self.number, _CHANGED, _PAUSE)


class Quarantine:
    """The notes. Not thread-safe: one owner calls it."""

    def __init__(self) -> None:
        self._faults: dict[str, Fault] = {}
        self._until: dict[str, float] = {}

    def __len__(self) -> int:
        """How many pods have had an error that no success has followed."""
        return len(self._faults)

    def uids(self) -> frozenset[str]:
        """Those pods."""
        return frozenset(self._faults)

    def holds(self, uid: str, now: float) -> bool:
        """Whether the pod is left alone now."""
        return bool(self._until) and self._until.get(uid, now) > now

    def put(self, uid: str, key: str, made_of: object, place: str, fault: str, now: float) -> Fault:
        """An error came of the pod, which was made of this."""
        before = self._faults.get(uid)
        number = before.number + 1 if before is not None else 1
        found = self._faults[uid] = Fault(fault, place, key, made_of, now, number)
        self._until[uid] = found.until(made_of)
        return found

    def taken_in(self, uid: str, made_of: object) -> None:
        """The pod, new or changed, could be read; if it is not what it was, it may be tried sooner."""
        fault = self._faults.get(uid) if self._faults else None
        if fault is not None and fault.place == READING:
            self.drop(uid)
        elif fault is not None:
            self._until[uid] = fault.until(made_of)

    def tried(self, uid: str) -> None:
        """The pod was tried, and no error came of it."""
        if self._faults and uid in self._faults and self._faults[uid].place != READING:
            self.drop(uid)

    def known(self, uid: str, place: str, made_of: object, now: float) -> Fault | None:
        """The error of the pod as it is, where it is not to be told again."""
        fault = self._faults.get(uid)
        if fault is None or fault.place != place or fault.until(made_of) <= now:
            return None
        return fault

    def drop(self, uid: str) -> None:
        """The pod is gone, or well."""
        self._faults.pop(uid, None)
        self._until.pop(uid, None)

    def take_over(self, now: float) -> bool:
        """End the pauses that are over. True if there was one."""
        over = [uid for uid, until in self._until.items() if until <= now]
        for uid in over:
            del self._until[uid]
        return bool(over)


def said(fault: Fault) -> str:
    """What the pod is told."""
    return (
        f"internal error of gpufraction (fault {fault.id}). The pod is tried again when its spec or annotations "
        "change, or after 10 min; the allocator's log has the fault"
    )


def made_of(pod: Mapping[str, Any]) -> str:
    """What of a pod its handling depends on, as a digest; its status and what we write to touch it left out."""
    try:
        metadata = pod.get("metadata") or {}
        annotations = {k: v for k, v in (metadata.get("annotations") or {}).items() if k != names.FENCE}
        parts = [metadata.get("labels"), annotations, pod.get("spec")]
        text = json.dumps(parts, sort_keys=True, default=repr)
    except Exception:
        return ""  # whatever is wrong with it: one that cannot be looked at counts as one that does not change
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()


def may_hold(pod: Mapping[str, Any]) -> frozenset[str]:
    """
    The nodes on which a pod that could not be taken in may hold a share by what it carries; most often none.

    What of it cannot be read counts as what would hold one.
    """
    text = _read(lambda: pods.annotations_of(pod).get(names.ALLOCATION), None)
    if text is None or _read(lambda: names.GATE in pods.gates(pod) or pods.finished(pod), False):
        return frozenset()
    bound = _read(lambda: str((pod.get("spec") or {}).get("nodeName") or ""), "")
    meant = _read(lambda: codec.allocation_from_text(text).node, "")
    return frozenset((bound, meant)) - {""}


def _read(part: Callable[[], T], otherwise: T) -> T:
    try:
        return part()
    except Exception:
        return otherwise


def tried_as(entry: QueuedPodInfo) -> object:
    """What trying a pod depends on."""
    return entry.ask, entry.foreign, entry.priority
