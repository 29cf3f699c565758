"""
The primitives that threads wait with, compared with the obvious model under random schedules, and with Python's own.
"""

from __future__ import annotations

import queue as real_queue
import threading as real_threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.simulation.kernel.scheduler import SECOND, Host, Kernel
from tests.unit.simulation.staged import answer, fresh, futures, kernels, queues, staged, threading, time

Spans = list[tuple[int, int]]
spans = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=5)
"""For each task: after how many milliseconds it begins, and for how many it holds what it takes."""
waits = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=5)
"""For each task: after how many milliseconds it begins, and how many it waits at most."""
SLACK = 0.001
"""Seconds that other tasks' turns may add."""


def each(tasks: Sequence[Any], run: Callable[..., object]) -> list[Callable[[], object]]:
    """One task for each of the values: `run` with its number and its values."""
    return [lambda n=n, values=values: run(n, *values) for n, values in enumerate(tasks)]  # type: ignore[misc]


def pause(milliseconds: int) -> None:
    time.sleep(milliseconds / 1000)


class Inside:
    """Counts the tasks inside, and their maximum at one time."""

    def __init__(self) -> None:
        self.now = self.most = self.ever = 0

    def __enter__(self) -> None:
        self.now += 1
        self.ever += 1
        self.most = max(self.most, self.now)

    def __exit__(self, *_: object) -> None:
        self.now -= 1


# -- exclusion --------------------------------------------------------------------------------------------------------

LOCKS: dict[str, Callable[[], Any]] = {
    "Lock": threading.Lock,
    "RLock": threading.RLock,
    "Condition": threading.Condition,
    "Condition of a Lock": lambda: threading.Condition(threading.Lock()),
    "Semaphore": threading.Semaphore,
}


@pytest.mark.parametrize("make", LOCKS.values(), ids=LOCKS.keys())
@given(kernels, spans)
def test_one_is_inside_at_a_time_and_all_get_in(make: Callable[[], Any], kernel: Kernel, tasks: Spans) -> None:
    lock, inside = make(), Inside()

    def run(_: int, begins: int, holds: int) -> None:
        pause(begins)
        with lock, inside:
            pause(holds)

    staged(kernel, *each(tasks, run))
    assert (inside.most, inside.ever) == (1, len(tasks))


@given(kernels, spans, st.integers(1, 3))
def test_as_many_are_inside_as_a_semaphore_lets(kernel: Kernel, tasks: Spans, most: int) -> None:
    semaphore, inside = threading.BoundedSemaphore(most), Inside()

    def run(_: int, begins: int, holds: int) -> None:
        pause(begins)
        with semaphore, inside:
            pause(holds)

    staged(kernel, *each(tasks, run))
    assert inside.most <= most
    assert inside.ever == len(tasks)


@given(kernels, spans)
def test_an_owner_enters_again_and_leaves_as_often(kernel: Kernel, tasks: Spans) -> None:
    lock, owners = threading.RLock(), list[int]()

    def run(number: int, begins: int, holds: int) -> None:
        pause(begins)
        for _ in range(3):
            lock.acquire()
            owners.append(number)
            pause(holds)
        for _ in range(3):
            owners.append(number)
            lock.release()

    staged(kernel, *each(tasks, run))
    blocks = [owners[start : start + 6] for start in range(0, len(owners), 6)]
    assert all(len(set(block)) == 1 for block in blocks)


@pytest.mark.parametrize("kind", ["Lock", "RLock", "Semaphore"])
@given(kernels, waits, st.integers(0, 8))
def test_who_waits_for_a_lock_gives_up_in_time(kind: str, kernel: Kernel, tasks: Spans, held: int) -> None:
    """One task holds it first. It is free for others only after that, and they release it at once."""
    lock: Any = getattr(threading, kind)()
    found: list[tuple[bool, float, float]] = []

    def holder() -> None:
        with lock:
            pause(held)

    def run(_: int, begins: int, waits: int) -> None:
        pause(begins + 1)
        before = kernel.seconds()
        got = lock.acquire(timeout=waits / 1000)
        found.append((got, before + waits / 1000, kernel.seconds()))
        if got:
            lock.release()

    kernel.preempt = 0.0
    staged(kernel, *each(tasks, run), holder)
    free = held / 1000
    for got, end, now in found:
        assert now <= max(end, free) + SLACK if got else end <= now + 1e-9 and now <= end + SLACK
        assert got == (end > free) or abs(end - free) <= SLACK


# -- notifications ----------------------------------------------------------------------------------------------------


@given(
    kernels, st.lists(st.sampled_from((0, 0, 0, 1, 3)), min_size=1, max_size=12), st.integers(1, 4), st.integers(1, 3)
)
def test_no_wake_up_is_lost_between_makers_and_takers(kernel: Kernel, made: list[int], takers: int, room: int) -> None:
    """A buffer with two conditions on one lock, each notified once for an item; a lost one leaves a task waiting."""
    lock = threading.Lock()
    filled, emptied = threading.Condition(lock), threading.Condition(lock)
    buffer, taken = deque[int](), list[int]()
    shares = [len(range(taker, len(made), takers)) for taker in range(takers)]

    def maker() -> None:
        for number, milliseconds in enumerate(made):
            pause(milliseconds)
            with emptied:
                emptied.wait_for(lambda: len(buffer) < room)
                buffer.append(number)
                filled.notify()

    def taker(_: int, share: int) -> None:
        for _ in range(share):
            with filled:
                while not buffer:
                    filled.wait()
                taken.append(buffer.popleft())
                emptied.notify()

    staged(kernel, maker, *each([(share,) for share in shares], taker))
    assert taken == list(range(len(made)))


@given(kernels, waits, st.integers(0, 8))
def test_a_condition_is_true_in_time_or_not(kernel: Kernel, tasks: Spans, when: int) -> None:
    condition, happened = threading.Condition(), list[bool]()
    found: list[tuple[bool, float, float, float]] = []

    def run(_: int, begins: int, waits: int) -> None:
        pause(begins)
        with condition:
            end = kernel.seconds() + waits / 1000
            got = bool(condition.wait_for(lambda: happened, waits / 1000))
            found.append((got, begins / 1000, end, kernel.seconds()))

    def notifier() -> None:
        pause(when)
        with condition:
            happened.append(True)
            condition.notify_all()

    staged(kernel, *each(tasks, run), notifier)
    for got, begins, end, now in found:
        assert got == (end > when / 1000) or abs(end - when / 1000) <= SLACK
        assert now <= (max(begins, when / 1000) if got else end) + SLACK


@given(kernels, waits, st.integers(0, 8))
def test_an_event_wakes_all_who_still_wait(kernel: Kernel, tasks: Spans, when: int) -> None:
    event = threading.Event()
    found: list[tuple[bool, float, float, float]] = []

    def run(_: int, begins: int, waits: int) -> None:
        pause(begins)
        end = kernel.seconds() + waits / 1000
        found.append((event.wait(waits / 1000), begins / 1000, end, kernel.seconds()))

    def setter() -> None:
        pause(when)
        event.set()

    staged(kernel, *each(tasks, run), setter)
    for got, begins, end, now in found:
        assert got == (end > when / 1000) or abs(end - when / 1000) <= SLACK
        assert now <= (max(begins, when / 1000) if got else end) + SLACK


@pytest.mark.parametrize("patience", [5, 0.5], ids=["its timer", "a set that comes too late"])
def test_what_ends_an_earlier_wait_does_not_end_the_next(patience: float) -> None:
    kernel, one, other = fresh(), threading.Event(), threading.Event()
    found: list[int] = []

    def waits() -> None:
        one.wait(patience)
        other.wait()
        found.append(kernel.now // SECOND)

    def sets() -> None:
        time.sleep(1)
        one.set()
        time.sleep(9)
        other.set()

    staged(kernel, waits, sets)
    assert found == [10]


def test_a_wait_that_is_woken_in_vain_ends_at_its_time() -> None:
    """A faster task takes each release, so the waiting one is woken repeatedly."""
    kernel, lock = fresh(), threading.Lock()
    found: list[tuple[bool, float]] = []

    def greedy() -> None:
        for _ in range(100):
            lock.acquire()
            pause(10)
            lock.release()

    def patient() -> None:
        pause(1)
        before = kernel.seconds()
        found.append((lock.acquire(timeout=0.1), round(kernel.seconds() - before, 3)))

    staged(kernel, greedy, patient)
    assert found == [(False, 0.1)]


# -- queues -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["Queue", "SimpleQueue"])
@given(kernels, st.lists(st.lists(st.integers(0, 3), max_size=6), min_size=1, max_size=3), st.integers(1, 3))
def test_a_queue_gives_all_in_the_order_of_their_coming(
    kind: str, kernel: Kernel, makers: list[list[int]], takers: int
) -> None:
    queue = getattr(queues, kind)()
    came: list[tuple[int, int]] = []
    went: list[tuple[int, int]] = []

    def maker(number: int, *milliseconds: int) -> None:
        for item, span in enumerate(milliseconds):
            pause(span)
            came.append((number, item))
            queue.put((number, item))

    def taker() -> None:
        while (item := queue.get()) is not None:
            went.append(item)

    def end() -> None:
        pause(100)
        for _ in range(takers):
            queue.put(None)

    staged(kernel, *each(makers, maker), *[taker] * takers, end)
    assert went == came


brief = st.sampled_from((0, 0, 0, 1, 2))
"""Milliseconds; there are few values, so that many things happen at the same time."""


@given(kernels, st.lists(brief, max_size=8), st.lists(brief, max_size=8), st.integers(1, 2))
def test_a_queue_with_an_end_is_never_longer(kernel: Kernel, puts: list[int], gets: list[int], most: int) -> None:
    """Producers and consumers with timeouts: an item that does not fit raises Full, a missing one raises Empty."""
    queue, went, longest = queues.Queue(most), list[int](), 0
    full, empty = 0, 0

    def maker(number: int, milliseconds: int) -> None:
        nonlocal full, longest
        pause(milliseconds)
        try:
            queue.put(number, timeout=0.002)
        except real_queue.Full:
            full += 1
        longest = max(longest, queue.qsize())

    def taker(_: int, milliseconds: int) -> None:
        nonlocal empty
        pause(milliseconds)
        try:
            went.append(queue.get(timeout=0.002))
        except real_queue.Empty:
            empty += 1

    staged(kernel, *each([(n,) for n in puts], maker), *each([(n,) for n in gets], taker))
    assert longest <= most
    assert len(went) == len(set(went)) == len(gets) - empty
    assert queue.qsize() == len(puts) - full - len(went)


@given(kernels, st.lists(st.tuples(brief, brief), max_size=8), st.integers(1, 2))
def test_who_waits_for_room_in_a_queue_gets_it(kernel: Kernel, tasks: Spans, most: int) -> None:
    queue, went = queues.Queue(most), list[int]()

    def maker(number: int, milliseconds: int, _: int) -> None:
        pause(milliseconds)
        queue.put(number)

    def taker(_: int, __: int, milliseconds: int) -> None:
        pause(milliseconds)
        went.append(queue.get())

    staged(kernel, *each(tasks, maker), *each(tasks, taker))
    assert sorted(went) == list(range(len(tasks)))


# -- threads and pools ------------------------------------------------------------------------------------------------


@given(kernels, waits)
def test_who_joins_a_thread_waits_for_its_end_or_gives_up(kernel: Kernel, tasks: Spans) -> None:
    found: list[tuple[bool, int, int, int]] = []

    def run(_: int, lives: int, waits: int) -> None:
        thread = threading.Thread(target=pause, args=(lives,))
        began = kernel.now
        thread.start()
        thread.join(waits / 1000)
        found.append((thread.is_alive(), lives, waits, kernel.now - began))
        thread.join()
        assert not thread.is_alive()

    staged(kernel, *each(tasks, run))
    for alive, lives, waits, took in found:
        assert alive == (lives > waits) or abs(lives - waits) <= 1
        assert abs(took - min(lives, waits) * SECOND // 1000) <= SLACK * SECOND


@given(kernels, st.lists(st.integers(0, 3), max_size=10), st.integers(1, 3))
def test_a_pool_does_all_with_so_many_threads(kernel: Kernel, work: list[int], most: int) -> None:
    inside, began = Inside(), list[int]()

    def call(number: int, milliseconds: int) -> int:
        began.append(number)
        with inside:
            pause(milliseconds)
        if number % 4 == 3:
            raise LookupError(number)
        return number

    def submit() -> list[Any]:
        with futures.ThreadPoolExecutor(max_workers=most) as pool:
            given = [pool.submit(call, number, span) for number, span in enumerate(work)]
        assert all(future.done() for future in given)
        return [future.exception() or future.result() for future in given]

    results = answer(kernel, submit)
    assert [repr(each) for each in results] == [
        repr(LookupError(number)) if number % 4 == 3 else repr(number) for number in range(len(work))
    ]
    assert inside.most <= most
    assert began == sorted(began) or most > 1


def test_a_pool_makes_no_thread_while_one_is_idle() -> None:
    pool = futures.ThreadPoolExecutor(max_workers=3, thread_name_prefix="p")

    def run() -> set[str]:
        return {pool.submit(lambda: threading.current_thread().name).result() for _ in range(5)}

    assert answer(fresh(), run) == {"p_0"}


def test_a_pool_that_is_shut_down_drops_what_it_has_not_begun() -> None:
    pool = futures.ThreadPoolExecutor(max_workers=1)

    def run() -> list[Any]:
        given = [pool.submit(pause, 10) for _ in range(3)]
        time.sleep(0.001)
        pool.shutdown(cancel_futures=True)
        return [type(each.exception()) for each in given]

    assert answer(fresh(), run) == [type(None), CancelledError, CancelledError]


def test_each_thread_has_values_of_its_own() -> None:
    local, seen = threading.local(), list[tuple[str, bool]]()

    def run(name: str) -> None:
        before = hasattr(local, "name")
        local.name = name
        pause(1)
        seen.append((local.name, before))

    staged(fresh(), lambda: run("a"), lambda: run("b"))
    assert sorted(seen) == [("a", False), ("b", False)]


def test_a_thread_that_fails_tells_the_excepthook_of_its_host() -> None:
    told: list[str] = []

    def program(name: str) -> None:
        threading.excepthook = lambda args: told.append(f"{name}: {args.exc_type.__name__} in {args.thread.name}")
        thread = threading.Thread(target=lambda: 1 // 0, name="worker")
        pause(1)
        thread.start()
        thread.join()

    kernel, hosts = fresh(), [Host("a", 1), Host("b", 1)]
    for host in hosts:
        kernel.spawn(host, lambda host=host: program(host.name), "main")  # type: ignore[misc]
    kernel.run(SECOND, lambda: len(told) == 2)
    assert sorted(told) == ["a: ZeroDivisionError in worker", "b: ZeroDivisionError in worker"]


# -- compared with Python's own ---------------------------------------------------------------------------------------

Call = tuple[str, tuple[Any, ...]]
CALLS: dict[str, tuple[Call, ...]] = {
    "Lock": (("acquire", (False,)), ("release", ()), ("locked", ()), ("acquire", (True, 0))),
    "RLock": (("acquire", (False,)), ("release", ())),
    "Condition": (("acquire", (False,)), ("release", ()), ("notify", ()), ("notify_all", ()), ("wait", (0,))),
    "Event": (("set", ()), ("clear", ()), ("is_set", ()), ("wait", (0,))),
    "Semaphore": (("acquire", (False,)), ("release", ())),
    "BoundedSemaphore": (("acquire", (False,)), ("release", ())),
    "Queue": (
        ("put", (1, False)),
        ("put_nowait", (2,)),
        ("get", (False,)),
        ("get_nowait", ()),
        ("qsize", ()),
        ("empty", ()),
        ("full", ()),
    ),
    "SimpleQueue": (("put", (1, False)), ("get", (False,)), ("get_nowait", ()), ("qsize", ()), ("empty", ())),
}
MOST = {"Queue": (2,)}
"""The arguments of its constructor."""


def told(primitive: Any, calls: list[Call]) -> list[str]:
    """What each call returns or raises."""
    found = []
    for name, arguments in calls:
        try:
            found.append(repr(getattr(primitive, name)(*arguments)))
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}")
    return found


@pytest.mark.parametrize("kind", CALLS)
@given(data=st.data())
def test_in_one_thread_each_answers_as_pythons_own(kind: str, data: st.DataObject) -> None:
    calls = data.draw(st.lists(st.sampled_from(CALLS[kind]), max_size=12))
    real, ours = (real_queue, queues) if kind.endswith("Queue") else (real_threading, threading)
    arguments = MOST.get(kind, ())
    expected = told(getattr(real, kind)(*arguments), calls)
    assert answer(fresh(), lambda: told(getattr(ours, kind)(*arguments), calls)) == expected


THREADS: dict[str, Callable[[Any], object]] = {
    "one that is not started": lambda made: made().join(),
    "one that is started twice": lambda made: (thread := made(), thread.start(), thread.start()),
    "the own one": lambda made: _current(made).join(),
}


def _current(made: Callable[[], Any]) -> Any:
    module = threading if type(made()) is threading.Thread else real_threading
    return module.current_thread()


@pytest.mark.parametrize("wrong", THREADS.values(), ids=THREADS.keys())
def test_a_wrong_use_of_a_thread_is_refused_as_by_python(wrong: Callable[[Any], object]) -> None:
    def refusal(module: Any) -> str:
        with pytest.raises(RuntimeError) as refused:
            wrong(lambda: module.Thread(target=lambda: None, name="thread"))
        return str(refused.value)

    assert answer(fresh(), lambda: refusal(threading)) == refusal(real_threading)
