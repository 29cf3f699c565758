"""
The Workloads that wait for our answer, and those that were answered Ready but have no shares yet.

        quota reserved, our check Pending             judged: all fit
    ──▶ DUE ────────────────────────────────────────────▶ ASSUMED ──▶ out: all pods have shares, the Workload was
         │  judged: falls short                                            evicted, finished or deleted, or the
         └──▶ Retry, and Kueue evicts it                                   time is over

Between the answer Ready and the pods' shares, nothing in the cluster shows that the room is promised. So it is counted
for that time; otherwise two Workloads would start for the same room. Every replica tracks this, including the leader's
answers, so a new leader has them. Pure: times are passed in; not thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from allocator.features.kueue import workloads
from allocator.features.kueue.judge import Gang, NotAdmitted
from allocator.features.kueue.workloads import (
    CHECKS,
    FLAVORS,
    PENDING,
    READY,
    WORKLOADS,
    CheckEntry,
    Flavor,
    UnreadableObject,
    Workload,
)
from contract import names, pods
from contract.encoding import codec

JSON = dict[str, Any]
_AGAIN = 60.0
"""Seconds after which a Workload that could not be judged is tried again."""
_MOST_ARRIVED = 100_000
"""The number of shares that are remembered while a Workload is assumed."""


@dataclass(slots=True)
class AssumedWorkload:
    """A Workload whose check is Ready and whose pods may have no shares yet."""

    workload: Workload
    until: float
    gang: Gang | None = None
    """None if it was not read here."""
    arrived: dict[str, set[str]] = field(default_factory=dict)
    """The allocations in its namespace since then, by the text of the request."""
    is_in_doubt: bool = False
    """Whether a write of the answer at this version had an unknown outcome: it may have taken effect."""

    def left(self) -> Gang | None:
        """Its pods that have no share yet; None if all of them have one, or none requests one."""
        if self.gang is None:
            return None
        arrived = {request: len(found) for request, found in self.arrived.items()}
        parts = []
        for part in self.gang.parts:
            text = codec.request_to_text(part.ask.request)
            came = min(arrived.get(text, 0), part.count)
            arrived[text] = arrived.get(text, 0) - came
            if came < part.count:
                parts.append(replace(part, count=part.count - came))
        return replace(self.gang, parts=tuple(parts)) if parts else None


class FitChecks:
    """The state of Kueue's objects on which answers depend, from the watches."""

    def __init__(self, *, hold: float, age_of: Callable[[str], float]) -> None:
        """`hold`: seconds for which a Workload judged Ready counts. `age_of`: seconds since a time (RFC 3339)."""
        self._hold = hold
        self._age_of = age_of
        self._checks: dict[str, JSON] = {}
        self.flavors: dict[str, Flavor] = {}
        """Other parts only read it."""
        self._workloads: dict[str, Workload] = {}
        self._assumed: dict[str, AssumedWorkload] = {}
        self._answered: dict[str, str] = {}
        """The version at which a Workload was answered, until the watch shows a later one."""
        self._pausing: dict[str, tuple[str, float]] = {}
        """The version at which a Workload was deferred, and until when."""

    # -- what the watches bring -----------------------------------------------------------------------------------

    def listed(self, plural: str, keys: Iterable[str]) -> None:
        """Replace all objects of a kind by these."""
        for key in self._known(plural) - set(keys):
            self._forget(plural, key)

    def _known(self, plural: str) -> set[str]:
        if plural == CHECKS:
            return set(self._checks)
        return set(self.flavors) if plural == FLAVORS else {*self._workloads, *self._assumed, *self._answered}

    def changed(self, plural: str, document: JSON, now: float) -> None:
        """An object is new or changed. Raises `UnreadableObject`, and then it counts as absent."""
        key = workloads.key_of(document)
        try:
            match plural:
                case workloads.CHECKS:
                    self._put_check(key, document, now)
                case workloads.FLAVORS:
                    self.flavors[key] = workloads.flavor(document)
                case _:
                    self._put(key, workloads.workload(document), now)
        except UnreadableObject:
            self._forget(plural, key)
            raise

    def deleted(self, plural: str, document: JSON) -> None:
        """An object was deleted."""
        self._forget(plural, workloads.key_of(document))

    def _put_check(self, key: str, document: JSON, now: float) -> None:
        if workloads.is_ours(document):
            self._checks[key] = document
            for each in self._workloads.values():
                self._count_answered(each, each.of([key]), now)
        else:
            self._checks.pop(key, None)

    def _put(self, key: str, found: Workload | None, now: float) -> None:
        if found is None:
            self._forget(WORKLOADS, key)
            return
        if self._answered.get(key) != found.version:
            self._answered.pop(key, None)
            self._pausing.pop(key, None)
        held = self._assumed.get(key)
        if held is not None and (held.workload.uid != found.uid or _is_reset(held.workload, found)):
            del self._assumed[key]
        if any(check.state == PENDING for check in found.checks):
            self._workloads[key] = found
            self._count_answered(found, found.of(self._checks), now)
            return
        # Every check is answered. Its pod templates are needed only until its pods have their shares.
        self._workloads.pop(key, None)
        self._count_answered(found, found.checks, now)

    def _count_answered(self, found: Workload, checks: Sequence[CheckEntry], now: float) -> None:
        """If all these checks are Ready, a leader, perhaps a former one, promised room."""
        ready = [check.since for check in checks if check.state == READY]
        if len(ready) == len(checks) and ready and found.key not in self._assumed:
            left = self._hold - max(self._age_of(max(ready)), 0.0)
            if left > 0:
                self._assumed[found.key] = AssumedWorkload(found, now + left)

    def _forget(self, plural: str, key: str) -> None:
        match plural:
            case workloads.CHECKS:
                self._checks.pop(key, None)
            case workloads.FLAVORS:
                self.flavors.pop(key, None)
            case _:
                for known in (self._workloads, self._assumed, self._answered, self._pausing):
                    known.pop(key, None)

    def pod_seen(self, pod: Mapping[str, Any]) -> None:
        """A pod is new or changed. It may belong to an assumed Workload and have its share now."""
        if not self._assumed:
            return
        annotations = pods.annotations_of(pod)
        request, allocation = annotations.get(names.REQUEST), annotations.get(names.ALLOCATION)
        if request is None or allocation is None:
            return
        namespace, since = pods.key(pod).split("/", 1)[0], _scheduled_at(pod)
        for held in self._assumed.values():
            if held.workload.namespace != namespace or (since and since < held.workload.since):
                continue
            if sum(map(len, held.arrived.values())) < _MOST_ARRIVED:
                held.arrived.setdefault(request, set()).add(allocation)

    # -- what is to be done ---------------------------------------------------------------------------------------

    def ours(self) -> frozenset[str]:
        """The names of the AdmissionChecks that we answer."""
        return frozenset(self._checks)

    def inactive(self) -> tuple[JSON, ...]:
        """Our AdmissionChecks without our condition yet."""
        return tuple(check for check in self._checks.values() if not workloads.is_active(check))

    def due(self, now: float) -> list[Workload]:
        """The Workloads that wait for our answer: the higher priority first, then the longer wait."""
        found = [
            each
            for key, each in self._workloads.items()
            if self._answered.get(key) != each.version
            and not self._is_set_aside(each, now)
            and any(check.state == PENDING for check in each.of(self._checks))
        ]
        return sorted(found, key=lambda each: (-each.priority, each.since, each.key))

    def _is_set_aside(self, workload: Workload, now: float) -> bool:
        version, until = self._pausing.get(workload.key, ("", now))
        return version == workload.version and now < until

    def assumed(self, now: float) -> list[AssumedWorkload]:
        """The Workloads that are counted although their pods have no shares yet; expired ones end here."""
        for key, held in list(self._assumed.items()):
            ours = held.workload.of(self._checks)
            if held.until <= now or not ours or (held.gang is not None and held.left() is None):
                del self._assumed[key]
        return list(self._assumed.values())

    # -- what was done --------------------------------------------------------------------------------------------

    def answered(self, workload: Workload, gang: Gang | NotAdmitted | None, now: float, *, extra: float = 0.0) -> None:
        """
        An answer is about to be written. `gang`: the pods that count from now on if the answer is Ready; `extra`:
        seconds for which they count beyond the usual time if nodes must be added for them.

        Call this before the write, because the pods may come before its result. The promise of an earlier write of this
        version stays counted for as long, without the shares that came since.
        """
        self._answered[workload.key] = workload.version
        if not isinstance(gang, Gang) or not gang.parts:
            return
        until = now + self._hold + extra
        held = self._held_at(workload)
        if held is not None and held.is_in_doubt:
            held.until = max(held.until, until)
        else:
            self._assumed[workload.key] = AssumedWorkload(workload, until, gang)

    def not_answered(self, workload: Workload, now: float, *, unknown: bool) -> None:
        """
        The write failed; `unknown`: it may have taken effect, so a Workload that was judged Ready stays counted. It
        also stays counted if a repeated write of this version is refused, because the earlier one may be the reason.

        The Workload is judged again: at a later version as soon as the watch shows one; at this version soon if the
        outcome is unknown, or after a pause if the write was refused.
        """
        if self._answered.get(workload.key) == workload.version:
            del self._answered[workload.key]
        held = self._held_at(workload)
        if unknown:
            if held is not None:
                held.is_in_doubt = True
            return
        self.set_aside(workload, now)
        if held is not None and not held.is_in_doubt:
            del self._assumed[workload.key]

    def _held_at(self, workload: Workload) -> AssumedWorkload | None:
        """The pods that count for the Workload since this version of it was answered."""
        held = self._assumed.get(workload.key)
        return held if held is not None and held.workload.version == workload.version else None

    def set_aside(self, workload: Workload, now: float) -> None:
        """
        This version cannot be judged or answered. The Workload is tried again when it changes, or after a minute.

        The watch may already have brought a later version, which explains the refusal: the later one does not wait.
        """
        self._pausing[workload.key] = (workload.version, now + _AGAIN)

    def is_assumed(self, workload: Workload) -> bool:
        """Whether the Workload itself already counts, because a write of its answer has an unknown outcome."""
        return workload.key in self._assumed


def _is_reset(before: Workload, now: Workload) -> bool:
    """
    Whether Kueue took the Workload's quota back and reserved quota again. Then the promise that was counted for it has
    ended, because it was made for the earlier reservation.
    """
    return before.since != now.since


def _scheduled_at(pod: Mapping[str, Any]) -> str:
    """When kube-scheduler bound the pod; empty if it has not."""
    for each in (pod.get("status") or {}).get("conditions") or ():
        if each.get("type") == "PodScheduled" and each.get("status") == "True":
            return str(each.get("lastTransitionTime") or "")
    return ""
