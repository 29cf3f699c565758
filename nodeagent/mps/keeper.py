"""
The first process of the MPS daemons' container: keeps the supervisor running, and does nothing else.

When the first process of a container ends, the container runtime ends all others in it, the daemons too. So what can
fail (the supervisor, the driver's library in it) is a child of this one; when it ends unasked it is started again, and
finds the daemons by their files. Ended daemons whose supervisor is gone become children of this process, which lets
them go.

Must not: grow. Whatever this needs to know is a reason for it to fail.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import signal
import sys
import time
from collections.abc import Sequence

log = logging.getLogger(__name__)

_SET_CHILD_SUBREAPER = 36
"""prctl(2): orphans below us become our children even where we are not process 1, as with the host's process ids."""
_PAUSE = 1.0
"""Seconds before a supervisor that ended is started again."""


def keep(command: Sequence[str], *, pause: float = _PAUSE) -> int:
    """Run `command` until it ends well or we are told to stop; its exit status."""
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    told: list[int] = []
    child = 0

    def stop(number: int, frame: object) -> None:
        told.append(number)
        if child:
            _end(child)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    while True:
        child = os.spawnv(os.P_NOWAIT, command[0], list(command))
        if told:
            _end(child)
        status = _wait(child)
        child = 0
        if told or status == 0:
            return max(0, status)
        log.error("the supervisor ended and is started again; the daemons run on", extra={"status": status})
        time.sleep(pause)


def _end(child: int) -> None:
    # It is not waited for here, so the number is still its own even if it has ended.
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGTERM)


def _wait(child: int) -> int:
    """Until the child has ended, letting orphans go meanwhile."""
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == child:
            return os.waitstatus_to_exitcode(status)


def supervisor_command(arguments: Sequence[str]) -> tuple[str, ...]:
    """How this program is started again as the supervisor."""
    return (sys.executable, "-m", "nodeagent", "mps-supervisor", *arguments)
