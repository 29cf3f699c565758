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
from collections.abc import Sequence

log = logging.getLogger(__name__)

_SET_CHILD_SUBREAPER = 36
"""prctl(2): orphans below us become our children even where we are not process 1, as with the host's process ids."""
_STOPS = (signal.SIGTERM, signal.SIGINT)
_PAUSE = 1.0
"""Seconds before a supervisor that ended is started again."""


def keep(command: Sequence[str], *, pause: float = _PAUSE) -> int:
    """Run `command` until it ends well or a signal to stop comes; its exit status."""
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # Held back by the kernel and asked for. A handler would run when the wait for children is over: what comes just
    # before that wait would be heard with the next child's end only.
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
    """Whether a signal to stop came, and the child's exit status once it has ended. Orphans are let go meanwhile."""
    stopping = False
    while True:
        if signal.sigwait({signal.SIGCHLD, *_STOPS}) in _STOPS:
            stopping = True
            # It is not waited for yet, so the number is still its own even if it has ended.
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGTERM)
        # One SIGCHLD may stand for several that have ended.
        for pid, status in iter(lambda: os.waitpid(-1, os.WNOHANG), (0, 0)):
            if pid == child:
                return stopping, os.waitstatus_to_exitcode(status)
