"""
One record for each pod: what was last reported to it, whether a binding is being written, and when it may be tried
again.

`PodRecords` keeps the records by uid. It knows neither nodes nor GPUs and decides nothing: which pods wait, and in what
order, is in `allocator.queue.queue`. The parts of a record are values: how often a write failed (`Backoff`), what of a
condition the watch does not show (`Repair`), and the error of ours that set the pod aside (`Fault`).

Pure: time is passed in.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from allocator.cache.cache import Cache
from allocator.cache.podinfo import LastReported, may_hold
from allocator.faults import Faulted
from allocator.queue.queue import QueuedPodInfo
from contract.backoff import backoff
from contract.encoding.plain import plain
from contract.model import Allocation
from contract.reasons.base import ReasonName, written_before
from contract.reasons.pods import PodReason

_BACKOFF, _BACKOFF_CAP = 0.5, 60.0
"""Seconds before a pod whose write failed is tried again: the first pause, and the longest."""
_FRESH = 60.0
"""Seconds for which the figures reported to a waiting pod are new enough."""
_FRESHENED = 50
"""The most pods that get new figures in one second: each is a write, and the first in the queue come first."""
PAUSE, PAUSE_CAP = 3.0, 300.0
"""Seconds until a condition is written once more: at first, and at most."""
_QUIET = 900.0
"""Seconds without a repair after which the pause is short again."""
_AT_ONCE = 50
"""Conditions that are written once more in one call, at most."""
READING = "pod"
"""The place of an error in reading a pod; all other errors come from handling it."""
_UNCHANGED = 600.0
"""Seconds for which a pod that does not change is left alone."""
_CHANGED = 1.0
"""Seconds for which a changing pod is left alone, at first; doubled with each error in a row, up to `_UNCHANGED`."""


@dataclass(frozen=True, slots=True)
class Binding:
    """A waiting pod was given a share: write it on the pod."""

    pod: QueuedPodInfo
    allocation: Allocation
    term: int | None = None
    """The leadership in which it was decided, where there is an election; it must be written in the same."""
    plan: str = ""
    """The shares of all members of its gang, as text, which the same write puts on the pod."""
    again: bool = False
    """Whether it was sent before, and that write may still be carried out."""


@dataclass(frozen=True, slots=True)
class StatusUpdate:
    """A pod's condition to write."""

    key: str
    """`namespace/name`."""
    uid: str
    allocated: bool
    code: ReasonName
    reason: str
    """Made fit to be shown, and bounded, because it contains other programs' text."""
    warning: ReasonName | None = None
    """The reason of a Warning Event; None if a Normal one does."""
    turned: bool = True
    """Whether the condition's status has changed, which sets its time of transition."""
    event: bool = True
    """Whether there is an Event too; new figures alone are none."""
    gated: bool = True
    """Whether the pod, which has no share, is behind our gate; then its condition `PodScheduled` has the reason too."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", plain(self.reason))


@dataclass(frozen=True, slots=True)
class EventRecord:
    """An Event, and no condition: about a pod, a claim, a list of excluded cards, or a Node, which has no namespace."""

    kind: Literal["Pod", "Node", "ConfigMap", "ElasticGPUClaim"]
    key: str
    """`namespace/name`; a Node's name alone."""
    uid: str
    code: ReasonName
    """The Event's reason."""
    reason: str
    """Its message, made fit to be shown, and bounded."""
    warns: bool = True
    once: str = ""
    """
    The source of the Event's name, so that writing it again creates no second Event; empty: always a new one.
    """

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", plain(self.reason))


Report = StatusUpdate | EventRecord


@dataclass(frozen=True, slots=True)
class Eviction:
    """
    A pod that must be evicted. `cause` is why, for the metric: unbound, repair, preemption, idle, defragmentation,
    overuse or unhealthy.
    """

    key: str
    uid: str
    version: int | None
    """The version for which that was decided; None evicts the pod at any."""
    cause: str
    why: str


# -- the parts of a record ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Backoff:
    """Writes of a pod's binding that failed in a row, and until when the pod is not tried."""

    failures: int
    until: float

    @classmethod
    def after(cls, before: Backoff | None, now: float) -> Backoff:
        """One more write failed; the pause doubles."""
        failures = before.failures + 1 if before is not None else 1
        return cls(failures, now + backoff(failures, _BACKOFF, _BACKOFF_CAP))


@dataclass(frozen=True, slots=True)
class Repair:
    """
    A condition that the watch does not show as it was written: lost, or overwritten or removed by others.

    A write is expected to show on the watch. If it does not within a pause, it is written again; the pause doubles each
    time, so that two conflicting writers cost the API server little. After a quiet time it is short again.
    """

    key: str
    """`namespace/name` of the pod."""
    due: float | None
    """When it is written once more; None while the watch shows what was written."""
    turned: bool
    """Whether the watch shows another status than was written, or none."""
    count: int = 0
    """The number of repeated writes in a row, and the time of the last one."""
    last: float = 0.0

    @classmethod
    def expected(cls, before: Repair | None, key: str, now: float, turned: bool = True) -> Repair:
        """The watch should now show the condition soon."""
        count, last = (before.count, before.last) if before is not None else (0, 0.0)
        return cls(key, now + _pause(_in_a_row(count, last, now)), turned, count, last)

    def shown(self, now: float) -> Repair | None:
        """The watch shows what was written. None if nothing must be remembered."""
        return replace(self, due=None) if self.count and now - self.last <= _QUIET else None

    def repeated(self, now: float) -> Repair:
        """The condition is written once more."""
        count = _in_a_row(self.count, self.last, now) + 1
        return replace(self, due=now + _pause(count), count=count, last=now)


def _in_a_row(count: int, last: float, now: float) -> int:
    return count if now - last <= _QUIET else 0


def _pause(count: int) -> float:
    return backoff(count + 1, PAUSE, PAUSE_CAP)


@dataclass(frozen=True, slots=True)
class Fault:
    """
    The internal errors that one pod caused.

    No pod's content may end the allocator or delay other pods. So a pod that caused an error is not tried until it
    changes or a long pause is over; a pod that keeps changing is tried less and less often. What it holds is still
    counted; if that is unknown, its node takes no new pods (`Cache.close`).
    """

    id: str
    """The id of the last error, under which the log has the details."""
    place: str
    """The action for the pod."""
    made_of: object
    """Distinguishes states of the pod; its version would change with each condition that we write."""
    since: float
    number: int = 1
    """Errors in a row."""
    until: float = 0.0
    """When the pod is tried again."""

    def ends(self, made_of: object) -> float:
        """When the pod is tried again, if this is its content now."""
        if made_of == self.made_of:
            return self.since + _UNCHANGED
        return self.since + backoff(self.number, _CHANGED, _UNCHANGED)

    def message(self) -> str:
        """The report to the pod."""
        return (
            f"internal error of gpufraction (fault {self.id}). The pod is tried again when its spec or annotations "
            "change, or after 10 min; the allocator's log has the fault"
        )


@dataclass(slots=True)
class PodRecord:
    """The notes about one pod."""

    waits_since: float | None = None
    """When this process first saw it wait."""
    reported: LastReported | None = None
    """The last report to it."""
    binding: Binding | None = None
    """A binding that was given out to be written, until it is known whether it took effect."""
    written: int | None = None
    """The version of the pod that our last write made, until the watch shows it."""
    backoff: Backoff | None = None
    repair: Repair | None = None
    fault: Fault | None = None

    def must_be_dropped(self) -> bool:
        """Whether something is noted that only the pod's end removes."""
        noted = self.waits_since, self.reported, self.written, self.backoff, self.repair
        return any(each is not None for each in noted)


_BLANK = PodRecord()


class _Records(defaultdict[str, PodRecord]):
    """The records by uid; `[]` makes one, `get` does not."""

    def __init__(self) -> None:
        super().__init__(PodRecord)

    def tidy(self, uid: str) -> None:
        """Drop the record if nothing is noted in it."""
        if self.get(uid) == _BLANK:
            del self[uid]


class Quarantine:
    """The pods that caused internal errors. Not thread-safe: one owner calls it."""

    def __init__(self, records: _Records) -> None:
        self._records = records
        self._faulty: set[str] = set()
        self._held: set[str] = set()
        """Those whose pause was not over at the last look."""

    def __len__(self) -> int:
        """The number of pods with an error that no success has followed."""
        return len(self._faulty)

    def uids(self) -> frozenset[str]:
        """Those pods."""
        return frozenset(self._faulty)

    def holds(self, uid: str, now: float) -> bool:
        """Whether the pod is left alone now."""
        if uid not in self._faulty:
            return False
        fault = self._records[uid].fault
        return fault is not None and fault.until > now

    def put(self, uid: str, made_of: object, place: str, fault: str, now: float) -> Fault:
        """The pod, with this content, caused an error."""
        record = self._records[uid]
        number = record.fault.number + 1 if record.fault is not None else 1
        self._faulty.add(uid)
        return self._hold(uid, Fault(fault, place, made_of, now, number), made_of)

    def _hold(self, uid: str, fault: Fault, made_of: object) -> Fault:
        fault = self._records[uid].fault = replace(fault, until=fault.ends(made_of))
        self._held.add(uid)
        return fault

    def taken_in(self, uid: str, made_of: object) -> None:
        """The pod, new or changed, could be read; if it has changed, it may be tried sooner."""
        fault = self._records[uid].fault if uid in self._faulty else None
        if fault is not None and fault.place == READING:
            self.drop(uid)
        elif fault is not None:
            self._hold(uid, fault, made_of)

    def tried(self, uid: str) -> None:
        """The pod was tried without an error."""
        fault = self._records[uid].fault if uid in self._faulty else None
        if fault is not None and fault.place != READING:
            self.drop(uid)

    def known(self, uid: str, place: str, made_of: object, now: float) -> Fault | None:
        """The error of the pod in its present state, if it must not be reported again."""
        fault = self._records[uid].fault if uid in self._faulty else None
        if fault is None or fault.place != place or fault.ends(made_of) <= now:
            return None
        return fault

    def drop(self, uid: str) -> None:
        """Forget the pod's errors."""
        if uid in self._faulty:
            self._faulty.remove(uid)
            self._held.discard(uid)
            self._records[uid].fault = None
            self._records.tidy(uid)

    def resume(self, now: float) -> bool:
        """End the pauses that are over. True if there was one."""
        over = {uid for uid in self._held if not self.holds(uid, now)}
        self._held -= over
        return bool(over)


class PodRecords:
    """The records, and the next reports. Not thread-safe: one owner calls it."""

    def __init__(self) -> None:
        self._records = _Records()
        self.quarantine = Quarantine(self._records)
        # The few pods with something in progress, so that nothing has to look at all of them.
        self._writing: set[str] = set()
        self._paused: set[str] = set()
        self._not_shown: dict[str, None] = {}
        """Pods whose condition the watch does not show as it was written, in the order in which that began."""
        self._unresolved: dict[str, Binding] = {}
        self._freshened = (0, 0)
        self._owing = False
        self._news: list[Report] = []

    # -- reporting ------------------------------------------------------------------------------------------------

    def tell(self, news: StatusUpdate, now: float, stands: LastReported | None = None) -> bool:
        """
        Report it unless it was reported before. True if it is new.

        `stands`: what the pod's condition says, which counts if this process has reported nothing, because another
        leader has. For the same code, a waiting pod gets new figures only in its condition, once the old ones are a
        minute old.
        """
        record = self._records[news.uid]
        last = record.reported or stands
        if last is not None and (last.allocated, last.code) == (news.allocated, news.code):
            record.reported = last
            if news.allocated or last.reason == news.reason:
                return False
            if not self._may_freshen(last, now):
                self._owing = True
                return False
            news = replace(news, turned=False, event=False)
        elif last is not None:
            news = replace(news, turned=last.allocated != news.allocated)
        record.reported = LastReported(news.allocated, news.code, news.reason, now)
        self._expect(news.uid, Repair.expected(record.repair, news.key, now))
        self._news.append(news)
        return True

    def has_told(self, uid: str) -> bool:
        """Whether this process has reported something to the pod, which its condition may not show yet."""
        record = self._records.get(uid)
        return record is not None and record.reported is not None

    def _expect(self, uid: str, repair: Repair | None) -> None:
        self._records[uid].repair = repair
        if repair is not None and repair.due is not None:
            self._not_shown[uid] = None
        else:
            self._not_shown.pop(uid, None)

    def shows(self, uid: str, key: str, stands: LastReported | None, now: float) -> None:
        """Take in what the watch shows of a pod's condition: others may have overwritten or removed ours."""
        record = self._records.get(uid)
        if record is None or (record.reported is None and record.repair is None):
            return
        reported, repair = record.reported, record.repair
        if reported is None:
            self._expect(uid, None)
        elif stands is not None and stands.says_the_same(reported):
            self._expect(uid, repair.shown(now) if repair is not None else None)
        else:
            turned = stands is None or stands.allocated != reported.allocated
            if repair is None or repair.due is None:
                repair = Repair.expected(repair, key, now)
            self._expect(uid, replace(repair, key=key, turned=turned))

    def repeat_overwritten(self, now: float) -> list[StatusUpdate]:
        """Conditions that do not show what was written, although they should by now; they are not news and have no
        Event."""
        late = [uid for uid in self._not_shown if uid not in self._writing and self._is_late(uid, now)][:_AT_ONCE]
        return [again for uid in late if (again := self._repeated(uid, now)) is not None]

    def _is_late(self, uid: str, now: float) -> bool:
        repair = self._records[uid].repair
        return repair is not None and repair.due is not None and repair.due <= now

    def _repeated(self, uid: str, now: float) -> StatusUpdate | None:
        record = self._records[uid]
        reported, repair = record.reported, record.repair
        if reported is None or repair is None:
            return None
        record.repair = repair.repeated(now)
        code = written_before(reported.code)
        return StatusUpdate(
            repair.key,
            uid,
            reported.allocated,
            code,
            reported.reason,
            turned=repair.turned,
            event=False,
            gated=False,  # only our own condition is kept as it was written
        )

    def _may_freshen(self, last: LastReported, now: float) -> bool:
        second, count = self._freshened
        count = count if second == int(now) else 0
        if now - last.at < _FRESH or count >= _FRESHENED:
            return False
        self._freshened = (int(now), count + 1)
        return True

    def forget_reports(self) -> dict[str, str]:
        """
        Another leader may have reported something else meanwhile: the pods' conditions count now.

        Returns those that did not show our report, by uid, with `namespace/name`.
        """
        untold = {uid: repair.key for uid in self._not_shown if (repair := self._records[uid].repair) is not None}
        for uid, record in list(self._records.items()):
            record.reported = None
            if record.repair is not None:
                record.repair = replace(record.repair, due=None) if record.repair.count else None
            self._records.tidy(uid)
        self._not_shown.clear()
        return untold

    def take_back(self, uid: str) -> None:
        """The pending report to the pod is not true."""
        if uid in self._records:
            self._expect(uid, None)
        self._news = [news for news in self._news if not isinstance(news, StatusUpdate) or news.uid != uid]

    def take_owing(self) -> bool:
        """Whether a pod should have been reported new figures since the last call, and it was too soon for that."""
        owing, self._owing = self._owing, False
        return owing

    def note(self, news: EventRecord) -> None:
        """Report it; the caller checks whether it was reported before."""
        self._news.append(news)

    def take_news(self) -> list[Report]:
        """The reports since the last call, in order."""
        news, self._news = self._news, []
        return news

    def waits(self, uid: str, now: float) -> float:
        """Since when the pod has been seen to wait."""
        record = self._records[uid]
        if record.waits_since is None:
            record.waits_since = now
        return record.waits_since

    # -- writing --------------------------------------------------------------------------------------------------

    def is_schedulable(self, uid: str, now: float) -> bool:
        """Whether the pod is neither being written nor pausing, nor in quarantine."""
        record = self._records.get(uid)
        return record is None or (
            record.binding is None
            and (record.backoff is None or record.backoff.until <= now)
            and (record.fault is None or record.fault.until <= now)
        )

    def busy(self, uid: str, now: float) -> str:
        """Why the pod may not be tried, in a word; empty if it may."""
        if self.is_schedulable(uid, now):
            return ""
        if self.quarantine.holds(uid, now):
            return "in quarantine"
        return "writing" if uid in self._writing else "pausing"

    def begin(self, binding: Binding) -> None:
        """A binding is handed out to be written."""
        self._records[binding.pod.uid].binding = binding
        self._writing.add(binding.pod.uid)

    def writing(self) -> frozenset[str]:
        """Ids of the allocations whose writes have an unknown outcome."""
        bindings = (self._records[uid].binding for uid in self._writing)
        return frozenset(binding.allocation.id for binding in bindings if binding is not None)

    def is_writing(self, uid: str) -> bool:
        """Whether the pod's binding is being written."""
        return uid in self._writing

    def leave_unresolved(self, binding: Binding) -> None:
        """It is unknown whether the write took effect. The pod still counts as being written."""
        self._unresolved[binding.pod.uid] = replace(binding, again=True)

    def take_unresolved(self) -> list[Binding]:
        """The unresolved bindings, to be written again or read back."""
        unresolved = list(self._unresolved.values())
        self._unresolved.clear()
        return unresolved

    def done(self, uid: str, version: int | None = None) -> None:
        """The write took effect and made this version of the pod; or there is nothing left to write."""
        if uid in self._records or version is not None:
            self.touched(uid, version)
            self._ended(uid, None)
            self._records[uid].waits_since = None
            self._records.tidy(uid)

    def _ended(self, uid: str, backoff: Backoff | None) -> None:
        record = self._records[uid]
        record.binding = None
        record.backoff = backoff
        self._writing.discard(uid)
        if backoff is None:
            self._paused.discard(uid)
        else:
            self._paused.add(uid)

    def touched(self, uid: str, version: int | None) -> None:
        """A write of ours made this version of the pod."""
        if version is not None:
            self._records[uid].written = version

    def failed(self, uid: str, now: float) -> int:
        """The write did not take effect; the pause doubles with each failure in a row, whose number is returned."""
        pause = Backoff.after(self._records[uid].backoff, now)
        self._ended(uid, pause)
        return pause.failures

    def outdated(self, uid: str, version: int | None) -> bool:
        """Whether the watch still shows the pod as it was before our own write, which it has yet to bring."""
        record = self._records.get(uid)
        if record is None or record.written is None or version is None:
            return False
        if version < record.written:
            return True
        record.written = None
        return False

    def resume(self, now: float) -> bool:
        """End the pauses that are over. True if there was one."""
        over = {uid for uid in self._paused if (pause := self._records[uid].backoff) is None or pause.until <= now}
        self._paused -= over
        return self.quarantine.resume(now) or bool(over)

    def noted(self) -> frozenset[str]:
        """Every pod with a note other than that its binding is being written, or a fault."""
        return frozenset(uid for uid, record in self._records.items() if record.must_be_dropped())

    def drop(self, uid: str) -> None:
        """The pod was deleted. A binding that is being written stays noted: its writer reports back."""
        self.quarantine.drop(uid)
        record = self._records.pop(uid, None)
        if record is not None and record.binding is not None:
            self._records[uid] = PodRecord(binding=record.binding)
        self._paused.discard(uid)
        self._not_shown.pop(uid, None)


# -- errors of ours -----------------------------------------------------------------------------------------------


def tried_as(entry: QueuedPodInfo) -> object:
    """The input of an attempt to place a pod."""
    return entry.ask, entry.foreign, entry.priority


class PodFaults:
    """Sets pods aside that caused internal errors, so that no other pod is delayed."""

    def __init__(
        self,
        *,
        cache: Cache,
        records: PodRecords,
        may_tell: Callable[[str, str], bool],
        clock: Callable[[], float],
        wake: Callable[[], None],
        faulted: Faulted,
    ) -> None:
        """`may_tell`: whether this replica reports to a pod, by uid and key; `faulted` gets each error once."""
        self._cache = cache
        self._records = records
        self._may_tell = may_tell
        self._clock = clock
        self._wake = wake
        self.surfaced = faulted

    def leave_alone(self, place: str, entry: QueuedPodInfo) -> None:
        """Call it while an internal error from handling a pod in the queue is handled."""
        self.set_aside(place, entry.uid, entry.key, entry.pod, tried_as(entry))

    def set_aside(self, place: str, uid: str, key: str, pod: Mapping[str, Any], made_of: object) -> None:
        """
        Call it while an internal error caused by a pod is handled: the pod is left alone, and that is reported.

        If the pod may hold a share, only an Event is written, because its condition, which says that it has one, stays
        true. `made_of`: the pod may be tried again when this changes.
        """
        now = self._clock()
        fault = self._records.quarantine.known(uid, place, made_of, now)
        if fault is None:
            found = self.surfaced(place, key)
            if not uid:
                return
            fault = self._records.quarantine.put(uid, made_of, place, found, now)
        if not self._may_tell(uid, key):
            return
        text = fault.message()
        if self._cache.ledger.holding(uid) is None and not may_hold(pod):
            code = PodReason.INTERNAL_ERROR
            self._records.tell(StatusUpdate(key, uid, False, code, text, warning=code), now)
        elif fault.since == now:
            self._records.note(EventRecord("Pod", key, uid, PodReason.INTERNAL_ERROR, text))
        self._wake()
