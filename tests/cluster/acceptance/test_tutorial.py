"""The tutorial, typed from top to bottom against `make playground`: each command prints what the page says."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from playground import scenarios
from tests.cluster.acceptance.typed import Typed, commands, compared, renewed
from tests.cluster.system.test_playground_command import playground

pytestmark = [pytest.mark.system, pytest.mark.kubectl, pytest.mark.long]
_TOP = scenarios.SAMPLES.parent
PAGE = _TOP / "docs" / "tutorial.md"
RENEW = "GPUFRACTION_RENEW_TUTORIAL"
"""Set by `make tutorial`: write what the commands print into the page."""
_SECONDS = 30.0
_CHANGES = {"apply", "create", "label", "annotate", "delete", "scale", "config", "cordon", "uncordon"}
_PAGE = "kubectl gpufraction ui"
_QUIET = 1.5
"""Seconds in which what a command prints must stay the same before it is written into the page."""


class Reader:
    """Somebody who types what the page says, one command after the other, and looks again where it is not so yet."""

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
        """Carry a command out; what it prints, kubectl's errors and warnings too."""
        if command == _PAGE:
            return self._prints_while_it_serves(command)
        line = command
        if command == "make playground-upgrade":
            line = f"{sys.executable} -m playground upgrade --directory {self._directory / 'run'}"
        done = subprocess.run(
            ["bash", "-c", line],
            cwd=_TOP,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=90,
            check=False,
        )
        return done.stdout

    def _prints_while_it_serves(self, command: str) -> str:
        """What the page's server prints; meanwhile its address is opened, and Ctrl-C ends it."""
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

    def sees(self, typed: Typed) -> str:
        """What a command prints, once it prints what the page says, or at the end of patience."""
        printed = self.prints(typed.command)
        if is_repeatable(typed.command):
            deadline = time.monotonic() + _SECONDS
            while compared(printed) != compared(typed.prints) and time.monotonic() < deadline:
                time.sleep(0.2)
                printed = self.prints(typed.command)
        return printed

    def settles_at(self, command: str) -> str:
        """What a command prints once it prints the same for a while."""
        printed = self.prints(command)
        while is_repeatable(command):
            time.sleep(_QUIET)
            before, printed = printed, self.prints(command)
            if compared(before) == compared(printed):
                break
        return printed


def is_repeatable(command: str) -> bool:
    """Whether it changes nothing, so that it may be typed again."""
    return command != _PAGE and not command.startswith("make") and not _CHANGES.intersection(command.split())


def kept_or_new(typed: Typed, printed: str) -> str:
    """What stands on the page, unless more than ages and names has changed: a renewal changes nothing without need."""
    return typed.prints if compared(typed.prints) == compared(printed) else printed


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    if shutil.which("kubectl") is None:
        pytest.skip("needs kubectl 1.30 or newer on PATH")
    with playground(tmp_path / "run", tmp_path / "said"):
        yield Reader(tmp_path)


@pytest.mark.timeout(600)
def test_the_tutorial_prints_what_its_page_says(reader: Reader) -> None:
    page = PAGE.read_text(encoding="utf-8")
    if os.environ.get(RENEW):
        printed = [kept_or_new(typed, reader.settles_at(typed.command)) for typed in commands(page)]
        for path in (PAGE, _TOP / "docs" / "zh" / "tutorial.md"):
            if path.exists():
                path.write_text(renewed(path.read_text(encoding="utf-8"), printed), encoding="utf-8")
        return
    for typed in commands(page):
        seen = reader.sees(typed)
        assert compared(seen) == compared(typed.prints), (
            f"`{typed.command}` prints something else than docs/tutorial.md says; if that is right: make tutorial"
        )
