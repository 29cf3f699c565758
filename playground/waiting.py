"""
Waits for a condition by polling.

The playground, the benchmarks and the tests wait for other processes, which cannot call back.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
PATIENCE = 60.0
SLOWER = "PLAYGROUND_SLOWER"
"""The environment variable with the factor by which all waits may be longer, for example on an emulated machine."""
_LONGEST_PAUSE = 0.2


class NotInTime(Exception):
    """The condition did not become true in time; the message says what is missing."""


def wait_for(
    asked: Callable[[], T], missing: str | Callable[[], str], timeout: float = PATIENCE, *, every: float = 0.03
) -> T:
    """
    The first true result of `asked`, which is called at least once, and then at intervals of `every` seconds. Later,
    the intervals grow to a tenth of the time waited so far, because each call slows down the processes waited for.

    After `timeout` seconds, or more with `SLOWER`, raises `NotInTime` with `missing`, or with the result of
    `missing()`. Exceptions of `asked` propagate at once.
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
    """The factor by which waits are longer here, from the environment; 1 if it is missing or invalid."""
    try:
        return max(1.0, min(float(os.environ.get(SLOWER, "1")), 100.0))
    except ValueError:
        return 1.0
