from __future__ import annotations

import threading

from hypothesis import given
from hypothesis import strategies as st

from playground.machinery.client.queueing import Backoff, Timers, WorkQueue, work


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 20)), max_size=30))
def test_every_key_comes_due_once_at_its_earliest_deadline(deadlines: list[tuple[str, int]]) -> None:
    timers: Timers[str] = Timers()
    earliest: dict[str, float] = {}
    for key, at in deadlines:
        timers.set(key, at)
        earliest[key] = min(earliest.get(key, at), at)
    seen: dict[str, float] = {}
    while (deadline := timers.next()) is not None:
        for key in timers.due(deadline):
            assert key not in seen
            seen[key] = deadline
    assert seen == earliest


def test_a_cancelled_timer_does_not_fire() -> None:
    timers: Timers[str] = Timers()
    timers.set("a", 1)
    timers.set("b", 2)
    timers.cancel("a")
    assert (timers.next(), timers.due(5)) == (2, ["b"])


def test_backoff_doubles_to_its_cap_and_starts_again() -> None:
    backoff: Backoff[str] = Backoff(1, 5)
    assert [backoff.failed("k") for _ in range(4)] == [1, 2, 4, 5]
    backoff.reset("k")
    assert backoff.failed("k") == 1


def test_a_key_is_in_the_line_once_and_never_with_two_workers() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    queue.add("a")
    queue.add("b")
    assert queue.get() == "a"
    queue.add("a")
    assert queue.get() == "b"
    queue.done("a")
    assert queue.get() == "a"
    queue.close()
    assert queue.get() is None


def test_a_delayed_key_waits_for_its_time() -> None:
    now = [0.0]
    queue: WorkQueue[str] = WorkQueue(monotonic=lambda: now[0])
    queue.add_after("late", 10)
    queue.add("first")
    assert queue.get() == "first"
    now[0] = 10.0
    assert queue.get() == "late"


def test_a_handler_that_raises_is_tried_again() -> None:
    queue: WorkQueue[str] = WorkQueue()
    tries: list[str] = []

    def handle(key: str) -> None:
        tries.append(key)
        if len(tries) == 1:
            raise RuntimeError("once")
        queue.close()

    queue.add("a")
    worker = threading.Thread(target=work, args=(queue, handle, 0.0), name="worker", daemon=True)
    worker.start()
    worker.join(5)
    assert (tries, worker.is_alive()) == (["a", "a"], False)
