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
_LONGEST_PAUSE = 0.2


class NotInTime(Exception):
    """What was waited for did not come; the message says what is missing."""


def wait_for(
    asked: Callable[[], T], missing: str | Callable[[], str], timeout: float = PATIENCE, *, every: float = 0.03
) -> T:
    """
    The first true answer of `asked`, which is called at least once, and then `every` so many seconds. After a while the
    pauses are longer, a tenth of what was waited already: to ask takes time from who is waited for.

    After `timeout` seconds raises `NotInTime` with `missing`, or with what `missing()` then says. What `asked` raises
    comes through at once.
    """
    start = time.monotonic()
    while not (answer := asked()):
        waited = time.monotonic() - start
        if waited > timeout:
            raise NotInTime(f"{missing if isinstance(missing, str) else missing()} (after {timeout:.0f} s)")
        time.sleep(max(every, min(waited / 10, _LONGEST_PAUSE)))
    return answer
