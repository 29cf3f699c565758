"""When a failing worker is restarted, and when it counts as broken."""

from __future__ import annotations

import threading

import pytest

from runtime.process import Process
from runtime.supervision import Patience, Restarts, Workers

PATIENCE = Patience(pause=1.0, pause_cap=8.0, well_after=30.0, broken_after=60.0, fewest=3)
TOO_OFTEN = "failed {} times in {} s, at last with Boom"
HISTORIES: dict[str, tuple[list[float], list[float], float, str | None]] = {
    "the pause doubles with each failure in a row": ([0, 1, 3, 7], [1, 2, 4, 8], 7, None),
    "and has an end": ([0, 1, 3, 7, 15, 23], [1, 2, 4, 8, 8, 8], 23, None),
    "who has run well since begins anew": ([0, 1, 33, 34], [1, 2, 1, 2], 34, None),
    "a minute of failures is broken": (
        [0, 1, 3, 7, 15, 23, 31, 39, 47, 55, 63],
        [1, 2, 4, 8, 8, 8, 8, 8, 8, 8, 8],
        63,
        TOO_OFTEN.format(11, 63),
    ),
    "and stays so while it pauses and on probation": (
        [0, 20, 40, 62],
        [1, 2, 4, 8],
        99,
        TOO_OFTEN.format(4, 99),
    ),
    "until it has run well": ([0, 20, 40, 62], [1, 2, 4, 8], 100, None),
    "two failures are none too many, however far apart": ([0, 30], [1, 2], 61, None),
}


@pytest.mark.parametrize("case", HISTORIES.values(), ids=HISTORIES.keys())
def test_restarts(case: tuple[list[float], list[float], float, str | None]) -> None:
    fails, pauses, now, broken = case
    restarts = Restarts(PATIENCE)
    assert [restarts.failed("Boom", at) for at in fails] == pauses
    assert restarts.broken(now) == broken


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_step_that_fails_is_left_out_for_a_while_and_others_go_on() -> None:
    clock, failed, done = Clock(), list[str](), list[str]()
    workers = Workers(clock=clock, patience=PATIENCE, restarted=failed.append)

    def bad() -> None:
        raise LookupError

    for second in range(8):
        clock.now = float(second)
        workers.attempt("bad", bad)
        workers.attempt("good", lambda: done.append("done"))
    assert (failed, len(done)) == (["bad"] * 4, 8)


def test_a_step_that_succeeds_again_is_well_at_once() -> None:
    clock = Clock()
    workers = Workers(clock=clock, patience=PATIENCE)
    faulty = True

    def step() -> None:
        if faulty:
            raise LookupError

    for second in range(100):
        clock.now = float(second)
        workers.attempt("step", step)
    assert workers.broken() == "step: failed 15 times in 99 s, at last with LookupError"
    faulty, clock.now = False, 200.0
    assert workers.attempt("step", step)
    assert workers.broken() is None


class Waited(threading.Event):
    """A stop that comes after this many waits, without any time passing."""

    def __init__(self, clock: Clock, waits: int) -> None:
        super().__init__()
        self._clock, self._left = clock, waits

    def wait(self, timeout: float | None = None) -> bool:
        self._clock.now += timeout or 0.0
        self._left -= 1
        if not self._left:
            self.set()
        return self.is_set()


@pytest.mark.parametrize("raises", [True, False], ids=["raises", "ends"])
def test_a_thread_that_ends_is_started_again_until_it_is_stopped(raises: bool) -> None:
    clock, started, failed = Clock(), list[float](), list[str]()
    workers = Workers(clock=clock, patience=PATIENCE, restarted=failed.append)

    def work() -> None:
        started.append(clock.now)
        if raises:
            raise LookupError

    workers.keep("worker", work, Waited(clock, 4))
    assert (started, failed) == ([0, 1, 3, 7], ["worker"] * 4)
    clock.now = 61.0
    assert workers.broken() is None, "it has been well for half a minute by then"


def test_the_process_goes_on_where_a_supervised_worker_fails() -> None:
    process = Process()
    again = threading.Event()
    runs: list[int] = []

    def work() -> None:
        runs.append(1)
        if len(runs) == 1:
            raise LookupError
        again.set()
        process.stop.wait()

    thread = process.supervise("worker", work)
    assert again.wait(10)
    assert (process.stop.is_set(), process.failed) == (False, None)
    process.stop.set()
    thread.join(5)
    assert process.wait() == 0
