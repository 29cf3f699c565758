"""
Runs plans, each in its own process. The process is forked from this one, which has loaded all modules.

So no run sees another's caches. Whatever tasks hold when a run ends disappears with the process, and so do its files. A
run that takes too long in real time is ended with the stacks of all its tasks: a real lock is held across a turn, or a
task never waits.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import selectors
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from tests.simulation.kernel import scheduler
from tests.simulation.kernel.scheduler import Checkpoint, Turn
from tests.simulation.plan import Plan
from tests.simulation.run import Line, Outcome

LONGEST = 600.0
"""Seconds of real time for one run."""
ONE_TURN = 60.0
"""Seconds of real time for one turn. On an idle machine the longest turn takes less than one second."""
_AFTERWARDS = 5.0
"""Seconds until a process that cannot even show its stacks is ended."""


@dataclass
class _Child:
    plan: Plan
    process: int
    reading: int
    began: float
    folder: str
    """The prefix of its temporary files."""
    received: bytearray = field(default_factory=bytearray)


def to_bytes(outcome: Outcome) -> bytes:
    return json.dumps(asdict(outcome)).encode()


def from_bytes(raw: bytes) -> Outcome:
    document: dict[str, Any] = json.loads(raw)
    lines = [Line(**each) for each in document.pop("lines")]
    checkpoints = [Checkpoint(**each) for each in document.pop("checkpoints")]
    record = [Turn(**each) for each in document.pop("record")]
    return Outcome(**document, lines=lines, checkpoints=checkpoints, record=record)


def run_all(
    plans: Iterable[Plan],
    play: Callable[[Plan], Outcome],
    *,
    jobs: int,
    longest: float = LONGEST,
    one_turn: float = ONE_TURN,
) -> Iterator[tuple[Plan, Outcome]]:
    """
    The outcome of each plan, as they end. `play` runs one plan, in its own process. `jobs`: the number of processes at
    a time.

    longest, one_turn: the seconds of real time that a run and one of its turns may take.
    """
    waiting, running = iter(plans), dict[int, _Child]()
    selector = selectors.DefaultSelector()
    try:
        exhausted = False
        while running or not exhausted:
            while not exhausted and len(running) < jobs:
                following = next(waiting, None)
                if following is None:
                    exhausted = True
                    break
                child = _fork(following, play, _Watchdog(longest, one_turn))
                running[child.reading] = child
                selector.register(child.reading, selectors.EVENT_READ)
            for key, _ in selector.select(1.0):
                child = running[int(key.fd)]
                piece = os.read(child.reading, 1 << 16)
                child.received += piece
                if not piece:
                    selector.unregister(child.reading)
                    del running[child.reading]
                    yield child.plan, _ended(child)
            for child in list(running.values()):
                if time.monotonic() - child.began > longest + 2 * _AFTERWARDS:
                    os.kill(child.process, signal.SIGKILL)
    finally:
        for child in running.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.process, signal.SIGKILL)
            os.waitpid(child.process, 0)
            os.close(child.reading)
            shutil.rmtree(child.folder, ignore_errors=True)
        selector.close()


class _Watchdog:
    """
    Ends the process of a run that takes too long. Its outcome is then the stacks of all tasks.

    The signal interrupts the running task, even while it waits for a real lock. If no Python code runs at all, the
    process is ended without an outcome, and its last stack is on stderr. A process whose simulation pauses because it
    waits for its own forks has no turn that takes too long.
    """

    def __init__(self, longest: float, one_turn: float) -> None:
        self._longest, self._one_turn = longest, one_turn
        self._writing = -1
        self._began = self._turned = 0.0
        self._turns = -1

    def start(self, writing: int) -> None:
        """In the child: check from time to time. `writing`: where its outcome is expected."""
        self._writing = writing
        self._began = self._turned = time.monotonic()
        signal.signal(signal.SIGALRM, self._look)
        often = min(self._longest, self._one_turn) / 4
        signal.setitimer(signal.ITIMER_REAL, often, often)
        faulthandler.dump_traceback_later(self._longest + _AFTERWARDS, exit=True)

    def stop(self) -> None:
        """The run has ended."""
        signal.setitimer(signal.ITIMER_REAL, 0)

    def _look(self, *_: object) -> None:
        now, kernel = time.monotonic(), scheduler.ACTIVE
        turns = 0 if kernel is None else kernel.turns
        if turns != self._turns or kernel is None or kernel.current is None:
            self._turns, self._turned = turns, now
        if now - self._began > self._longest:
            self._end(f"{self._longest:.0f} s have passed, and {turns} turns")
        elif now - self._turned > self._one_turn:
            self._end(f"turn {turns} has taken {now - self._turned:.0f} s")

    def _end(self, why: str) -> None:
        kernel = scheduler.ACTIVE
        stacks = "" if kernel is None else kernel.stacks()
        what = f"the run has not ended: {why}\n{stacks}"
        at = 0.0 if kernel is None else kernel.seconds()
        raw = to_bytes(Outcome(violation=what, lines=[Line(at, "VIOLATION", what)], seconds=at, turns=self._turns))
        while raw:
            raw = raw[os.write(self._writing, raw) :]
        os._exit(1)


def _fork(plan: Plan, play: Callable[[Plan], Outcome], watchdog: _Watchdog) -> _Child:
    reading, writing = os.pipe()
    folder = tempfile.mkdtemp(prefix="gpufraction-run-")
    sys.stdout.flush()
    sys.stderr.flush()
    process = os.fork()
    if process:
        os.close(writing)
        return _Child(plan, process, reading, time.monotonic(), folder)
    code = 1
    try:
        os.close(reading)
        tempfile.tempdir = folder
        watchdog.start(writing)
        outcome = play(plan)
        watchdog.stop()
        raw = to_bytes(outcome)
        with os.fdopen(writing, "wb") as out:
            out.write(raw)
        code = 0
    finally:
        # Nothing is cleaned up: that would run the `finally` blocks of parked tasks.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _ended(child: _Child) -> Outcome:
    os.close(child.reading)
    shutil.rmtree(child.folder, ignore_errors=True)
    _, status = os.waitpid(child.process, 0)
    if not child.received:
        how = f"exit status {os.waitstatus_to_exitcode(status)} after {time.monotonic() - child.began:.0f} s"
        return Outcome(violation=f"the run has not ended: {how}; its last stack is above")
    return from_bytes(bytes(child.received))
