"""
Requests to a running playground: one process sends them, and the playground's process carries them out.

A request is a line in a file of the playground's folder, and a signal. The answer is another file: a line for each
step, and finally the exit status. The playground carries out one request at a time.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TextIO

from playground.alone import Unusable, running_in
from playground.waiting import NotInTime, wait_for

SIGNAL = signal.SIGUSR1
_REQUEST, _ANSWER = "request", "answer"
_STATUS = "\x04"
"""The prefix of an answer's last line; the exit status follows."""
_SECONDS = 300.0

Report = Callable[[str], None]
Action = Callable[[str, Report], int]
"""Carries out a request with an argument, which may be empty. Returns the exit status."""


def ask(directory: Path, what: str, about: str = "", out: TextIO = sys.stdout) -> int:
    """
    Send a request to the playground in this folder, and print its steps. Returns the exit status. Raises `Unusable`.
    """
    process = running_in(directory)
    answer = directory / _ANSWER
    with _turn(directory) as request:
        answer.unlink(missing_ok=True)
        request.write(f"{what} {about}\n")
        request.flush()
        os.kill(process, SIGNAL)
        printed = 0

        def done() -> str:
            nonlocal printed
            text = answer.read_text() if answer.exists() else ""
            lines = text[: text.rfind("\n") + 1].splitlines()
            for line in lines[printed:]:
                if line.startswith(_STATUS):
                    return line
                print(line, file=out, flush=True)
                printed += 1
            running_in(directory)
            return ""

        try:
            return int(wait_for(done, "the playground does not answer", _SECONDS, every=0.1).removeprefix(_STATUS))
        except NotInTime as error:
            print(error, file=sys.stderr)
            return 1


@contextlib.contextmanager
def _turn(directory: Path) -> Iterator[TextIO]:
    """The emptied file of the request, locked while this process waits for the answer. Raises `Unusable`."""
    with (directory / _REQUEST).open("a+") as request:
        try:
            fcntl.flock(request, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Unusable(f"the playground in {directory} is handling another request; try again later") from None
        request.truncate(0)
        yield request


def carry_out(directory: Path, actions: Mapping[str, Action]) -> None:
    """Carry out the request in this folder, if there is one, and write the answer. Raises what the action raises."""
    path = directory / _REQUEST
    what, _, about = path.read_text().strip().partition(" ") if path.exists() else ("", "", "")
    if not what:
        return
    os.truncate(path, 0)
    # A new file: an earlier process that stopped waiting for its answer must not read this one.
    with (directory / _ANSWER).open("x") as answer:

        def report(line: str) -> None:
            print(" ".join(line.split()), file=answer, flush=True)

        status = 1
        try:
            status = actions.get(what, _unknown)(about, report)
        finally:
            print(f"{_STATUS}{status}", file=answer, flush=True)


def _unknown(_: str, report: Report) -> int:
    report(
        "This playground was started by an older version, which does not support this request: end it, and start "
        "it again."
    )
    return 1
