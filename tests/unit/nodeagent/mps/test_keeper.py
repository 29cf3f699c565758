"""The first process of the MPS daemons' container: it accepts commands at any time, and reaps orphans."""

from __future__ import annotations

import subprocess
import sys

import pytest

KEEPER = """
import os, signal, sys
from nodeagent.mps import keeper
{before}
sys.exit(keeper.keep([sys.executable, "-IS", "-c", sys.argv[1]], pause=float(sys.argv[2])))
"""
FOR_EVER = "import signal; print('up', flush=True); signal.pause()"
# A child's child that ends when nothing waits for it.
ORPHANS = "import os, signal; print('up', flush=True)\nwhile True: os.fork() or os._exit(os.fork() and 0); os.wait()"
SIGNALLED_BEFORE = "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM}); os.kill(os.getpid(), signal.SIGTERM)"
UP = "up\n"
PAUSES = "the supervisor ended and is started again; the daemons run on\n"
"""What the keeper logs once it has waited for the supervisor. After that it pauses."""

ENDS: dict[str, tuple[str, str, str, str | None, int]] = {
    "it is told before it waits": (SIGNALLED_BEFORE, FOR_EVER, "1", None, 0),
    "it is told while the supervisor runs": ("", FOR_EVER, "1", UP, 0),
    "it is told while orphans end": ("", ORPHANS, "1", UP, 0),
    "it is told while it pauses": ("", "import sys; sys.exit(3)", "3600", PAUSES, 0),
    "the supervisor ends well": ("", "print('up')", "1", None, 0),
}


@pytest.mark.parametrize(("before", "program", "pause", "ended_after", "code"), ENDS.values(), ids=ENDS.keys())
def test_it_ends_when(before: str, program: str, pause: str, ended_after: str | None, code: int) -> None:
    command = [sys.executable, "-c", KEEPER.format(before=before), program, pause]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as keeper:
        try:
            assert keeper.stdout is not None
            if ended_after is not None:
                assert keeper.stdout.readline() == ended_after
                keeper.terminate()
            assert keeper.wait(60) == code
        finally:
            keeper.kill()


def test_a_supervisor_that_fails_is_started_again() -> None:
    program = "import sys; print('up', flush=True); sys.exit(3)"
    with subprocess.Popen(
        [sys.executable, "-c", KEEPER.format(before=""), program, "0.01"], stdout=subprocess.PIPE, text=True
    ) as keeper:
        try:
            assert keeper.stdout is not None
            assert [keeper.stdout.readline() for _ in range(3)] == ["up\n"] * 3
            keeper.terminate()
            assert keeper.wait(60) in (0, 3), "told in a pause, or while the supervisor was failing"
        finally:
            keeper.kill()
