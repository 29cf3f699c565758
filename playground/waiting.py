"""
Waiting until something is so, by asking again and again.

What the playground, the benchmarks and the tests wait for happens in other processes, which cannot call back.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
PATIENCE = 60.0


class NotInTime(Exception):
    """What was waited for did not come; the message says what is missing."""


def wait_for(
    asked: Callable[[], T], missing: str | Callable[[], str], timeout: float = PATIENCE, *, every: float = 0.03
) -> T:
    """
    The first true answer of `asked`, which is called at least once, and then `every` so many seconds.

    After `timeout` seconds raises `NotInTime` with `missing`, or with what `missing()` then says. What `asked` raises
    comes through at once.
    """
    deadline = time.monotonic() + timeout
    while not (answer := asked()):
        if time.monotonic() > deadline:
            raise NotInTime(f"{missing if isinstance(missing, str) else missing()} (after {timeout:.0f} s)")
        time.sleep(every)
    return answer
