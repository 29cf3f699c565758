"""Held and free time of cards, in any history, compared with a plain count of each card at each moment."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allocator.cache.ledger import CardsChanged, Change, ShareMoved, SharesIdle
from allocator.features.metering.meter import (
    MOST_MODELS,
    MOST_OF_NAMESPACE,
    OTHERS,
    Account,
    Counted,
    FreeAccount,
    Meter,
    Span,
)
from contract.model import WHOLE, Gpu
from contract.scheduling.demand import Demand
from tests.examples import examples

GIB = 1 << 30
MODELS = ("L4", "A100")


def gpu(uuid: str, model: str = "L4", memory: int = 16 * GIB, *, healthy: bool = True) -> Gpu:
    return Gpu(uuid, 0, model, memory, memory, healthy=healthy)


def usable(card: Gpu) -> int:
    return card.usable


def part_of(demand: Demand, card: Gpu) -> Fraction:
    if demand.exclusive:
        return Fraction(1)
    return min(Fraction(1), max(Fraction(demand.memory, card.usable), Fraction(demand.cores, WHOLE)))


@dataclass
class Oracle:
    """What is on the cards now, and which holder had what, added up whenever time passes."""

    cards: dict[tuple[str, str], Gpu] = field(default_factory=dict)
    shares: dict[tuple[str, str], dict[str, tuple[str, str, Demand]]] = field(
        default_factory=lambda: defaultdict[tuple[str, str], dict[str, tuple[str, str, Demand]]](dict)
    )
    held: dict[Account, Fraction] = field(default_factory=lambda: defaultdict[Account, Fraction](Fraction))
    free: dict[FreeAccount, Fraction] = field(default_factory=lambda: defaultdict[FreeAccount, Fraction](Fraction))
    idle: dict[Account, Fraction] = field(default_factory=lambda: defaultdict[Account, Fraction](Fraction))
    quiet: dict[str, frozenset[str]] = field(default_factory=dict)
    """The idle pods of each node."""
    wall: Fraction = Fraction(0)

    def take(self, change: Change) -> None:
        if isinstance(change, CardsChanged):
            for place in [place for place in self.cards if place[0] == change.node]:
                del self.cards[place]
            self.cards.update({(change.node, card.uuid): card for card in change.gpus})
        elif isinstance(change, SharesIdle):
            self.quiet[change.node] = frozenset(change.since)
        elif change.demand is None:
            self.shares[change.node, change.uuid].pop(change.key, None)
        else:
            self.shares[change.node, change.uuid][change.key] = (change.namespace, change.dialect, change.demand)

    def wait(self, seconds: Fraction) -> None:
        for place, card in self.cards.items():
            parts = {key: part_of(found[2], card) for key, found in self.shares[place].items()}
            whole = max(Fraction(1), sum(parts.values(), Fraction(0)))
            for key, (namespace, dialect, _) in self.shares[place].items():
                self.held[Account(namespace, card.model, dialect)] += seconds * parts[key] / whole
                if key in self.quiet.get(place[0], ()):
                    self.idle[Account(namespace, card.model, dialect)] += seconds * parts[key] / whole
            rest = 1 - sum(parts.values(), Fraction(0)) / whole
            self.free[FreeAccount(card.model, card.healthy)] += seconds * rest
            self.wall += seconds


DEMANDS = st.builds(
    Demand,
    st.sampled_from([0, GIB, 3 * GIB, 8 * GIB, 16 * GIB, 40 * GIB]),
    st.sampled_from([0, 10, 50, 90, 100]),
    st.sampled_from([False, False, False, True]),
)
MOVES = st.builds(
    ShareMoved,
    st.sampled_from(["a", "b"]),
    st.sampled_from(["0", "1"]),
    st.sampled_from(["p", "q", "r"]),
    st.sampled_from(["team-a", "team-b"]),
    st.sampled_from(["native", "kai"]),
    st.none() | DEMANDS,
)
CARDS = st.builds(
    gpu,
    st.sampled_from(["0", "1"]),
    st.sampled_from(MODELS),
    st.sampled_from([16 * GIB, 24 * GIB]),
    healthy=st.booleans(),
)
NODES = st.builds(
    CardsChanged, st.sampled_from(["a", "b"]), st.lists(CARDS, max_size=2, unique_by=lambda card: card.uuid).map(tuple)
)
IDLE = st.builds(SharesIdle, st.sampled_from(["a", "b"]), st.dictionaries(st.sampled_from("pqr"), st.just(0.0)))
STEPS = st.lists(st.tuples(st.integers(0, 30), MOVES | NODES | IDLE), max_size=25)


def happening(change: Change, at: float, before: float = 0.0) -> Change:
    """The change at this moment; idle pods have been idle since some earlier time."""
    return (
        SharesIdle(change.node, dict.fromkeys(change.since, at - before)) if isinstance(change, SharesIdle) else change
    )


def check(meter: Meter, oracle: Oracle) -> None:
    counted = meter.counted()
    assert sum(counted.held.values()) + sum(counted.free.values()) == pytest.approx(float(oracle.wall), abs=1e-6)
    for account, seconds in oracle.held.items():
        assert counted.held.get(account, 0.0) == pytest.approx(float(seconds), abs=0.02)
    for account, seconds in oracle.idle.items():
        assert counted.idle.get(account, 0.0) == pytest.approx(float(seconds), abs=0.02)
    for kind, seconds in oracle.free.items():
        assert counted.free.get(kind, 0.0) == pytest.approx(float(seconds), abs=0.02)
    assert all(seconds >= 0 for flows in (counted.held, counted.free) for seconds in flows.values())


@settings(max_examples=examples(40), deadline=None)
@given(steps=STEPS, batch=st.integers(1, 7))
def test_held_and_free_time_are_the_cards_time(steps: list[tuple[int, Change]], batch: int) -> None:
    """This holds however often the meter is asked, and however late it gets the changes."""
    meter, oracle, now = Meter(usable), Oracle(), 100
    meter.advance([], Span(100.0, 100.0))
    late: list[tuple[float, Change]] = []
    for number, (seconds, change) in enumerate(steps):
        oracle.wait(Fraction(seconds))
        now += seconds
        oracle.take(change)
        late.append((float(now), happening(change, float(now))))
        if number % batch == 0:
            meter.advance(late, Span(100.0, float(now)))
            late = []
            check(meter, oracle)
    oracle.wait(Fraction(5))
    meter.advance(late, Span(100.0, now + 5.0))
    check(meter, oracle)


@settings(max_examples=examples(40), deadline=None)
@given(
    steps=STEPS,
    ends=st.lists(st.integers(0, 200), max_size=3),
    starts=st.lists(st.integers(0, 250), min_size=4, max_size=4),
)
def test_of_several_replicas_exactly_one_counts_each_moment(
    steps: list[tuple[int, Change]], ends: list[int], starts: list[int]
) -> None:
    """
    Each leader counts from where the previous one stopped, whether it saw the changes in between, or started later and
    has only the times that pods and nodes report.
    """
    oracle, events, now = Oracle(), list[tuple[float, Change]](), 0
    for seconds, change in steps:
        oracle.wait(Fraction(seconds))
        now += seconds
        oracle.take(change)
        events.append((float(now), happening(change, float(now))))
    end = now + 7
    oracle.wait(Fraction(7))
    handovers = [0, *sorted({each for each in ends if each < end}), end]
    held, free = dict[Account, float](), dict[FreeAccount, float]()
    for leader, (since, until) in enumerate(itertools.pairwise(handovers)):
        replica = Meter(usable)
        began = min(starts[leader], until)
        replica.advance([each for each in events if each[0] < began], None)
        for heard in range(began, since, 3):
            # A follower receives changes as they happen, and learns about the leader's renewals.
            replica.advance([each for each in events if heard <= each[0] < heard + 3], Span(None, float(heard)))
        reported = max(began, began + -(-(since - began) // 3) * 3)
        replica.advance([each for each in events if reported <= each[0] <= until], Span(float(since), float(until)))
        counted = replica.counted()
        assert replica.answered() == pytest.approx(until - since)
        for account, share in counted.held.items():
            held[account] = held.get(account, 0.0) + share
        for kind, rest in counted.free.items():
            free[kind] = free.get(kind, 0.0) + rest
    assert sum(held.values()) + sum(free.values()) == pytest.approx(float(oracle.wall), abs=1e-6)
    for owner, exact in oracle.held.items():
        assert held.get(owner, 0.0) == pytest.approx(float(exact), abs=0.02)


@settings(max_examples=examples(40), deadline=None)
@given(steps=STEPS, before=st.integers(0, 100))
def test_no_more_is_idle_than_is_held_however_late_that_is_known(steps: list[tuple[int, Change]], before: int) -> None:
    meter, now = Meter(usable), 100.0
    meter.advance([], Span(100.0, 100.0))
    for seconds, change in steps:
        now += seconds
        meter.advance([(now, happening(change, now, float(before)))], Span(100.0, now))
        counted = meter.counted()
        for account, idle in counted.idle.items():
            assert -1e-9 <= idle <= counted.held.get(account, 0.0) + 1e-9


def move(key: str, demand: Demand | None, namespace: str = "team-a") -> ShareMoved:
    return ShareMoved("a", "0", key, namespace, "native", demand)


def held(meter: Meter, namespace: str = "team-a") -> float:
    return sum(seconds for account, seconds in meter.counted().held.items() if account.namespace == namespace)


def started() -> Meter:
    meter = Meter(usable)
    meter.advance([(0.0, CardsChanged("a", (gpu("0"),)))], Span(0.0, 0.0))
    return meter


def test_the_larger_of_memory_and_cores_is_held() -> None:
    meter = started()
    meter.advance([(0.0, move("p", Demand(4 * GIB, 50, False)))], Span(0.0, 10.0))
    assert held(meter) == 5.0
    assert meter.counted().free == {FreeAccount("L4", True): 5.0}


def test_shares_that_hold_more_than_the_card_together_count_for_less() -> None:
    meter = started()
    meter.advance(
        [(0.0, move("p", Demand(12 * GIB, 0, False))), (0.0, move("q", Demand(GIB, 75, False), "team-b"))],
        Span(0.0, 10.0),
    )
    assert (held(meter), held(meter, "team-b")) == (5.0, 5.0)


def test_a_follower_counts_nothing_and_has_its_accounts_at_zero() -> None:
    """So Prometheus has seen each account at zero before a new leader adds the time that nothing counted."""
    meter = Meter(usable)
    changes: list[tuple[float, Change]] = [
        (0.0, CardsChanged("a", (gpu("0"),))),
        (0.0, move("p", Demand(0, 50, False))),
    ]
    meter.advance(changes, Span(None, 50.0))
    assert meter.counted().held == {Account("team-a", "L4", "native"): 0.0}
    meter.advance([], Span(50.0, 60.0))
    assert held(meter) == 5.0


def test_a_pod_that_came_between_two_leaders_counts_from_its_own_time() -> None:
    meter = Meter(usable)
    changes: list[tuple[float, Change]] = [
        (-500.0, CardsChanged("a", (gpu("0"),))),
        (-400.0, move("p", Demand(0, 100, False))),
        (93.0, move("q", Demand(0, 0, True), "team-b")),
        (96.0, move("p", None)),
    ]
    meter.advance(changes, Span(90.0, 100.0))
    assert (held(meter), held(meter, "team-b")) == (3.0 + 1.5, 1.5 + 4.0)


def test_a_share_that_moved_is_not_ended_by_its_earlier_end() -> None:
    """The new share may report a time before the end of the old one was seen."""
    meter = started()
    meter.advance([(0.0, move("p", Demand(0, 100, False)))], Span(0.0, 10.0))
    meter.advance([(15.0, move("p", None)), (12.0, move("p", Demand(0, 50, False)))], Span(0.0, 20.0))
    assert held(meter) == 10.0 + 2.0 + 4.0


def test_idle_time_before_the_report_counts_from_when_this_replica_counts() -> None:
    meter = started()
    meter.advance([(5.0, move("p", Demand(0, 50, False)))], Span(0.0, 70.0))
    meter.advance([(80.0, SharesIdle("a", {"p": 20.0}))], Span(0.0, 80.0))
    assert list(meter.counted().idle.values()) == [30.0]
    meter.advance([(90.0, SharesIdle("a", {}))], Span(0.0, 100.0))
    assert list(meter.counted().idle.values()) == [35.0]
    follower = Meter(usable)
    changes: list[tuple[float, Change]] = [
        (0.0, CardsChanged("a", (gpu("0"),))),
        (0.0, move("p", Demand(0, 50, False))),
    ]
    follower.advance(changes, Span(None, 70.0))
    follower.advance([(80.0, SharesIdle("a", {"p": 20.0}))], Span(70.0, 80.0))
    assert list(follower.counted().idle.values()) == [5.0]


def test_accounts_are_bounded_and_end() -> None:
    meter = Meter(usable, most=3)
    changes: list[tuple[float, Change]] = [(0.0, CardsChanged("a", (gpu("0"),)))]
    changes += [(0.0, move(f"p{n}", Demand(0, 10, False), f"team-{n}")) for n in range(6)]
    meter.advance(changes, Span(0.0, 10.0))
    assert held(meter, OTHERS) == 3.0
    assert len(meter.counted().held) == 4
    meter.advance([(10.0, move(f"p{n}", None)) for n in range(6)], Span(0.0, 20.0))
    assert held(meter, OTHERS) == 3.0
    meter.advance([], Span(0.0, 4000.0))
    assert meter.counted().held == {}


def test_a_removed_card_counts_for_nobody_until_it_is_back() -> None:
    meter = started()
    meter.advance([(0.0, move("p", Demand(0, 100, False)))], Span(0.0, 10.0))
    meter.advance([(10.0, CardsChanged("a", ()))], Span(0.0, 20.0))
    meter.advance([(20.0, CardsChanged("a", (gpu("0", "A100"),)))], Span(0.0, 25.0))
    assert meter.counted().held == {Account("team-a", "L4", "native"): 10.0, Account("team-a", "A100", "native"): 5.0}


# -- the number of accounts ---------------------------------------------------------------------------------------


def held_by(number: int, *, namespace: str, dialect: str = "native") -> tuple[CardsChanged, ShareMoved]:
    """A separate node with a card that a pod of the namespace holds."""
    node = f"{namespace}-{number}"
    share = ShareMoved(node, "GPU-0", f"{namespace}-{number}", namespace, dialect, Demand(16 * GIB, 0, exclusive=False))
    return CardsChanged(node, (gpu("GPU-0"),)), share


def after_a_second(meter: Meter, changes: Iterable[Change], at: float = 0.0) -> Counted:
    meter.advance([(at, change) for change in changes], Span(None, at))
    meter.advance([], Span(at, at + 1))
    return meter.counted()


@settings(max_examples=examples(10), deadline=None)
@given(dialects=st.sets(st.integers(0, 60), min_size=1), before=st.sampled_from((0, 1, 500, 1_000)))
def test_whatever_a_namespace_and_a_node_make_up_others_have_their_series(dialects: set[int], before: int) -> None:
    theirs, its = list[Change](), list[Change]()
    for at in range(400):
        theirs += held_by(at, namespace="attacker", dialect=f"d{at}")
        theirs.append(CardsChanged("bad", (gpu("GPU-0", f"made up {at}"),)))
    its.append(CardsChanged("good", (gpu("GPU-1", "H100"),)))
    for dialect in dialects:
        its += held_by(dialect, namespace="victim", dialect=f"d{dialect}")
    alone, beside = (
        after_a_second(Meter(usable, most=MOST_OF_NAMESPACE + 61), changes)
        for changes in (its, [*theirs[:before], *its, *theirs[before:]])
    )
    assert {account: beside.held.get(account) for account in alone.held} == alone.held
    assert {account: beside.free.get(account) for account in alone.free} == alone.free
    made_up = {account: seconds for account, seconds in beside.held.items() if account.namespace == "attacker"}
    assert (len(made_up), sum(made_up.values())) == (MOST_OF_NAMESPACE, 400.0), "the rest of them in one account"
    assert Account("attacker", OTHERS, OTHERS) in made_up
    assert len([account for account in beside.free if account.model.startswith("made up")]) == MOST_MODELS


def test_a_namespace_gets_series_again_an_hour_after_the_made_up_ones_ended() -> None:
    meter = Meter(usable)
    made_up = [held_by(at, namespace="team", dialect=f"d{at}") for at in range(300)]
    after_a_second(meter, [change for pair in made_up for change in pair])
    ended = [share._replace(demand=None) for _, share in made_up]
    after_a_second(meter, ended, at=1.0)
    after_a_second(meter, [], at=4_000.0)
    found = after_a_second(meter, held_by(0, namespace="team", dialect="kai"), at=8_000.0).held
    assert found == {Account("team", "L4", "kai"): 1.0}
