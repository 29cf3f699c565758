"""Reads the guides of docs/migrating.md: rows with their commands, and the shell in which a reader types them."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "migrating.md"
RUN, APPLIED, BUILT = "demo cluster", "API server", "built"
"""The last column's text in rows whose commands a test runs."""


@dataclass(frozen=True)
class Step:
    """One row: its number, the commands that it tells readers to type, and how it says it was tested."""

    number: str
    commands: tuple[str, ...]
    tried: str


def steps(letter: str = "") -> list[Step]:
    """The rows of the guide whose numbers begin with the letter, in order; without a letter, those of all guides."""
    found = []
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if re.fullmatch(rf"{letter or '[A-Z]'}\d+", cells[0]):
            number, _, here, _, tried = cells
            typed = re.findall(r"`((?:kubectl|make|sudo|oc|oci|nvidia-ctk) [^`]+)`", here)
            found.append(Step(number, tuple(typed), tried))
    return found


class Reader:
    """A reader who types the page's commands, with `node` for NODE."""

    def __init__(self, kubeconfig: Path, home: Path, node: str = "") -> None:
        programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self._environment = {"PATH": programs, "HOME": str(home), "KUBECONFIG": str(kubeconfig)}
        self._node = node

    def types(self, command: str) -> str:
        """What one command prints, including warnings. The command must succeed."""
        words = [self._node if word == "NODE" else word for word in shlex.split(command)]
        done = subprocess.run(
            words, cwd=ROOT, env=self._environment, capture_output=True, text=True, timeout=90, check=False
        )
        assert done.returncode == 0, f"`{command}` failed: {done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def follows(self, step: Step) -> str:
        """Type all commands of a row, in order. Returns what the last one prints."""
        return [self.types(command) for command in step.commands][-1]
