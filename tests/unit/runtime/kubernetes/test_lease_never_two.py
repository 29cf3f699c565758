"""However calls are delayed, lost or answered late, and however clocks are set, two never lead at once."""

from __future__ import annotations

import copy
import heapq
import random
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.kubernetes.client import JSON, KubeConflict, KubeError, KubeTimeout
from runtime.kubernetes.lease import Call, LeaseTiming, LeaseWrite, Observed, Read, campaign, released

# A thinner margin than production's, just wide enough for clocks that differ by a fifth.
TIMING = LeaseTiming(lease_duration=15.0, renew_deadline=12.0)
CALL_TIMEOUT = 5.0
CHAOS = 150.0  # seconds of trouble, then calm
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
        """Mostly quick; in trouble up to longer than a whole lease."""
        if self.now < CHAOS and self.rng.random() < self.trouble:
            return self.rng.uniform(0, 25)
        return self.rng.uniform(0, 0.2)

    def lost(self) -> bool:
        return self.now < CHAOS and self.rng.random() < self.trouble / 3

    def serve(self, call: Call) -> JSON | KubeError | None:
        if isinstance(call, Read):
            return copy.deepcopy(self.lease)
        if call.verb == "create":
            if self.lease is not None:
                return KubeConflict("taken", status=409, reason="AlreadyExists")
        elif self.lease is None or call.body["metadata"] != self.lease["metadata"]:
            return KubeConflict("moved on", status=409, reason="Conflict")
        self.version += 1
        self.lease = {**copy.deepcopy(call.body), "metadata": {"resourceVersion": str(self.version)}}
        return copy.deepcopy(self.lease)


@dataclass
class Candidate:
    """Plays `campaign` against the world as `Leader` does, on a clock that is off and runs off."""

    world: World
    peers: list[Candidate]
    name: str
    offset: float
    rate: float
    frozen: bool = False
    honest: bool = False
    """Whether it writes the right time into the record."""
    observed: Observed = field(default_factory=Observed)
    incarnation: int = 0
    tenures: int = 0
    covered: list[tuple[float, float]] = field(default_factory=list)
    """The time that it answered for, in real time."""
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
        """The call may reach the server late, even after we gave up, and its answer may be lost."""
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
            if isinstance(answer, KubeError):
                rounds.throw(answer)
            else:
                call = rounds.send(answer)
                # A stalled process: the answer is here, but nobody looks at it for a while.
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
            others = [peer.name for peer in self.peers if peer is not self and peer.leads()]
            assert others == [], f"{self.name} began at {self.world.now} while {others} lead"

    def next_round(self) -> None:
        if self.world.now < CHAOS and self.world.rng.random() < self.world.restarts:
            self.restart()
        self.world.after(TIMING.retry_period / self.rate, self.begin)

    def restart(self) -> None:
        """Stop leading, perhaps release, and come back as somebody new who has seen nothing."""
        self.observed = replace(self.observed, leads_until=None)
        lease, me = copy.deepcopy(self.world.lease), self.identity()
        if self.world.rng.random() < 0.5 and lease is not None and lease["spec"]["holderIdentity"] == me:
            write = LeaseWrite("replace", released(lease))
            self.world.after(self.world.delay(), lambda: self._deliver(write))
        self.incarnation += 1
        self.observed, self.until = Observed(), float("-inf")

    def _deliver(self, write: LeaseWrite) -> None:
        self.world.serve(write)


@settings(max_examples=200, deadline=None)
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


def test_the_simulation_does_change_leaders() -> None:
    """Guards the guard: in trouble, every candidate gets its turn."""
    tenures = [0, 0, 0]
    for seed in range(10):
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
    """The candidates after trouble and calm; their clocks differ, and the times that they write are right or absent."""
    world = World(random.Random(seed), trouble, restarts)
    peers: list[Candidate] = []
    for index, offset in enumerate(offsets):
        peers.append(Candidate(world, peers, f"c{index}", offset, 1.0, honest=honest))
    for peer in peers:
        world.after(world.delay(), peer.begin)
    world.run(CHAOS + CALM)
    return world, peers


@settings(max_examples=100, deadline=None)
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
    """Also where leaders give the lease back, or end without a word and the next one waits for it to run out."""
    led = list[int]()
    for seed in range(20):
        world, peers = covered(seed, 0.0, [0.0, 1000.0, -1000.0], restarts=0.05)
        spans = sorted(span for peer in peers for span in peer.covered)
        led += [sum(bool(peer.covered) for peer in peers)]
        assert sum(until - since for since, until in spans) > world.now - 3 * TIMING.retry_period
        assert max(other[0] - one[1] for one, other in pairwise(spans)) < 1e-4
    assert sum(led) > 1.5 * len(led), "leaders change"
