"""
Service levels: each pod is judged once, late at the moment when its time is over, and the number of names is limited.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from allocator.features.servicelevels.levels import (
    OTHERS,
    Levels,
    Names,
    ObservedWait,
    ServedPod,
    ServiceJudgement,
    Started,
    band,
)

WITHIN = 300.0


def waits(name: str = "a", *, created: float = 1000.0, held: bool = False, priority: int = 0) -> ObservedWait:
    return ObservedWait(name, "team", priority, created, held)


class Bench:
    """A clock, and pods that wait or hold a share."""

    def __init__(self, now: float = 1000.0) -> None:
        self.levels = Levels(WITHIN)
        self.now = now
        self.holders: set[str] = set()

    def look(self, *waiting: ObservedWait, holders: str = "", after: float = 0.0) -> list[Started | ServiceJudgement]:
        self.now += after
        self.holders |= set(holders)
        came = [ServedPod(uid, "team", 0) for uid in self.levels.new(self.holders)]
        return list(self.levels.look(waiting, self.holders, came, self.now))


def test_a_pod_that_waited_is_counted_with_its_time() -> None:
    bench = Bench()
    assert bench.look(waits()) == []
    assert bench.look(holders="a", after=42) == [Started("team", "normal", 42.0), ServiceJudgement(late=False)]
    assert bench.look(after=1) == []


def test_a_pod_that_was_placed_at_admission_counts_as_no_time() -> None:
    bench = Bench()
    assert bench.look() == []
    assert bench.look(holders="a", after=5) == [Started("team", "normal", 0.0), ServiceJudgement(late=False)]


def test_a_pod_is_late_when_its_time_is_over_and_once() -> None:
    bench = Bench()
    assert bench.look(waits()) == []
    assert bench.look(waits(), after=WITHIN) == []
    assert bench.look(waits(), after=1) == [ServiceJudgement(late=True)]
    assert bench.look(waits(), after=1000) == []
    assert bench.look(holders="a", after=1) == [Started("team", "normal", WITHIN + 1002)]


def test_a_pod_that_is_deleted_in_time_is_not_judged() -> None:
    bench = Bench()
    assert [bench.look(waits()), bench.look(after=9), bench.look(after=WITHIN)] == [[], [], []]


def test_a_pod_that_is_parked_meanwhile_is_late_once() -> None:
    bench = Bench()
    bench.look(waits())
    assert bench.look(waits(), after=WITHIN + 1) == [ServiceJudgement(late=True)]
    assert list(bench.levels.look((), (), (), bench.now + 5, lambda uid: True)) == []
    assert bench.look(waits(), after=10) == []
    assert bench.look(holders="a", after=1) == [Started("team", "normal", WITHIN + 12)]


def test_another_systems_gate_does_not_count() -> None:
    bench = Bench()
    assert bench.look(waits(held=True), after=2 * WITHIN) == []
    assert bench.look(waits(), after=1) == []
    assert bench.look(holders="a", after=7) == [Started("team", "normal", 7.0), ServiceJudgement(late=False)]


def test_a_new_leader_counts_nobody_twice() -> None:
    first = Bench()
    assert first.look(waits(created=1)) == []
    assert first.look(waits(created=1), after=1000) == []
    assert first.look(holders="b", after=1) == [Started("team", "normal", 0.0), ServiceJudgement(late=False)]
    second = Bench(now=5000)
    assert second.look(holders="b") == []
    second.levels.reset()
    assert second.look(holders="b", after=1) == []


def test_a_clock_that_is_behind_gives_no_negative_time() -> None:
    bench = Bench(now=900)
    assert bench.look(waits(created=1000)) == []
    assert bench.look(holders="a") == [Started("team", "normal", 0.0), ServiceJudgement(late=False)]


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 400)), min_size=1), st.booleans())
def test_a_pod_counts_for_the_time_in_which_no_other_gate_held_it(
    steps: list[tuple[bool, float]], placed: bool
) -> None:
    """A pod whose other gates come and go; a gate that comes back restarts the time."""
    bench = Bench()
    bench.look()
    found: list[Started | ServiceJudgement] = []
    since: float | None = None
    late = False
    for held, after in steps:
        bench.now += after
        since = None if held else bench.now if since is None else since
        found += bench.look(waits(held=held, created=bench.now))
        late |= since is not None and bench.now - since > WITHIN
    found += bench.look(holders="a" if placed else "", after=1)
    waited = bench.now - since if since is not None else 0.0
    times = [each.seconds for each in found if isinstance(each, Started)]
    assert times == ([waited] if placed else [])
    verdicts = [each for each in found if isinstance(each, ServiceJudgement)]
    expected = [ServiceJudgement(late=True)] if late else [ServiceJudgement(late=waited > WITHIN)] if placed else []
    assert verdicts == expected


def test_priorities_have_four_bands() -> None:
    assert [band(each) for each in (-5, 0, 1, 1_000_000_000, 2_000_000_000)] == [
        "low",
        "normal",
        "high",
        "high",
        "system",
    ]


def test_namespaces_beyond_the_bound_are_counted_together() -> None:
    names = Names(most=2)
    assert [names.shown(each) for each in ("a", "b", "c", "a", "d")] == ["a", "b", OTHERS, "a", OTHERS]
