"""
One leader at a time, by a Lease. A leader knows by its own clock when it is no longer one.

The decisions are pure: `step` reads the Lease and returns what to write, and `campaign` chains the calls of one round.
`Leader` is the thread that makes the calls. Why two leaders never overlap:

    leader A   |-- renew sent --|            is_leader() until sent + renew_deadline
    server            |-- committed
    follower B               |-- sees the record change      waits lease_duration from here

B counts from when *it saw* the record change, on its own monotonic clock, so wall clocks do not matter and B starts no
earlier than commit + lease_duration. A counts from *before it sent* the renewal that was acknowledged, so it stops no
later than commit + renew_deadline. Clocks may differ in speed by the ratio of the two (15 s to 10 s by default). An
unacknowledged write never makes a leader, even if a later read shows it: for others that record may be about to expire.

Every write carries the resourceVersion that was read, so one of two candidates gets 409.
Record format: https://kubernetes.io/docs/concepts/architecture/leases/ (coordination.k8s.io/v1).

Must not: decide anything but who leads. The caller asks `is_leader()` again right before each write.
"""

from __future__ import annotations

import datetime
import logging
import random
import threading
import time
import uuid
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import Any, Literal

from runtime.kubernetes.client import JSON, Kube, KubeConflict, KubeError, KubeNotFound
from runtime.kubernetes.paths import leases

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LeaseTiming:
    """The pace of an election, in seconds; as client-go's defaults."""

    lease_duration: float = 15.0  # others start no sooner than this after the last renewal they saw
    renew_deadline: float = 10.0  # a leader stops deciding this long after the last acknowledged renewal
    retry_period: float = 2.0  # between two rounds

    def __post_init__(self) -> None:
        if not self.lease_duration > self.renew_deadline > self.retry_period > 0:
            raise ValueError(
                f"lease_duration {self.lease_duration} > renew_deadline {self.renew_deadline} > "
                f"retry_period {self.retry_period} > 0 must hold, for example 15 > 10 > 2"
            )


@dataclass(frozen=True, slots=True)
class Observed:
    """What this candidate knows: the last record it saw, when that changed, and its own term."""

    spec: JSON | None = None
    changed_at: float = 0.0
    leads_until: float | None = None  # on the local clock; None: not leading
    transitions: int = 0  # of the term that leads_until belongs to
    looked_at: float | None = None  # when the record was last read
    renewed_at: float | None = None  # when the record was renewed, on the local clock
    covers_from: float | None = None  # since when our renewals cover the time without a gap; None: another's do


@dataclass(frozen=True, slots=True)
class Covered:
    """
    Which time this candidate answers for, in seconds before now: from the renewal that another made last until the
    one of ours that was acknowledged last. `since` is None where another candidate renews; `until` is its renewal.

    Each renewal moves the record's renewTime on, and who wrote it answers for the time between the two. So of all
    candidates, whenever they start and end, exactly one answers for each moment up to the last renewal.
    """

    since: float | None
    until: float


@dataclass(frozen=True, slots=True)
class Follow:
    """Another candidate leads, or may still believe so. Look again later."""


@dataclass(frozen=True, slots=True)
class LeaseWrite:
    """Take or renew: create the Lease, or replace it as it was read."""

    verb: Literal["create", "replace"]
    body: JSON


def step(
    lease: JSON | None, me: str, observed: Observed, *, now: float, wall: str, timing: LeaseTiming
) -> tuple[Observed, Follow | LeaseWrite]:
    """What to do about the Lease just read (None: there is none). Pure.

    now: the local monotonic clock, in seconds. wall: the time to write into the record. No leader is chosen by it; what
    it is good for is the length of the time between two leaders (`Covered`).
    """
    if lease is None:
        return observed, LeaseWrite("create", {"spec": _spec(me, {}, wall=wall, timing=timing)})
    spec = lease.get("spec") or {}
    # Only the record counts: an edited label of the Lease must not prolong a term.
    if observed.spec != spec:
        observed = replace(observed, spec=spec, changed_at=now, renewed_at=_renewed_at(spec, observed, now, wall))
    observed = replace(observed, looked_at=now)
    holder = spec.get("holderIdentity") or ""
    duration = _duration_of(spec, timing)
    if holder not in ("", me) and now < observed.changed_at + duration:
        return observed, Follow()
    body = {**lease, "spec": _spec(me, spec, wall=wall, timing=timing)}
    return observed, LeaseWrite("replace", body)


def _duration_of(spec: JSON, timing: LeaseTiming) -> float:
    """How long the record's holder may believe that it leads: no shorter than the record states."""
    stated = spec.get("leaseDurationSeconds")
    return max(timing.lease_duration, float(stated) if isinstance(stated, int) else 0.0)


def _renewed_at(spec: JSON, observed: Observed, now: float, wall: str) -> float:
    """
    When the record just read was renewed, on the local clock; by the two wall clocks, but not before the last look at
    the record that it followed. Where it does not say, now.
    """
    stamp, at = _seconds(spec.get("renewTime")), _seconds(wall)
    if stamp is None or at is None:
        return now
    since_then = observed.looked_at if observed.spec is not None and observed.looked_at is not None else float("-inf")
    return max(now - max(0.0, at - stamp), since_then)


def _seconds(stamp: object) -> float | None:
    try:
        return datetime.datetime.fromisoformat(str(stamp)).timestamp()
    except ValueError:
        return None


def _spec(me: str, before: JSON, *, wall: str, timing: LeaseTiming) -> JSON:
    mine = before.get("holderIdentity") == me
    transitions = before.get("leaseTransitions")
    count = transitions if isinstance(transitions, int) else 0
    return {
        **before,
        "holderIdentity": me,
        "leaseDurationSeconds": max(1, round(timing.lease_duration)),
        "acquireTime": (before.get("acquireTime") or wall) if mine else wall,
        "renewTime": wall,
        # The first holder of a new Lease is transition 0, as in client-go.
        "leaseTransitions": count if mine or not before else count + 1,
    }


def released(lease: JSON) -> JSON:
    """
    The Lease without a holder, so that the next candidate need not wait.

    Its renewTime stays: up to there the holder answered for the time, and from there the next one does (`Covered`).
    """
    spec = {**(lease.get("spec") or {}), "holderIdentity": "", "leaseDurationSeconds": 1}
    return {**lease, "spec": spec}


@dataclass(frozen=True, slots=True)
class Read:
    """Read the Lease; the answer is the object, or None if there is none."""


Call = Read | LeaseWrite


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
    if isinstance(action, Follow):
        return replace(observed, leads_until=None, covers_from=None)
    asked_at = clock()
    written = yield action
    if lease is not None and action.body["spec"] == lease.get("spec"):
        # The wall clock stands still, so others cannot see this renewal and it prolongs nothing.
        return observed
    spec = (written or {}).get("spec") or action.body["spec"]
    return Observed(
        spec=spec,
        changed_at=clock(),
        leads_until=asked_at + timing.renew_deadline,
        transitions=spec.get("leaseTransitions") or 0,
        looked_at=asked_at,
        renewed_at=asked_at,
        covers_from=_covers_from(me, lease, observed, asked_at),
    )


def _covers_from(me: str, before: JSON | None, observed: Observed, asked_at: float) -> float:
    """
    From when on our renewals cover the time: without a gap while the record stays ours, else from the one before.

    Where somebody deleted the Lease, nobody knows what the record said last, and time is lost rather than answered for
    twice.
    """
    holder = (before.get("spec") or {}).get("holderIdentity") if before is not None else me
    if holder == me and observed.covers_from is not None:
        return observed.covers_from
    return min(asked_at, observed.renewed_at) if before is not None and observed.renewed_at is not None else asked_at


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
        self._namespace, self._name = namespace, name
        self._timing = timing or LeaseTiming()
        self._on_change = on_change
        self._clock = clock
        self._wall = wall
        # A round must end early enough for another to save the term.
        self._call_timeout = self._timing.renew_deadline / 2
        self._observed = Observed()  # replaced whole, so readers on other threads need no lock
        self._announced = False
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def token(self) -> int | None:
        """The number of the term (leaseTransitions) while leading, else None. Grows with every new leader."""
        observed = self._observed
        if observed.leads_until is None or self._clock() >= observed.leads_until:
            return None
        return observed.transitions

    def is_leader(self) -> bool:
        """Whether this process may decide, right now."""
        return self.token() is not None

    def covered(self) -> Covered | None:
        """The time that our renewals cover, or at which another's was; None where no record was seen."""
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
        self._observed = replace(self._observed, leads_until=None)
        self._announce()
        for _ in range(2):  # twice: a renewal that seemed lost may arrive in between
            try:
                self._give_back()
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
            # A renewal that ends after stop() must not bring the term back.
            self._observed = replace(after, leads_until=None) if self._stopping.is_set() else after
        self._announce()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self.tick()
            self._stopping.wait(self._timing.retry_period * (1.0 + 0.2 * random.random()))

    def _play(self, rounds: Generator[Call, JSON | None, Observed]) -> Observed:
        answer: JSON | None = None
        call = next(rounds)
        while True:
            answer = self._read() if isinstance(call, Read) else self._write(call)
            try:
                call = rounds.send(answer)
            except StopIteration as done:
                result: Any = done.value
                assert isinstance(result, Observed)
                return result

    def _give_back(self) -> None:
        lease = self._read()
        if lease is None or (lease.get("spec") or {}).get("holderIdentity") != self.identity:
            return
        self._kube.replace(self._path(), released(lease), timeout=self._call_timeout)
        log.info("lease released", extra={"lease": self._name})

    def _read(self) -> JSON | None:
        try:
            return self._kube.get(self._path(), timeout=self._call_timeout)
        except KubeNotFound:
            return None

    def _write(self, call: LeaseWrite) -> JSON:
        if call.verb == "replace":
            return self._kube.replace(self._path(), call.body, timeout=self._call_timeout)
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
