"""
The line's notes: what each waiting pod was told, whose commit is being written, and who must pause after a failure.

Pure bookkeeping by uid; time is passed in. It knows neither nodes nor GPUs and decides nothing: who is in the queue,
and in what order, the cluster knows.

Conditions that do not say what was written: lost on the way, or overwritten or removed by somebody else.

A write is expected to show on the watch. Where it does not within a pause, it is written once more; the pause doubles
each time, so that two writers who do not agree cost the API server next to nothing. After a quiet while it is short
again.

Pure notes by uid; time is passed in. Not thread-safe: one owner calls it.

Pods whose handling ended in an error of ours: who they are, until when they are left alone, and what they are told.

No pod may end the allocator, or hold up others, by what it is made of. So a pod that an error came of is taken out of
what is tried, until it changes or a long pause is over; a pod that changes again and again is tried less and less
often. Pure notes by uid; time is passed in. Must not: decide what is booked. A pod that holds a share goes on being
counted, and where that cannot be told its node takes no new pods (`Cluster.close`).

Errors of ours that come of one pod: the pod is left alone and told so, and no other pod is held up. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from allocator.cache.cache import Cache
from allocator.cache.podinfo import LastReported, may_hold
from allocator.faults import Faulted
from allocator.queue.queue import QueuedPodInfo
from contract.backoff import backoff
from contract.model import Allocation

_BACKOFF, _BACKOFF_CAP = 0.5, 60.0
"""Seconds before a pod whose write failed is tried again: the first pause, and the longest."""
_FRESH = 60.0
"""Seconds for which the figures that a waiting pod was told are new enough."""
_FRESHENED = 50
"""Pods that are told new figures in one second, at most: each is a write, and those first in the queue come first."""


@dataclass(frozen=True, slots=True)
class Binding:
    """A waiting pod was given a share: write it on the pod."""

    pod: QueuedPodInfo
    allocation: Allocation
    term: int | None = None
    """The leadership in which it was decided, where there is an election; it must be written in the same."""


@dataclass(frozen=True, slots=True)
class StatusUpdate:
    """What a pod should be told, where it has changed."""

    key: str
    """`namespace/name`."""
    uid: str
    allocated: bool
    code: str
    reason: str
    warning: str = ""
    """The reason of a Warning Event, where it is more than news; empty otherwise."""
    turned: bool = True
    """Whether the condition's status is another than before, which its time of transition is about."""
    event: bool = True
    """Whether there is an Event too; new figures alone are none."""


@dataclass(frozen=True, slots=True)
class EventRecord:
    """An Event, and no condition: about a pod, a claim, a list of kept out cards, or a Node, which has no namespace."""

    kind: Literal["Pod", "Node", "ConfigMap", "ElasticGPUClaim"]
    key: str
    """`namespace/name`; a Node's name alone."""
    uid: str
    code: str
    """The Event's reason."""
    reason: str
    """Its message."""
    warns: bool = True


Report = StatusUpdate | EventRecord


@dataclass(frozen=True, slots=True)
class Eviction:
    """A pod that must go. `cause` is why, for the metric: unbound, repair or preemption."""

    key: str
    uid: str
    version: int | None
    """The version that was judged; None judges the pod at any."""
    cause: str
    why: str


class PodRecords:
    """Notes by uid. Not thread-safe: one owner calls it."""

    def __init__(self) -> None:
        self.quarantine = Quarantine()
        """Pods that are left alone, since an error of ours came of them."""
        self._writing: dict[str, Binding] = {}
        self._unresolved: dict[str, Binding] = {}
        self._written: dict[str, int] = {}
        self._told: dict[str, LastReported] = {}
        self._overwritten = Overwritten()
        self._freshened = (0, 0)
        self._owing = False
        self._news: list[Report] = []
        self._failures: dict[str, int] = {}
        self._paused: dict[str, float] = {}
        self._since: dict[str, float] = {}

    # -- telling --------------------------------------------------------------------------------------------------

    def tell(self, news: StatusUpdate, now: float, stands: LastReported | None = None) -> bool:
        """
        Say it unless the pod was told so. True if it is news.

        `stands`: what the pod's condition says, which counts where nothing was told from here: another leader did. Of
        the same code a waiting pod is told new figures in its condition only, when the old ones are a minute old.
        """
        last = self._told.get(news.uid) or stands
        if last is not None and (last.allocated, last.code) == (news.allocated, news.code):
            self._told.setdefault(news.uid, last)
            if news.allocated or last.reason == news.reason:
                return False
            if not self._may_freshen(last, now):
                self._owing = True
                return False
            news = replace(news, turned=False, event=False)
        elif last is not None:
            news = replace(news, turned=last.allocated != news.allocated)
        self._told[news.uid] = LastReported(news.allocated, news.code, news.reason, now)
        self._overwritten.written(news.uid, news.key, now)
        self._news.append(news)
        return True

    def shows(self, uid: str, key: str, stands: LastReported | None, now: float) -> None:
        """What the watch shows of a pod's condition: somebody else may have overwritten or removed ours."""
        told = self._told.get(uid)
        if told is None:
            self._overwritten.drop(uid)
            return
        right = stands is not None and replace(stands, at=told.at) == told
        self._overwritten.seen(uid, key, right, stands is None or stands.allocated != told.allocated, now)

    def repeat_overwritten(self, now: float) -> list[StatusUpdate]:
        """Conditions that do not say what was written, although they should by now; they are no news and no Event."""
        found = []
        for uid, missing in self._overwritten.due(now, self._writing):
            told = self._told.get(uid)
            if told is None:
                self._overwritten.drop(uid)
                continue
            again = StatusUpdate(
                missing.key, uid, told.allocated, told.code, told.reason, turned=missing.turned, event=False
            )
            found.append(again)
        return found

    def _may_freshen(self, last: LastReported, now: float) -> bool:
        second, count = self._freshened
        count = count if second == int(now) else 0
        if now - last.at < _FRESH or count >= _FRESHENED:
            return False
        self._freshened = (int(now), count + 1)
        return True

    def forget_reports(self) -> None:
        """Another may have told the pods something else meanwhile: what counts now is what their conditions say."""
        self._told.clear()
        self._overwritten.clear()

    def take_back(self, uid: str) -> None:
        """What the pod was to be told is not so."""
        self._overwritten.drop(uid)
        self._news = [news for news in self._news if not isinstance(news, StatusUpdate) or news.uid != uid]

    def take_owing(self) -> bool:
        """Whether a pod should have been told new figures since the last call, and it was too soon for that."""
        owing, self._owing = self._owing, False
        return owing

    def note(self, news: EventRecord) -> None:
        """Say it; whether it was said before is the caller's to know."""
        self._news.append(news)

    def take_news(self) -> list[Report]:
        """What is to be told since the last call, in order."""
        news, self._news = self._news, []
        return news

    def waits(self, uid: str, now: float) -> float:
        """Since when the pod has been seen to wait."""
        return self._since.setdefault(uid, now)

    # -- writing --------------------------------------------------------------------------------------------------

    def is_schedulable(self, uid: str, now: float) -> bool:
        """Whether the pod is neither being written nor pausing, nor in quarantine."""
        return uid not in self._writing and self._paused.get(uid, now) <= now and not self.quarantine.holds(uid, now)

    def busy(self, uid: str, now: float) -> str:
        """Why the pod may not be tried, in a word; empty if it may."""
        if self.is_schedulable(uid, now):
            return ""
        if self.quarantine.holds(uid, now):
            return "in quarantine"
        return "writing" if uid in self._writing else "pausing"

    def begin(self, binding: Binding) -> None:
        """A commit is handed out to be written."""
        self._writing[binding.pod.uid] = binding

    def writing(self) -> frozenset[str]:
        """Ids of the allocations whose write is not known to have taken effect or not."""
        return frozenset(binding.allocation.id for binding in self._writing.values())

    def is_writing(self, uid: str) -> bool:
        """Whether the pod's commit is on its way."""
        return uid in self._writing

    def leave_unresolved(self, binding: Binding) -> None:
        """Nobody can tell whether the commit took effect. It stays noted as being written."""
        self._unresolved[binding.pod.uid] = binding

    def take_unresolved(self) -> list[Binding]:
        """The commits in doubt, to be written once more, or looked for."""
        unresolved = list(self._unresolved.values())
        self._unresolved.clear()
        return unresolved

    def done(self, uid: str, version: int | None = None) -> None:
        """The commit took effect and made this version of the pod; or there is nothing left to write."""
        if version is not None:
            self._written[uid] = version
        self._writing.pop(uid, None)
        self._failures.pop(uid, None)
        self._paused.pop(uid, None)
        self._since.pop(uid, None)

    def touched(self, uid: str, version: int | None) -> None:
        """Another write of ours made this version of the pod."""
        if version is not None:
            self._written[uid] = version

    def failed(self, uid: str, now: float) -> int:
        """The commit did not take effect; the pause doubles with each failure in a row, whose number is returned."""
        self._writing.pop(uid, None)
        failures = self._failures.get(uid, 0) + 1
        self._failures[uid] = failures
        self._paused[uid] = now + backoff(failures, _BACKOFF, _BACKOFF_CAP)
        return failures

    def outdated(self, uid: str, version: int | None) -> bool:
        """Whether the watch still shows the pod as it was before our own commit, of which it has yet to hear."""
        written = self._written.get(uid)
        if written is None or version is None:
            return False
        if version < written:
            return True
        del self._written[uid]
        return False

    def resume(self, now: float) -> bool:
        """End the pauses that are over. True if there was one."""
        over = [uid for uid, until in self._paused.items() if until <= now]
        for uid in over:
            del self._paused[uid]
        return self.quarantine.take_over(now) or bool(over)

    def noted(self) -> frozenset[str]:
        """Every pod of which something is noted, except that its commit is on its way."""
        return self._overwritten.noted().union(self._told, self._failures, self._paused, self._written, self._since)

    def drop(self, uid: str) -> None:
        """The pod is gone. A commit that is being written stays noted: its writer reports back."""
        self.quarantine.drop(uid)
        self._told.pop(uid, None)
        self._overwritten.drop(uid)
        self._failures.pop(uid, None)
        self._paused.pop(uid, None)
        self._written.pop(uid, None)
        self._since.pop(uid, None)


PAUSE, PAUSE_CAP = 3.0, 300.0
"""Seconds until a condition is written once more: at first, and at most."""
_QUIET = 900.0
"""Seconds without a repair after which the pause is short again."""
_AT_ONCE = 50
"""Conditions that are written once more in one call, at most."""


@dataclass(frozen=True, slots=True)
class Missing:
    """A condition that the watch does not show as it was written."""

    key: str
    """`namespace/name` of its pod."""
    due: float
    turned: bool
    """Whether it has another status than was written, or is not there."""


class Overwritten:
    """The notes."""

    def __init__(self) -> None:
        self._missing: dict[str, Missing] = {}
        self._repairs: dict[str, tuple[int, float]] = {}

    def written(self, uid: str, key: str, now: float) -> None:
        """A condition is on its way: it is to be seen soon."""
        self._missing[uid] = Missing(key, now + self._pause(uid, now), True)

    def seen(self, uid: str, key: str, right: bool, turned: bool, now: float) -> None:
        """What the watch shows of a condition that was written."""
        if right:
            self._missing.pop(uid, None)
            if uid in self._repairs and now - self._repairs[uid][1] > _QUIET:
                del self._repairs[uid]
            return
        known = self._missing.get(uid)
        due = known.due if known is not None else now + self._pause(uid, now)
        self._missing[uid] = Missing(key, due, turned)

    def due(self, now: float, busy: Container[str] = ()) -> list[tuple[str, Missing]]:
        """
        Those that are to be written once more, by uid. `busy`: pods that are being written, whose turn comes later.
        """
        late = [(uid, one) for uid, one in self._missing.items() if one.due <= now and uid not in busy][:_AT_ONCE]
        for uid, one in late:
            self._repairs[uid] = self._count(uid, now) + 1, now
            self._missing[uid] = replace(one, due=now + self._pause(uid, now))
        return late

    def drop(self, uid: str) -> None:
        """The pod is gone, or was told nothing that counts."""
        self._missing.pop(uid, None)
        self._repairs.pop(uid, None)

    def clear(self) -> None:
        """Nothing that was written counts any more."""
        self._missing.clear()

    def noted(self) -> frozenset[str]:
        """Every pod of which something is noted."""
        return frozenset((*self._missing, *self._repairs))

    def _count(self, uid: str, now: float) -> int:
        count, at = self._repairs.get(uid, (0, now))
        return count if now - at <= _QUIET else 0

    def _pause(self, uid: str, now: float) -> float:
        return backoff(self._count(uid, now) + 1, PAUSE, PAUSE_CAP)


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


def tried_as(entry: QueuedPodInfo) -> object:
    """What trying a pod depends on."""
    return entry.ask, entry.foreign, entry.priority


class PodFaults:
    """Sets pods aside."""

    def __init__(
        self,
        *,
        cache: Cache,
        records: PodRecords,
        leads: Callable[[], bool],
        clock: Callable[[], float],
        wake: Callable[[], None],
        faulted: Faulted,
    ) -> None:
        """`leads`: whether it is on this replica to tell pods; `faulted` is told of each error once."""
        self._cache, self._records, self._leads = cache, records, leads
        self._clock, self._wake, self.surfaced = clock, wake, faulted

    def leave_alone(self, place: str, entry: QueuedPodInfo) -> None:
        """To be called where an error of ours came of what is done for a pod in the queue, as it is handled."""
        self.set_aside(place, entry.uid, entry.key, entry.pod, tried_as(entry))

    def set_aside(self, place: str, uid: str, key: str, pod: Mapping[str, Any], made_of: object) -> None:
        """
        To be called where an error of ours came of a pod, as it is handled: the pod is left alone, and told so.

        A pod that may hold a share is told by an Event only: its condition says that it has one, and so it is.
        `made_of`: a pod of which this changes may be tried again.
        """
        now = self._clock()
        fault = self._records.quarantine.known(uid, place, made_of, now)
        if fault is None:
            found = self.surfaced(place, key)
            if not uid:
                return
            fault = self._records.quarantine.put(uid, key, made_of, place, found, now)
        if not self._leads():
            return
        text = said(fault)
        if self._cache.ledger.holding(uid) is None and not may_hold(pod):
            self._records.tell(StatusUpdate(key, uid, False, INTERNAL_ERROR, text, warning=INTERNAL_ERROR), now)
        elif fault.since == now:
            self._records.note(EventRecord("Pod", key, uid, INTERNAL_ERROR, text))
        self._wake()
