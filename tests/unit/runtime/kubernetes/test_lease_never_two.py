"""
Two replicas never lead at once, however calls are delayed, lost or answered late, however clocks are set, and whatever
other users write into the Lease.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.kubernetes.client import JSON, KubeConflict, KubeError, KubeTimeout
from runtime.kubernetes.lease import (
    LONGEST,
    Call,
    FirstAfter,
    LeaseTiming,
    LeaseWrite,
    Observed,
    Read,
    campaign,
    released,
)
from tests.examples import examples

# A smaller margin than in production, just wide enough for clocks that differ by a fifth.
TIMING = LeaseTiming(lease_duration=15.0, renew_deadline=12.0)
CALL_TIMEOUT = 5.0
CHAOS = 150.0  # seconds of faults, then quiet
CALM = 120.0


class World:
    """Real time, an API server that holds one Lease, and a network that loses and delays."""

    def __init__(self, rng: random.Random, trouble: float, restarts: float | None = None) -> None:
        self.now = 0.0
        self.rng = rng
        self.trouble = trouble
        self.restarts = trouble / 10 if restarts is None else restarts
        self.agenda: list[tuple[float, int, Callable[[], None]]] = []
        self.lease: JSON | None = None
        self.version = 0
        self.made = 0
        self.history: list[tuple[int, JSON | None]] = []
        self.records: list[JSON] = []
        self.sequence = 0

    def after(self, seconds: float, do: Callable[[], None]) -> None:
        self.sequence += 1
        heapq.heappush(self.agenda, (self.now + seconds, self.sequence, do))

    def run(self, until: float) -> None:
        while self.agenda and self.agenda[0][0] <= until:
            self.now, _, do = heapq.heappop(self.agenda)
            do()
        self.now = until

    def delay(self) -> float:
        """Mostly short delays; during faults up to longer than a whole lease."""
        if self.now < CHAOS and self.rng.random() < self.trouble:
            return self.rng.uniform(0, 25)
        return self.rng.uniform(0, 0.2)

    def lost(self) -> bool:
        return self.now < CHAOS and self.rng.random() < self.trouble / 3

    def serve(self, call: Call) -> JSON | KubeError | None:
        if isinstance(call, Read):
            return self.lease
        if isinstance(call, FirstAfter):
            return next((then for number, then in self.history[int(call.since) :] if number > int(call.since)), None)
        if call.verb == "create":
            if self.lease is not None:
                return KubeConflict("taken", status=409, reason="AlreadyExists")
            return self.store(call.body)
        if self.lease is None or version_of(call.body) != version_of(self.lease):
            return KubeConflict("moved on", status=409, reason="Conflict")
        return self.store(call.body)

    def store(self, body: JSON | None) -> JSON | None:
        """Write or delete the Lease, as an API server does. A write without a change creates no version."""
        if body is not None:
            if self.lease is None:
                self.made += 1
            was = self.lease["metadata"] if self.lease else {"uid": str(self.made), "resourceVersion": ""}
            kept = {key: was[key] for key in ("uid", "resourceVersion")}
            body = {**body, "metadata": {**(body.get("metadata") or {}), **kept}}
            if body == self.lease:
                return body
            body["metadata"]["resourceVersion"] = str(self.version + 1)
            self.records.append(body)
        self.version += 1
        self.lease = body
        self.history.append((self.version, body))
        return body


Edit = Callable[[random.Random, JSON, list[JSON]], JSON | None]
"""What another user changes it to, given all records so far; None deletes it."""


def version_of(lease: JSON) -> tuple[str, str]:
    return lease["metadata"]["uid"], lease["metadata"]["resourceVersion"]


def of_spec(**fields: list[object]) -> Edit:
    """Overwrite fields of the record, each with one of these values; `...` removes it."""

    def edit(rng: random.Random, lease: JSON, _: list[JSON]) -> JSON:
        spec = dict(lease["spec"])
        for name, values in fields.items():
            value = rng.choice(values)
            spec.pop(name, None)
            if value is not ...:
                spec[name] = value
        return {**lease, "spec": spec}

    return edit


def of_backup(rng: random.Random, lease: JSON, before: list[JSON]) -> JSON:
    """Restore an earlier record, with its annotations."""
    return rng.choice(before)


def last_release(rng: random.Random, lease: JSON, before: list[JSON]) -> JSON:
    """Restore a real release: the most recent one, or any."""
    given = [each for each in before if each["metadata"].get("annotations") and not each["spec"].get("holderIdentity")]
    return lease if not given else given[-1] if rng.random() < 0.7 else rng.choice(given)


def other_holder(rng: random.Random, lease: JSON, before: list[JSON]) -> JSON:
    """Name any candidate that ever held it."""
    name = rng.choice([rng.choice(before)["spec"].get("holderIdentity", ""), "nobody"])
    return {**lease, "spec": {**lease["spec"], "holderIdentity": name}}


def labelled(rng: random.Random, lease: JSON, _: list[JSON]) -> JSON:
    return {**lease, "metadata": {**lease["metadata"], "labels": {"n": str(rng.random())}}}


def nothing(rng: random.Random, lease: JSON, _: list[JSON]) -> JSON:
    return {**lease, "spec": {}}


DAMAGE: dict[str, Edit] = {
    "deleted": lambda rng, lease, before: None,
    "emptied": of_spec(holderIdentity=["", ...]),
    "emptied as by a release": of_spec(holderIdentity=[""], leaseDurationSeconds=[1]),
    "duration": of_spec(leaseDurationSeconds=[0, 1, -5, 10**9, 2**31 - 1, True, "15", 1.5, ...]),
    "transitions": of_spec(leaseTransitions=[0, 1, -1, 2**31 - 1, 2**31, "3", True, ...]),
    "times": of_spec(
        acquireTime=["", "yesterday", 5, ...], renewTime=["", "2001-01-01T00:00:00.000000Z", "9999-01-01", 7, ...]
    ),
    "restored": of_backup,
    "release restored": last_release,
    "another holder": other_holder,
    "labelled": labelled,
    "no record": nothing,
}


@dataclass
class Editor:
    """Another user who writes the Lease at any moment, once or several times in a row."""

    world: World
    kinds: list[str]
    every: float

    def begin(self) -> None:
        world = self.world
        if world.now >= CHAOS:
            return
        for _ in range(world.rng.choice((1, 1, 1, 2, 3))):
            self.edit(DAMAGE[world.rng.choice(self.kinds)])
        world.after(world.rng.expovariate(1 / self.every), self.begin)

    def edit(self, damage: Edit) -> None:
        world = self.world
        before = world.records
        if not before:
            return
        if world.rng.random() < 0.2:
            world.store(None)
        # A backup or an edit of a missing Lease creates it again, as `kubectl replace --force` does.
        now = world.lease if world.lease is not None else before[-1]
        made = damage(world.rng, now, before)
        if made is not None or world.lease is not None:
            world.store(made)


@dataclass
class Candidate:
    """Runs `campaign` in the world as `Leader` does, on a clock that is wrong and drifts."""

    world: World
    peers: list[Candidate]
    name: str
    offset: float
    rate: float
    frozen: bool = False
    honest: bool = False
    """Whether it writes the correct time into the record."""
    observed: Observed = field(default_factory=Observed)
    incarnation: int = 0
    tenures: int = 0
    terms: list[tuple[int, int]] = field(default_factory=list)
    """The terms that it led in, by the process and its number."""
    covered: list[tuple[float, float]] = field(default_factory=list)
    """The time that it counted, in real time."""
    until: float = float("-inf")

    def clock(self) -> float:
        return self.offset + self.rate * self.world.now

    def wall(self) -> str:
        if self.honest:
            return datetime.fromtimestamp(self.world.now, UTC).isoformat()
        return "stands still" if self.frozen else f"{self.clock():.6f}"

    def leads(self) -> bool:
        return self.observed.leads_until is not None and self.clock() < self.observed.leads_until

    def identity(self) -> str:
        return f"{self.name}_{self.incarnation}"

    def begin(self) -> None:
        rounds = campaign(self.identity(), self.observed, timing=TIMING, clock=self.clock, wall=self.wall)
        self.ask(rounds, next(rounds))

    def ask(self, rounds: Generator[Call, JSON | None, Observed], call: Call) -> None:
        """The call may reach the server late, even after the candidate gave up, and its answer may be lost."""
        world, waiting = self.world, [True]

        def arrive() -> None:
            answer = world.serve(call)
            if not world.lost():
                world.after(world.delay(), lambda: finish(answer))

        def finish(answer: JSON | KubeError | None) -> None:
            if waiting:
                waiting.clear()
                self.proceed(rounds, answer)

        if not world.lost():
            world.after(world.delay(), arrive)
        world.after(CALL_TIMEOUT / self.rate, lambda: finish(KubeTimeout("no answer")))

    def proceed(self, rounds: Generator[Call, JSON | None, Observed], answer: JSON | KubeError | None) -> None:
        try:
            call = rounds.throw(answer) if isinstance(answer, KubeError) else rounds.send(answer)
            # A stalled process: the answer has arrived, but is not read for a while.
            self.world.after(self.world.delay() / 4, lambda: self.ask(rounds, call))
            return
        except KubeError:
            pass
        except StopIteration as done:
            self.observed = done.value
            self.check()
        self.next_round()

    def cover(self) -> None:
        since, until = self.observed.covers_from, self.observed.renewed_at
        if since is None or until is None or until <= max(since, self.until):
            return
        self.covered.append(((max(since, self.until) - self.offset) / self.rate, (until - self.offset) / self.rate))
        self.until = until

    def check(self) -> None:
        self.cover()
        if self.leads():
            self.tenures += 1
            term = (self.incarnation, self.observed.term)
            if self.terms[-1:] != [term]:
                self.terms.append(term)
            others = [peer.name for peer in self.peers if peer is not self and peer.leads()]
            assert others == [], f"{self.name} began at {self.world.now} while {others} lead"

    def next_round(self) -> None:
        if self.world.now < CHAOS and self.world.rng.random() < self.world.restarts:
            self.restart()
        self.world.after(TIMING.retry_period / self.rate, self.begin)

    def restart(self) -> None:
        """Stop leading, perhaps release, and come back as a new candidate that has seen nothing."""
        held, self.observed = self.observed, replace(self.observed, leads_until=None)
        lease, me = self.world.lease, self.identity()
        given = None if lease is None else released(lease, me, held, now=self.clock())
        if self.world.rng.random() < 0.5 and given is not None:
            write = LeaseWrite("replace", given)
            self.world.after(self.world.delay(), lambda: self._deliver(write))
        self.incarnation += 1
        self.observed, self.until = Observed(), float("-inf")

    def _deliver(self, write: LeaseWrite) -> None:
        self.world.serve(write)


@settings(max_examples=examples(60), deadline=None)
@given(
    seed=st.integers(0, 2**32),
    trouble=st.floats(0, 1),
    clocks=st.lists(
        st.tuples(st.floats(-1e6, 1e6), st.floats(0.9, 1.1)),
        min_size=2,
        max_size=3,
    ),
    frozen=st.booleans(),
)
def test_never_two_leaders_and_one_in_the_end(
    seed: int, trouble: float, clocks: list[tuple[float, float]], frozen: bool
) -> None:
    world = World(random.Random(seed), trouble)
    peers: list[Candidate] = []
    for index, (offset, rate) in enumerate(clocks):
        peers.append(Candidate(world, peers, f"c{index}", offset, rate, frozen=frozen and index == 0))
    for peer in peers:
        world.after(world.delay(), peer.begin)
    world.run(CHAOS + CALM)
    assert [peer.leads() for peer in peers].count(True) == 1 or frozen
    assert world.lease is not None
    holder = world.lease["spec"]["holderIdentity"]
    assert [peer.identity() for peer in peers if peer.leads()] in ([holder], [])


@settings(max_examples=examples(60), deadline=None)
@given(
    seed=st.integers(0, 2**32),
    trouble=st.floats(0, 0.6),
    clocks=st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(0.9, 1.1)), min_size=2, max_size=3),
    kinds=st.lists(st.sampled_from(sorted(DAMAGE)), min_size=1, max_size=4, unique=True),
    every=st.sampled_from((1.0, 3.0, 12.0, 20.0)),
    honest=st.booleans(),
)
def test_never_two_leaders_whatever_others_write_into_the_lease(
    seed: int, trouble: float, clocks: list[tuple[float, float]], kinds: list[str], every: float, honest: bool
) -> None:
    world = World(random.Random(seed), trouble, restarts=0.05)
    peers: list[Candidate] = []
    for index, (offset, rate) in enumerate(clocks):
        peers.append(Candidate(world, peers, f"c{index}", offset, rate, honest=honest))
    for peer in peers:
        world.after(world.delay(), peer.begin)
    world.after(world.rng.uniform(0, 30), Editor(world, kinds, every).begin)
    world.run(CHAOS + (LONGEST / 0.9 if "duration" in kinds else 0) + CALM)
    assert [peer.leads() for peer in peers].count(True) == 1


@pytest.mark.parametrize("kind", DAMAGE)
def test_leaders_change_and_terms_grow_under_each_kind_of_edit(kind: str) -> None:
    """
    Guards the test itself: candidates do lead between the edits, and no process uses one number for two of its terms.
    """
    led = 0
    for seed in range(5):
        world = World(random.Random(seed), 0.1, restarts=0.05)
        peers: list[Candidate] = []
        for index in range(2):
            peers.append(Candidate(world, peers, f"c{index}", index * 1000.0, 1.0))
        for peer in peers:
            peer.begin()
        world.after(20.0, Editor(world, [kind], 25.0).begin)
        world.run(CHAOS + CALM)
        assert [peer.terms for peer in peers] == [sorted(set(peer.terms)) for peer in peers]
        led += sum(len(peer.terms) for peer in peers)
    assert led >= 10


def test_the_simulation_does_change_leaders() -> None:
    """Guards the test itself: during faults, every candidate gets its turn."""
    tenures = [0, 0, 0]
    for seed in range(20):
        world = World(random.Random(seed), 0.3)
        peers: list[Candidate] = []
        for index in range(3):
            peers.append(Candidate(world, peers, f"c{index}", index * 1000.0, 1.0))
        for peer in peers:
            peer.begin()
        world.run(CHAOS)
        tenures = [count + peer.tenures for count, peer in zip(tenures, peers, strict=True)]
    assert min(tenures) > 10


def covered(
    seed: int, trouble: float, offsets: list[float], *, honest: bool = True, restarts: float | None = None
) -> tuple[World, list[Candidate]]:
    """
    The candidates after faults and quiet. Their clocks differ, and the times that they write are correct or absent.
    """
    world = World(random.Random(seed), trouble, restarts)
    peers: list[Candidate] = []
    for index, offset in enumerate(offsets):
        peers.append(Candidate(world, peers, f"c{index}", offset, 1.0, honest=honest))
    for peer in peers:
        world.after(world.delay(), peer.begin)
    world.run(CHAOS + CALM)
    return world, peers


@settings(max_examples=examples(40), deadline=None)
@given(
    seed=st.integers(0, 2**32),
    trouble=st.floats(0, 1),
    offsets=st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=3),
    honest=st.booleans(),
)
def test_no_moment_is_answered_for_twice(seed: int, trouble: float, offsets: list[float], honest: bool) -> None:
    _, peers = covered(seed, trouble, offsets, honest=honest)
    spans = sorted(span for peer in peers for span in peer.covered)
    overlaps = [(one, other) for one, other in pairwise(spans) if other[0] < one[1] - 1e-4]
    assert overlaps == []


def test_every_moment_is_answered_for_where_calls_are_answered() -> None:
    """
    This also holds if leaders release the lease, or end without a release and the next one waits for it to expire.
    """
    led = list[int]()
    for seed in range(20):
        world, peers = covered(seed, 0.0, [0.0, 1000.0, -1000.0], restarts=0.05)
        spans = sorted(span for peer in peers for span in peer.covered)
        led += [sum(bool(peer.covered) for peer in peers)]
        # From the moment when the first candidate that still runs sees the new Lease.
        assert spans[0][0] < TIMING.lease_duration
        assert spans[-1][1] > world.now - 3 * TIMING.retry_period
        # At most the time of two calls is lost: a renewal that was in progress when the next one looked.
        assert max(other[0] - one[1] for one, other in pairwise(spans)) < 0.4
    assert sum(led) > 1.5 * len(led), "leaders change"
