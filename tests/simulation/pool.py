"""
Runs plans, each in a process of its own that is forked from this one, which has all modules loaded.

So no run sees another's caches, and what tasks hold when a run ends goes with the process. A run that takes too long in
real time is ended: a real lock is held across a turn, or a task never waits.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import selectors
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from tests.simulation.plan import Plan
from tests.simulation.run import Line, Outcome

LONGEST = 120.0
"""Seconds of real time for one run."""


@dataclass
class _Child:
    plan: Plan
    process: int
    reading: int
    began: float
    received: bytearray = field(default_factory=bytearray)


def to_bytes(outcome: Outcome) -> bytes:
    return json.dumps(asdict(outcome)).encode()


def from_bytes(raw: bytes) -> Outcome:
    document: dict[str, Any] = json.loads(raw)
    lines = [Line(**each) for each in document.pop("lines")]
    return Outcome(**document, lines=lines)


def run_all(
    plans: Iterable[Plan], play: Callable[[Plan], Outcome], *, jobs: int, longest: float = LONGEST
) -> Iterator[tuple[Plan, Outcome]]:
    """The outcome of each plan, as they end. `play` runs one, in its own process. `jobs`: processes at a time."""
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
                child = _fork(following, play, longest)
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
                if time.monotonic() - child.began > longest + 10:
                    os.kill(child.process, signal.SIGKILL)
    finally:
        for child in running.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.process, signal.SIGKILL)
            os.waitpid(child.process, 0)
            os.close(child.reading)
        selector.close()


def _fork(plan: Plan, play: Callable[[Plan], Outcome], longest: float) -> _Child:
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    process = os.fork()
    if process:
        os.close(writing)
        return _Child(plan, process, reading, time.monotonic())
    code = 1
    try:
        os.close(reading)
        faulthandler.dump_traceback_later(longest, exit=True)
        raw = to_bytes(play(plan))
        with os.fdopen(writing, "wb") as out:
            out.write(raw)
        code = 0
    finally:
        # Nothing is torn down: parked tasks would run their `finally` then.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _ended(child: _Child) -> Outcome:
    os.close(child.reading)
    _, status = os.waitpid(child.process, 0)
    if not child.received:
        how = f"exit status {os.waitstatus_to_exitcode(status)} after {time.monotonic() - child.began:.0f} s"
        return Outcome(violation=f"the run has not ended: {how}; its last stacks are above")
    return from_bytes(bytes(child.received))
