"""
An upgrade of a playground that runs: requested by one process, carried out by the playground's own.

The request is a signal; the answer is a file in the playground's folder, a line for each part that was replaced.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TextIO

from playground.alone import running_in
from playground.cluster import Cluster, NotUp
from playground.programs.process import ProgramFailed
from playground.waiting import NotInTime, wait_for

SIGNAL = signal.SIGHUP
_FILE = "upgrade"
_DONE = "The upgrade is done."
_FAILED = "The upgrade failed: "
_SECONDS = 300.0


def ask_for_it(directory: Path, out: TextIO = sys.stdout) -> int:
    """Have the playground in this folder replace its programs; print what it does; the exit status."""
    process = running_in(directory)
    answer = directory / _FILE
    answer.write_text("")
    os.kill(process, SIGNAL)
    printed = 0

    def done() -> str:
        nonlocal printed
        text = answer.read_text()
        whole = text[: text.rfind("\n") + 1]
        print(whole[printed:], end="", file=out, flush=True)
        printed = len(whole)
        return next((line for line in whole.splitlines() if line.startswith((_DONE, _FAILED))), "")

    try:
        return 0 if wait_for(done, "the playground does not answer", _SECONDS, every=0.2) == _DONE else 1
    except NotInTime as error:
        print(error, file=sys.stderr)
        return 1


def carry_out(cluster: Cluster) -> None:
    """Upgrade this cluster and write what is done into its folder. A failure is reported there too."""
    with (cluster.directory / _FILE).open("a") as answer:

        def report(line: str) -> None:
            print(line, file=answer, flush=True)

        try:
            cluster.upgrade(report)
        except (NotUp, ProgramFailed) as error:
            report(f"{_FAILED}{' '.join(str(error).split())}")
        else:
            report(_DONE)
