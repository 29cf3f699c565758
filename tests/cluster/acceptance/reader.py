"""A reader who types a page's commands in another terminal of `make playground`, and compares what is printed."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from playground import scenarios
from tests.cluster.acceptance.typed import Typed, commands, compared, renewed

TOP = scenarios.SAMPLES.parent
RENEW = "GPUFRACTION_RENEW_TUTORIAL"
"""Set by `make tutorial`: write what the commands print into the page."""
_SECONDS = 30.0
_CHANGES = {"apply", "create", "label", "annotate", "delete", "scale", "config", "cordon", "uncordon", "run"}
_PAGE = "kubectl gpufraction ui"
_SOON = 8.0
_QUIET = 1.5
"""Seconds in which a command's output must stay the same before it is written into the page."""


class Reader:
    """
    Types one command after another, and repeats a command until its output is as expected. `directory` has the
    playground's folder `run`.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        programs = directory / "bin"
        programs.mkdir()
        (programs / "kubectl-gpufraction").symlink_to(Path(sys.executable).parent / "kubectl-gpufraction")
        self._environment = {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "HOME": str(directory),
            "KUBECONFIG": str(directory / "run" / "kubeconfig"),
            "NO_PROXY": "*",
        }

    def prints(self, command: str) -> str:
        """Run a command. Returns what it prints, including kubectl's errors and warnings."""
        if command == _PAGE:
            return self._prints_while_it_serves(command)
        done = subprocess.run(
            ["bash", "-c", self._here(command)],
            cwd=TOP,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=90,
            check=False,
        )
        return done.stdout

    def _here(self, command: str) -> str:
        """The command for this test's playground, without a `make` that would install something."""
        run = self._directory / "run"
        target, _, what = command.removeprefix("make playground-").partition(" WHAT=")
        if command.startswith("make playground-"):
            return f"{sys.executable} -m playground {target} {what} --directory {run}"
        return command.replace(" .playground/", f" {run}/")

    def _prints_while_it_serves(self, command: str) -> str:
        """What the page's server prints. The test opens its address while it runs, and Ctrl-C ends it."""
        program = subprocess.Popen(
            shlex.split(command), env=self._environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        try:
            assert program.stdout is not None
            address, hint = program.stdout.readline(), program.stdout.readline()
            assert "Ctrl-C" in hint, address + hint
            with urllib.request.urlopen(address.strip(), timeout=30) as answer:
                assert b"<html" in answer.read()
            program.send_signal(signal.SIGINT)
            rest, _ = program.communicate(timeout=30)
            return address + hint + rest
        finally:
            program.kill()

    def sees(self, typed: Typed, patience: float = _SECONDS) -> str:
        """What a command prints, once that is what the page says, or when the patience ends."""
        printed = self.prints(typed.command)
        if is_repeatable(typed.command):
            deadline = time.monotonic() + patience
            while compared(printed) != compared(typed.prints) and time.monotonic() < deadline:
                time.sleep(0.2)
                printed = self.prints(typed.command)
        return printed

    def settles_at(self, typed: Typed) -> str:
        """
        What a command prints: what the page says if that comes soon, or else output that stays the same for a while.
        """
        command, printed = typed.command, self.sees(typed, _SOON)
        if compared(printed) == compared(typed.prints):
            return printed
        deadline = time.monotonic() + _SECONDS
        while is_repeatable(command) and time.monotonic() < deadline:
            time.sleep(_QUIET)
            before, printed = printed, self.prints(command)
            if compared(before) == compared(printed):
                break
        return printed


def is_repeatable(command: str) -> bool:
    """Whether the command changes nothing, so that it may be typed again."""
    return command != _PAGE and not command.startswith("make") and not _CHANGES.intersection(command.split())


def kept_or_new(typed: Typed, printed: str) -> str:
    """The page's text, unless more than ages and names has changed: a renewal changes nothing without need."""
    return typed.prints if compared(typed.prints) == compared(printed) else printed


def follow(reader: Reader, page: str) -> None:
    """Type a page of the folder `docs`. The output must be on the page, or `make tutorial` writes it there."""
    original, translated = TOP / "docs" / page, TOP / "docs" / "zh" / page
    text = original.read_text(encoding="utf-8")
    if os.environ.get(RENEW):
        printed = [kept_or_new(typed, reader.settles_at(typed)) for typed in commands(text)]
        for path in (original, translated):
            if path.exists():
                path.write_text(renewed(path.read_text(encoding="utf-8"), printed), encoding="utf-8")
        return
    for typed in commands(text):
        seen = reader.sees(typed)
        assert compared(seen) == compared(typed.prints), (
            f"`{typed.command}` prints something else than docs/{page} says; if that is right: make tutorial"
        )
