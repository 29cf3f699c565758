"""
One leader at a time, by a Lease. A leader knows by its own clock when its term ends.

The decisions are pure: `step` reads the Lease and returns what to do, and `campaign` chains the calls of one round.
`Leader` is the thread that makes the calls. Why two leaders never overlap:

    leader A   |-- renew sent --|            is_leader() until sent + renew_deadline
    server            |-- committed
    follower B               |-- sees that version           waits lease_duration from here

B counts from when *it first read* that version of the object (uid and resourceVersion), on its own monotonic clock, so
wall clocks do not matter and B starts no earlier than commit + lease_duration. A counts from *before it sent* the
renewal that was acknowledged, so it stops no later than commit + renew_deadline. Clocks may differ in speed by the
ratio of the two (15 s to 10 s by default). An unacknowledged write never makes a leader, even if a later read shows it.

Every write carries the resourceVersion that was read. So a replica that takes the Lease knows that nobody wrote it for
a whole lease_duration, *whatever the record says*: it may be edited by hand, emptied, restored from a backup, or
deleted and made again. No content of the record shortens that time, apart from a release:

- A Lease that is missing is created without a holder, and that version ages like any other.
- A record without a holder is a release if the leader wrote it *directly after* the version that it names: the server's
  own history says so (`FirstAfter`). A copy of a release that is restored later has another version.
- A leader that finds a record other than its own stops at once, and waits like the others. It may renew if the record
  is its own and its time is not over, because no other can have led meanwhile; and if nothing was written since its own
  write.

Record format: https://kubernetes.io/docs/concepts/architecture/leases/ (coordination.k8s.io/v1).

Must not: decide anything except which replica leads. The caller asks `is_leader()` again right before each write.
"""

from __future__ import annotations

import datetime
import logging
import math
import random
import threading
import time
import uuid
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Literal

from contract import kinds
from contract.encoding import moments
from runtime.kubernetes.client import JSON, Kube, KubeConflict, KubeError, KubeNotFound
from runtime.kubernetes.errors import error_from_status
from runtime.kubernetes.paths import leases

log = logging.getLogger(__name__)

RELEASED = "gpufraction.io/released-after"
"""Annotation of a released Lease: the resourceVersion that the release replaced."""
LONGEST = 300.0
"""Seconds; no lease_duration is longer, so this bounds what a record states."""
_MOST_TRANSITIONS = 2**31 - 1
NEW = "it is new"


@dataclass(frozen=True, slots=True)
class LeaseTiming:
    """The pace of an election, in seconds; as client-go's defaults."""

    lease_duration: float = 15.0  # others start no sooner than this after they saw the last version
    renew_deadline: float = 10.0  # a leader stops deciding this long after the last acknowledged renewal
    retry_period: float = 2.0  # between two rounds

    def __post_init__(self) -> None:
        if not LONGEST >= self.lease_duration > self.renew_deadline > self.retry_period > 0:
            raise ValueError(
                f"{LONGEST:.0f} >= lease_duration {self.lease_duration} > renew_deadline {self.renew_deadline} > "
                f"retry_period {self.retry_period} > 0 must hold, for example 15 > 10 > 2"
            )


Version = tuple[str, str]
"""The uid and the resourceVersion of an object; no two writes have the same."""


@dataclass(frozen=True, slots=True)
class Observed:
    """What this candidate knows: the last record it saw, since when it sees that version, and its own term."""

    spec: JSON | None = None
    version: Version | None = None  # None: there is no Lease, or it was never read
    changed_at: float = 0.0
    stated: float = 0.0  # the lease_duration of the record's holder, or of the last one that it had
    leads_until: float | None = None  # on the local clock; None: not leading
    ours: Version | None = None  # our last acknowledged write, while nobody else's was seen
    term: int = 0  # the greatest number of a term that was seen; ours, while leading
    refuted: Version | None = None  # a record that looks like a release and is none
    looked_at: float | None = None  # when the record was last read
    renewed_at: float | None = None  # when the record was renewed, on the local clock
    covers_from: float | None = None  # since when our renewals cover the time without a gap; None: another's do
    trouble: str = ""  # what somebody else did to the Lease, for which everybody waits; empty if nobody did

    def leading(self, now: float) -> bool:
        """Whether our term lasts at that time of the local clock."""
        return self.leads_until is not None and now < self.leads_until


@dataclass(frozen=True, slots=True)
class Covered:
    """
    The time for which this candidate is responsible, in seconds before now: from the last renewal of another candidate
    until our last acknowledged one. `since` is None if another candidate renews; `until` is its renewal.

    Each renewal moves the record's renewTime on, and who wrote it answers for the time between the two. So of all
    candidates, whenever they start and end, exactly one answers for each moment up to the last renewal.
    """

    since: float | None
    until: float


@dataclass(frozen=True, slots=True)
class Follow:
    """Another candidate leads, or may still believe that it leads. Look again later."""


@dataclass(frozen=True, slots=True)
class LeaseWrite:
    """Take or renew: create the Lease, or replace it as it was read."""

    verb: Literal["create", "replace"]
    body: JSON


@dataclass(frozen=True, slots=True)
class TakeReleased:
    """Take the Lease, if the record that was read is the first one that was written after version `since`."""

    since: str
    body: JSON


def step(
    lease: JSON | None, me: str, observed: Observed, *, now: float, wall: str, timing: LeaseTiming
) -> tuple[Observed, Follow | LeaseWrite | TakeReleased]:
    """What to do about the Lease just read (None: there is none). Pure.

    now: the local monotonic clock, in seconds. wall: the time to write into the record. No leader is chosen by it; what
    it is good for is the length of the time between two leaders (`Covered`).
    """
    before = observed
    observed = _seen(lease, before, now, wall)
    if before.ours is not None:
        if lease is not None and _still_ours(observed, before, me, now):
            return observed, LeaseWrite("replace", _held(lease, me, before.term, before.spec, wall, timing))
        # Decisions under our record end here, before anything else is written.
        return replace(_deposed(observed), trouble=_trouble(lease, me)), Follow()
    if lease is None:
        trouble = "" if before.looked_at is None else _trouble(None, me)
        return replace(observed, trouble=trouble), LeaseWrite("create", {"spec": _vacant(observed, timing)})
    take = _held(lease, me, observed.term + 1, None, wall, timing)
    if now >= observed.changed_at + _patience(observed, timing):
        return replace(observed, trouble=""), LeaseWrite("replace", take)
    since = ((lease.get("metadata") or {}).get("annotations") or {}).get(RELEASED)
    if not holder_of(observed.spec) and isinstance(since, str) and observed.refuted != observed.version:
        return observed, TakeReleased(since, take)
    return replace(observed, trouble=observed.trouble or _trouble(lease, me)), Follow()


def _seen(lease: JSON | None, observed: Observed, now: float, wall: str) -> Observed:
    """The state after the Lease just read. Any write begins a new count, because it may be a leader's."""
    if lease is None:
        return replace(observed, version=None, changed_at=now, looked_at=now)
    spec, version = lease.get("spec") or {}, version_of(lease)
    if (version, spec) == (observed.version, observed.spec):
        return replace(observed, looked_at=now)
    trouble = "another client changed it"
    if spec != observed.spec:
        observed, trouble = replace(observed, renewed_at=_renewed_at(lease, spec, observed, now, wall)), ""
    holder, stated = holder_of(spec), _stated(spec)
    if not holder:
        stated = max(stated, observed.stated)
    elif holder == holder_of(observed.spec):
        stated = observed.stated  # no process changes its own duration, so somebody else did
    return replace(
        observed,
        spec=spec,
        version=version,
        changed_at=now,
        stated=stated,
        term=max(observed.term, _transitions(spec)),
        looked_at=now,
        trouble=trouble,
    )


def _still_ours(observed: Observed, before: Observed, me: str, now: float) -> bool:
    """
    Whether the record just read is our own and nobody can have led since our last acknowledged write.

    Within our time nobody can, so the record may carry a renewal of ours whose answer was lost, or a new label. After
    it, only the version tells.
    """
    if observed.version == before.ours and observed.spec == before.spec:
        return True
    mine = (me, _transitions(before.spec), _stated(before.spec))
    spec = observed.spec
    return before.leading(now) and (holder_of(spec), _transitions(spec), _stated(spec)) == mine


def _deposed(observed: Observed) -> Observed:
    return replace(observed, leads_until=None, ours=None, covers_from=None)


def _trouble(lease: JSON | None, me: str) -> str:
    """What was done to the Lease, if no candidate would have done it."""
    if lease is None:
        return "somebody deleted it"
    spec = lease.get("spec") or {}
    holder = holder_of(spec)
    if holder not in ("", me):
        return ""
    if holder:
        return "another client changed it"
    return "it has no holder, but no holder released it" if "renewTime" in spec else NEW


def holder_of(spec: JSON | None) -> str:
    """The holder that the record names; empty if none."""
    return str((spec or {}).get("holderIdentity") or "")


def version_of(lease: JSON) -> Version:
    """The write that created the state of the object that was read."""
    metadata = lease.get("metadata") or {}
    return str(metadata.get("uid") or ""), str(metadata.get("resourceVersion") or "")


def _number(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _transitions(spec: JSON | None) -> int:
    found = _number((spec or {}).get("leaseTransitions"))
    return found if 0 <= found <= _MOST_TRANSITIONS else 0


def _stated(spec: JSON | None) -> float:
    return min(max(0.0, float(_number((spec or {}).get("leaseDurationSeconds")))), LONGEST)


def takes_at(observed: Observed, timing: LeaseTiming) -> float | None:
    """When the record is old enough to be taken, on the local clock; None while we hold it or there is none."""
    if observed.ours is not None or observed.version is None:
        return None
    return observed.changed_at + _patience(observed, timing)


def _patience(observed: Observed, timing: LeaseTiming) -> float:
    """How long the last writer may believe that it leads: no shorter than its record stated."""
    return max(timing.lease_duration, observed.stated)


def _renewed_at(lease: JSON, spec: JSON, observed: Observed, now: float, wall: str) -> float:
    """
    When the record just read was renewed, on the local clock; by the two wall clocks, but not before the last look at
    the record that it followed. If it does not say, or is older than its Lease (a backup), now.
    """
    if observed.renewed_at is not None and spec.get("renewTime", "") == (observed.spec or {}).get("renewTime"):
        return observed.renewed_at  # a release, or somebody's edit
    stamp, at = moments.seconds(spec.get("renewTime")), moments.seconds(wall)
    if stamp is None or at is None or stamp < moments.created(lease):
        return now
    since_then = observed.looked_at if observed.spec is not None and observed.looked_at is not None else float("-inf")
    return max(now - max(0.0, at - stamp), since_then)


def _held(lease: JSON, me: str, term: int, ours: JSON | None, wall: str, timing: LeaseTiming) -> JSON:
    """The Lease with us as its holder: taken in a new term, or renewed where `ours` is what we wrote before."""
    metadata = dict(lease.get("metadata") or {})
    annotations = {key: value for key, value in (metadata.pop("annotations", None) or {}).items() if key != RELEASED}
    spec = {
        "holderIdentity": me,
        "leaseDurationSeconds": max(1, math.ceil(timing.lease_duration)),
        "acquireTime": wall if ours is None else ours.get("acquireTime", wall),
        "renewTime": wall,
        # Somebody may have written the last number there is. The term goes on for us, who compare it with our own only.
        "leaseTransitions": term % (_MOST_TRANSITIONS + 1),
    }
    return {**lease, "metadata": {**metadata, **({"annotations": annotations} if annotations else {})}, "spec": spec}


def annotated(lease: JSON, annotations: Mapping[str, str | None]) -> JSON:
    """The Lease with these annotations, and without those that are None. No decision reads them."""
    if not annotations:
        return lease
    metadata = lease.get("metadata") or {}
    merged = {**(metadata.get("annotations") or {}), **annotations}
    kept = {key: value for key, value in merged.items() if value is not None}
    bare = {key: value for key, value in metadata.items() if key != "annotations"}
    return {**lease, "metadata": {**bare, **({"annotations": kept} if kept else {})}}


def _vacant(observed: Observed, timing: LeaseTiming) -> JSON:
    """A record without a holder, for a missing Lease. It is taken when it is old enough."""
    return {
        "leaseDurationSeconds": max(1, math.ceil(_patience(observed, timing))),
        "leaseTransitions": min(observed.term, _MOST_TRANSITIONS),
    }


def released(lease: JSON, me: str, observed: Observed, *, now: float) -> JSON | None:
    """
    The Lease just read without its holder, so that the next candidate need not wait; None if it is not ours.

    `observed` is what was known while we led, though we decide nothing any more. The renewTime stays: up to there the
    holder answered for the time, and from there the next one does (`Covered`).
    """
    if observed.ours is None or not _still_ours(_seen(lease, observed, now, ""), observed, me, now):
        return None
    metadata = lease.get("metadata") or {}
    marked = {**(metadata.get("annotations") or {}), RELEASED: version_of(lease)[1]}
    spec = {**(lease.get("spec") or {}), "holderIdentity": ""}
    return {**lease, "metadata": {**metadata, "annotations": marked}, "spec": spec}


@dataclass(frozen=True, slots=True)
class Read:
    """Read the Lease; the answer is the object, or None if there is none."""


@dataclass(frozen=True, slots=True)
class FirstAfter:
    """Read what was written first after that resourceVersion; the answer is the object, or None if it was deleted."""

    since: str


Call = Read | FirstAfter | LeaseWrite


def campaign(
    me: str,
    observed: Observed,
    *,
    timing: LeaseTiming,
    clock: Callable[[], float],
    wall: Callable[[], str],
) -> Generator[Call, JSON | None, Observed]:
    """
    One round: yields the calls to make, receives their answers or KubeErrors, and returns what is known afterwards.
    Raises the KubeError that ended the round.
    """
    lease = yield Read()
    observed, action = step(lease, me, observed, now=clock(), wall=wall(), timing=timing)
    if isinstance(action, TakeReleased):
        try:
            first = yield FirstAfter(action.since)
        except KubeError as error:
            # The server does not remember, or not now. Then the record ages like any other.
            return replace(observed, trouble=f"cannot see whether it was released: {error}")
        if first is None or version_of(first) != observed.version:
            return replace(observed, refuted=observed.version, trouble=_trouble(lease, me))
        action = LeaseWrite("replace", action.body)
    if isinstance(action, Follow):
        return observed
    sent_at = clock()
    written = yield action
    if action.verb == "create":
        return _seen(written or action.body, observed, clock(), wall())
    if lease is not None and action.body["spec"] == lease.get("spec"):
        # The wall clock stands still, so others cannot see this renewal and it prolongs nothing.
        return observed
    written = written or action.body
    spec = written.get("spec") or action.body["spec"]
    return Observed(
        spec=spec,
        version=version_of(written),
        changed_at=clock(),
        stated=_stated(spec),
        leads_until=sent_at + timing.renew_deadline,
        ours=version_of(written),
        term=observed.term if observed.ours is not None else observed.term + 1,
        looked_at=sent_at,
        renewed_at=sent_at,
        covers_from=_covers_from(observed, sent_at),
    )


def _covers_from(observed: Observed, sent_at: float) -> float:
    """
    From when on our renewals cover the time: without a gap while the record stays ours, else from the one before.

    If the Lease was deleted, the last record is unknown, and time is lost rather than counted twice.
    """
    if observed.ours is not None and observed.covers_from is not None:
        return observed.covers_from
    return min(sent_at, observed.renewed_at) if observed.renewed_at is not None else sent_at


def identity(pod: str) -> str:
    """A name that no other process ever has, not even this pod's container after a restart."""
    return f"{pod}_{uuid.uuid4()}"


def boottime() -> float:
    """Seconds since boot, including time spent suspended: a machine that slept no longer leads."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _utc_now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class Leader:
    """A thread that campaigns for one Lease. `is_leader()` and `token()` may be called from any thread.

    on_change: called on the election thread with True or False when leadership is gained or lost. After a loss by the
    clock alone `is_leader()` is false at once, and on_change is called in the next round.
    """

    def __init__(
        self,
        kube: Kube,
        *,
        namespace: str,
        name: str,
        identity: str,
        timing: LeaseTiming | None = None,
        on_change: Callable[[bool], None] | None = None,
        clock: Callable[[], float] = boottime,
        wall: Callable[[], str] = _utc_now,
    ) -> None:
        self.identity = identity
        self._kube = kube
        self._namespace = namespace
        self._name = name
        self._timing = timing or LeaseTiming()
        self._on_change = on_change
        self._clock = clock
        self._wall = wall
        self.annotations: Callable[[], Mapping[str, str | None]] = dict
        """The annotations that the leader writes into the Lease when it renews; None removes one."""
        # A round must end early enough for another to save the term.
        self._call_timeout = self._timing.renew_deadline / 2
        self._observed = Observed()  # replaced whole, so readers on other threads need no lock
        self._announced = False
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def token(self) -> int | None:
        """
        The number of the term while leading, else None. Greater than any that this process had or saw before,
        regardless of later writes to the Lease; compare it only within the process.
        """
        observed = self._observed
        return observed.term if observed.leading(self._clock()) else None

    def is_leader(self) -> bool:
        """Whether this process may decide, right now."""
        return self.token() is not None

    def covered(self) -> Covered | None:
        """The time that our renewals cover, or at which another's was; None if no record was seen."""
        observed, now = self._observed, self._clock()
        if observed.renewed_at is None:
            return None
        since = None if observed.covers_from is None else now - observed.covers_from
        return Covered(since, now - observed.renewed_at)

    def holder(self) -> str:
        """The leader in the record that was seen last; empty if there is none."""
        return str((self._observed.spec or {}).get("holderIdentity") or "")

    def start(self) -> None:
        """Start the thread; at most once."""
        if self._thread is not None:
            raise RuntimeError(f"election {self._namespace}/{self._name} was started before")
        self._thread = threading.Thread(target=self._run, name="leader-election", daemon=True)
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        """Stop leading at once, end the thread, and release the Lease. Stop deciding before calling it."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(timeout)
            self._thread = None
        self.resign()

    def resign(self) -> None:
        """Release the Lease if we hold it. If that fails, it expires by itself."""
        held = self._observed
        self._observed = replace(held, leads_until=None)
        self._announce()
        for _ in range(2):  # twice: a renewal that seemed lost may arrive in between
            try:
                self._give_back(held)
                return
            except KubeConflict:
                continue
            except KubeError as error:
                log.warning("lease not released", extra={"lease": self._name, "reason": str(error)})
                return

    def tick(self) -> None:
        """One round against the API server. The thread does one every retry_period."""
        rounds = campaign(self.identity, self._observed, timing=self._timing, clock=self._clock, wall=self._wall)
        try:
            after = self._play(rounds)
        except KubeConflict:
            log.debug("lease contended", extra={"lease": self._name})
        except KubeError as error:
            log.warning("lease round failed", extra={"lease": self._name, "reason": str(error)})
        else:
            if after.trouble not in ("", self._observed.trouble):
                level = logging.INFO if after.trouble == NEW else logging.WARNING
                log.log(level, "no replica holds the lease yet", extra={"lease": self._name, "reason": after.trouble})
            # A renewal that ends after stop() must not bring the term back.
            self._observed = replace(after, leads_until=None) if self._stopping.is_set() else after
        self._announce()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self.tick()
            self._stopping.wait(self._pause() * (1.0 + 0.2 * random.random()))

    def _pause(self) -> float:
        """Until the next round: a period, or until the record is old enough if that is sooner."""
        due = takes_at(self._observed, self._timing)
        period = self._timing.retry_period
        return period if due is None else min(period, max(due - self._clock(), period / 10))

    def _play(self, rounds: Generator[Call, JSON | None, Observed]) -> Observed:
        call = next(rounds)
        while True:
            try:
                try:
                    answer = self._do(call)
                except KubeError as error:
                    call = rounds.throw(error)
                else:
                    call = rounds.send(answer)
            except StopIteration as done:
                result: Any = done.value
                assert isinstance(result, Observed)
                return result

    def _do(self, call: Call) -> JSON | None:
        if isinstance(call, Read):
            return self._read()
        return self._first_after(call.since) if isinstance(call, FirstAfter) else self._write(call)

    def _give_back(self, held: Observed) -> None:
        lease = self._read()
        given = None if lease is None else released(lease, self.identity, held, now=self._clock())
        if given is None:
            return
        self._kube.replace(self._path(), given, timeout=self._call_timeout)
        log.info("lease released", extra={"lease": self._name})

    def _read(self) -> JSON | None:
        try:
            return self._kube.get(self._path(), timeout=self._call_timeout)
        except KubeNotFound:
            return None

    def _first_after(self, version: str) -> JSON | None:
        """What was first written to the Lease after that version; None if it was deleted, or nothing was."""
        one = {"fieldSelector": f"metadata.name={self._name}"}
        path = leases(self._namespace)
        watch = self._kube.watch(path, resource_version=version, query=one, timeout_seconds=2, of=kinds.LEASES)
        with closing(watch) as events:
            for event in events:
                if event["type"] == "ERROR":
                    code = event["object"].get("code")
                    raise error_from_status(code if isinstance(code, int) else 500, event["object"], what="watch")
                if event["type"] != "BOOKMARK":
                    return event["object"] if event["type"] == "MODIFIED" else None
        return None

    def _write(self, call: LeaseWrite) -> JSON:
        if call.verb == "replace":
            body = annotated(call.body, self.annotations() if self.is_leader() else {})
            return self._kube.replace(self._path(), body, timeout=self._call_timeout)
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._name, "namespace": self._namespace},
            **call.body,
        }
        return self._kube.create(leases(self._namespace), body, timeout=self._call_timeout)

    def _path(self) -> str:
        return leases(self._namespace, self._name)

    def _announce(self) -> None:
        leads = self.is_leader()
        if leads == self._announced:
            return
        self._announced = leads
        log.info("leading" if leads else "not leading", extra={"lease": self._name, "holder": self.holder()})
        if self._on_change is not None:
            self._on_change(leads)
