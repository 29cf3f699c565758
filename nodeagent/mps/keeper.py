"""
The first process of the MPS daemons' container. It only keeps the supervisor running.

When the first process of a container ends, the container runtime ends all others in it, the daemons too. So what can
fail (the supervisor with the driver's library) is a child of this process. When it fails it is started again and finds
the daemons by their files. Daemons whose supervisor has ended become children of this process, which reaps them.

Must not: grow, because anything that it does can fail.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import signal
from collections.abc import Sequence

log = logging.getLogger(__name__)

_SET_CHILD_SUBREAPER = 36
"""prctl(2): orphans below us become our children even if we are not process 1, as with the host's process ids."""
_STOPS = (signal.SIGTERM, signal.SIGINT)
_PAUSE = 1.0
"""Seconds before a supervisor that ended is started again."""


def keep(command: Sequence[str], *, pause: float = _PAUSE) -> int:
    """Run `command` until it succeeds or a signal to stop comes; its exit status."""
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # Blocked, and read by `sigwait`. A handler would miss a signal that comes just before the wait for a child.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, *_STOPS})
    try:
        while True:
            child = os.posix_spawn(command[0], list(command), os.environ, setsigmask=())
            stopping, status = _wait(child)
            if stopping or status == 0:
                return max(0, status)
            log.error("the supervisor ended and is started again; the daemons run on", extra={"status": status})
            if signal.sigtimedwait(_STOPS, pause):
                return 0
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _wait(child: int) -> tuple[bool, int]:
    """Whether a signal to stop came, and the child's exit status after its end. Reaps orphans meanwhile."""
    stopping = False
    while True:
        if signal.sigwait({signal.SIGCHLD, *_STOPS}) in _STOPS:
            stopping = True
            # We have not waited for it yet, so no other process can have its number.
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGTERM)
        # One SIGCHLD may stand for several that have ended.
        for pid, status in iter(lambda: os.waitpid(-1, os.WNOHANG), (0, 0)):
            if pid == child:
                return stopping, os.waitstatus_to_exitcode(status)
