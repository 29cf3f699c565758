"""
Waiting until something is so, by asking again and again.

What the playground, the benchmarks and the tests wait for happens in other processes, which cannot call back.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
PATIENCE = 60.0
SLOWER = "PLAYGROUND_SLOWER"
"""The environment variable that says how many times longer all waiting may take, as on an emulated machine."""
_LONGEST_PAUSE = 0.2


class NotInTime(Exception):
    """What was waited for did not come; the message says what is missing."""


def wait_for(
    asked: Callable[[], T], missing: str | Callable[[], str], timeout: float = PATIENCE, *, every: float = 0.03
) -> T:
    """
    The first true answer of `asked`, which is called at least once, and then `every` so many seconds. After a while the
    pauses are longer, a tenth of what was waited already: to ask takes time from who is waited for.

    After `timeout` seconds, more with `SLOWER`, raises `NotInTime` with `missing`, or with what `missing()` then says.
    What `asked` raises comes through at once.
    """
    start = time.monotonic()
    timeout *= slower()
    while not (answer := asked()):
        waited = time.monotonic() - start
        if waited > timeout:
            raise NotInTime(f"{missing if isinstance(missing, str) else missing()} (after {timeout:.0f} s)")
        time.sleep(max(every, min(waited / 10, _LONGEST_PAUSE)))
    return answer


def slower() -> float:
    """How many times longer than usual things take here, by the environment; 1 where nothing sensible is said."""
    try:
        return max(1.0, min(float(os.environ.get(SLOWER, "1")), 100.0))
    except ValueError:
        return 1.0
