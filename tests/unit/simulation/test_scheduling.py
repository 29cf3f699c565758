"""
Which task is next, when time continues, and what happens to hosts that are killed, paused or have their own clocks.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.simulation.kernel.scheduler import SECOND, TURN, Deadlock, Host, Kernel
from tests.unit.simulation.staged import HOUR, answer, datetime, fresh, kernels, random, staged, threading, time, uuid

# -- turns and time ---------------------------------------------------------------------------------------------------


@given(kernels, st.lists(st.integers(1, 50), min_size=1, max_size=12, unique=True))
def test_sleepers_wake_in_the_order_of_their_times(kernel: Kernel, milliseconds: list[int]) -> None:
    woken: list[tuple[int, int]] = []

    def sleeper(span: int) -> None:
        time.sleep(span / 1000)
        woken.append((span, kernel.now))

    staged(kernel, *(lambda span=span: sleeper(span) for span in milliseconds))
    assert [span for span, _ in woken] == sorted(milliseconds)
    turns = 2 * len(milliseconds) * TURN
    assert all(0 <= now - span * SECOND // 1000 <= turns for span, now in woken)


def test_time_jumps_where_nobody_can_run() -> None:
    kernel = fresh()
    staged(kernel, lambda: time.sleep(3000))
    assert (kernel.turns, kernel.now // SECOND) == (2, 3000)


def test_the_order_among_those_that_are_ready_is_of_the_seed() -> None:
    def order(seed: int) -> tuple[list[int], int]:
        kernel, found = fresh(seed), list[int]()
        staged(kernel, *(lambda n=n: found.append(n) for n in range(5)))
        return found, kernel.trace

    seen = [order(seed) for seed in range(40)]
    assert seen == [order(seed) for seed in range(40)]
    assert len({tuple(found) for found, _ in seen}) > 20
    assert len({trace for _, trace in seen}) > 20


def test_a_task_less_leaves_the_numbers_of_others_alone() -> None:
    def drawn(names: str) -> dict[str, float]:
        kernel, found = fresh(), dict[str, float]()
        host = Host("host", 1)
        for name in names:
            kernel.spawn(host, lambda name=name: found.update({name: random.random()}), name)  # type: ignore[misc]
        kernel.run(HOUR, lambda: len(found) == len(names))
        return found

    assert drawn("abc") == {**drawn("ac"), "b": drawn("b")["b"]}


def test_checkpoints_and_the_record_tell_the_turns() -> None:
    kernel = fresh()
    kernel.effects, kernel.recorded = lambda: 7, range(1999, 2002)

    def busy() -> None:
        for _ in range(1100):
            time.sleep(0)

    staged(kernel, busy, busy)
    assert [(each.turns, each.now, each.effects) for each in kernel.checkpoints] == [
        (1000, 1000 * TURN, 7),
        (2000, 2000 * TURN, 7),
    ]
    assert len({each.trace for each in kernel.checkpoints}) == 2
    assert [each.number for each in kernel.record] == [1999, 2000, 2001]
    assert {each.task for each in kernel.record} <= {"host/task-0", "host/task-1"}


def test_what_a_task_raises_goes_to_failed() -> None:
    kernel, failed = fresh(), list[str]()
    kernel.failed = lambda task, error: failed.append(f"{task.name}: {error!r}")
    staged(kernel, lambda: 1 // 0)
    assert failed == ["host/task-0: ZeroDivisionError('integer division or modulo by zero')"]


# -- the end of all turns ---------------------------------------------------------------------------------------------


def _waits_for_what_nobody_sets() -> None:
    threading.Event().wait()


def test_a_deadlock_names_the_stack_of_each_task() -> None:
    one, other = threading.Lock(), threading.Lock()

    def first() -> None:
        with one:
            time.sleep(1)
            other.acquire()

    def second() -> None:
        with other:
            time.sleep(1)
            one.acquire()

    with pytest.raises(Deadlock) as dead:
        staged(fresh(), first, second, _waits_for_what_nobody_sets)
    told = str(dead.value)
    for text in ("host/task-0:", "host/task-1:", "host/task-2:", "other.acquire()", "one.acquire()", "Event().wait()"):
        assert text in told


def test_stacks_show_the_task_whose_turn_it_is() -> None:
    kernel = fresh()

    def looks() -> str:
        return kernel.stacks()

    told = answer(kernel, looks)
    assert "host/task-0, whose turn it is:" in told
    assert "return kernel.stacks()" in told


# -- killed and paused ------------------------------------------------------------------------------------------------


def _works(done: list[str], name: str) -> Callable[[], None]:
    def run() -> None:
        try:
            for number in itertools.count():
                time.sleep(1)
                done.append(f"{name} {number}")
        finally:
            done.append(f"{name} ends")

    return run


def test_nothing_of_a_killed_host_runs_again() -> None:
    kernel, done = fresh(), list[str]()
    doomed, other = Host("doomed", 1), Host("other", 1)
    tasks = [kernel.spawn(doomed, _works(done, f"doomed-{n}"), "main") for n in range(3)]
    kernel.spawn(other, _works(done, "other"), "main")
    kernel.run(int(1.5 * SECOND))
    doomed.alive = False
    kernel.run(4 * SECOND)
    assert sorted(done) == ["doomed-0 0", "doomed-1 0", "doomed-2 0", "other 0", "other 1", "other 2"]
    assert not any(task.done for task in tasks)


Wait = tuple[Callable[[], object], Callable[[], object]]


def _lock() -> Wait:
    lock = threading.Lock()
    lock.acquire()
    return lock.acquire, lock.release


def _semaphore() -> Wait:
    semaphore = threading.Semaphore(0)
    return semaphore.acquire, semaphore.release


WAITS = {"a lock": _lock, "a semaphore": _semaphore}
"""Each kind of wait, and what ends it."""


@pytest.mark.parametrize("make", WAITS.values(), ids=WAITS.keys())
@pytest.mark.parametrize("seed", range(6))
def test_a_turn_that_a_killed_host_was_given_goes_to_another(seed: int, make: Callable[[], Wait]) -> None:
    """The killed task waits first, is woken, and is killed before its turn."""
    kernel = fresh(seed)
    wait, end = make()
    doomed, other = Host("doomed", 1), Host("other", 1)
    kernel.spawn(doomed, wait, "main")
    kernel.run(SECOND // 10, lambda: kernel.turns == 1)
    waiting = kernel.spawn(other, wait, "main")
    kernel.run(SECOND // 10, lambda: kernel.turns == 2)

    def ends() -> None:
        end()
        doomed.alive = False

    kernel.spawn(other, ends, "ends")
    kernel.run(SECOND, lambda: waiting.done)
    assert waiting.done


def test_a_paused_host_goes_on_where_it_was() -> None:
    kernel, done = fresh(), list[str]()
    paused, other = Host("paused", 1), Host("other", 1)
    kernel.spawn(paused, _works(done, "paused"), "main")
    kernel.spawn(other, _works(done, "other"), "main")
    kernel.run(int(1.5 * SECOND))
    kernel.pause(paused, 3.0)
    kernel.run(int(4.4 * SECOND))
    assert [each for each in done if each.startswith("paused")] == ["paused 0"]
    kernel.run(int(4.6 * SECOND))
    assert [each for each in done if each.startswith("paused")] == ["paused 0", "paused 1"]
    assert "other 3" in done


def test_a_wait_that_ends_in_a_pause_keeps_its_result() -> None:
    kernel = fresh()
    paused, other = Host("paused", 1), Host("other", 1)
    early, late = threading.Semaphore(0), threading.Semaphore(0)
    found: list[tuple[bool, bool, int]] = []

    def waits() -> None:
        found.append((early.acquire(timeout=2), late.acquire(timeout=0.5), kernel.now // SECOND))

    def sets() -> None:
        time.sleep(1)
        kernel.pause(paused, 10)
        early.release()
        time.sleep(10.8)
        late.release()

    kernel.spawn(paused, waits, "waits")
    kernel.spawn(other, sets, "sets")
    kernel.run(HOUR, lambda: bool(found))
    assert found == [(True, False, 11)]


# -- clocks -----------------------------------------------------------------------------------------------------------


def _clocks_after_ten_seconds(host: Host) -> tuple[float, float, float]:
    """How far the monotonic clock and the wall clock advance during a sleep of ten seconds, and virtual time."""
    kernel, found = fresh(), list[tuple[float, float, float]]()

    def look() -> None:
        before = (time.monotonic(), time.time(), kernel.seconds())
        time.sleep(10)
        after = (time.monotonic(), time.time(), kernel.seconds())
        found.append(tuple(round(b - a, 3) for a, b in zip(before, after, strict=True)))

    staged(kernel, look, host=host)
    return found[0]


@pytest.mark.parametrize("rate", [0.5, 0.9, 1.0, 1.25, 2.0])
def test_a_host_counts_seconds_of_its_own(rate: float) -> None:
    host = Host("host", 1)
    host.rate = rate
    assert _clocks_after_ten_seconds(host) == (10.0, 10.0, round(10 / rate, 3))


def test_an_offset_moves_the_wall_clock_alone() -> None:
    kernel, host = fresh(), Host("host", 1)
    host.offset = 86400.0
    found: list[tuple[float, float, int]] = []
    staged(
        kernel,
        lambda: found.append((time.time(), time.monotonic(), datetime.datetime.now(datetime.UTC).day)),
        host=host,
    )
    staged(kernel, lambda: found.append((time.time(), time.monotonic(), datetime.datetime.now(datetime.UTC).day)))
    (ahead, one, tomorrow), (wall, other, today) = found
    assert (round(ahead - wall), round(one - other), tomorrow - today) == (86400, 0, 1)


def test_a_clock_that_starts_to_drift_does_not_jump() -> None:
    kernel, host, seen = fresh(), Host("host", 1), list[float]()

    def look() -> None:
        time.sleep(1000)
        before = time.monotonic()
        host.drift(kernel.now, 0.5)
        between = time.monotonic()
        time.sleep(10)
        seen.extend((between - before, time.monotonic() - before, kernel.seconds()))

    staged(kernel, look, host=host)
    assert [round(each, 3) for each in seen] == [0.0, 10.0, 1020.0]


def test_chance_is_of_the_seed_and_of_the_task() -> None:
    def drawn(seed: int) -> tuple[str, ...]:
        kernel, found = fresh(seed), dict[int, str]()
        numbers = (
            lambda n=n: found.update({n: f"{random.random()} {uuid.uuid4()} {random.Random().random()}"})
            for n in (1, 2)
        )
        staged(kernel, *numbers)
        return found[1], found[2]

    assert drawn(1) == drawn(1)
    assert len({*drawn(1), *drawn(2)}) == 4
