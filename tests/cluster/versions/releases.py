"""
The releases whose programs run together here. Each is a folder of sources that run unchanged.

    former    the previous commit of this repository, by git
    present   these sources
    next      these sources with what a later release may change at once: fields that this one does not know in every
              text, object and question, and GPUNodes read and written in their next version
    later     the same, and annotations of version 2: what may come once every program reads those

A later release is made by editing its sources, as in reality. Nothing is replaced in a running program, and the shipped
programs have no setting for it.
"""

from __future__ import annotations

import functools
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from playground.programs.process import PYTHON_MODULE

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("contract", "runtime", "webhook", "allocator", "nodeagent")
FORMER_COMMIT = "GPUFRACTION_FORMER"
"""The environment variable that names another commit instead of the previous one."""
UNKNOWN = "laterField"
"""A field of a later release."""


@dataclass(frozen=True)
class Release:
    """One release. `folder`: where its packages are."""

    name: str
    folder: Path

    @property
    def command(self) -> Sequence[str]:
        """The command that runs one of its modules. Packages in Python's start folder come before installed ones."""
        return ("env", "-C", str(self.folder), *PYTHON_MODULE)

    def known(self, arguments: Sequence[str]) -> tuple[str, ...]:
        """The arguments of a program that its release knows. The release's own playground would pass it no others."""
        module, verb, *flags = arguments
        has, kept, takes = _settings(self, module, verb), [module, verb], False
        for each in flags:
            takes = _plain(each) in has if each.startswith("--") else takes
            kept += [each] if takes else []
        return tuple(kept)


@functools.cache
def _settings(release: Release, module: str, verb: str) -> frozenset[str]:
    """The settings of a program, as its help lists them."""
    command = [*release.command, module, verb, "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return frozenset(_plain(name) for name in re.findall(r"^\| `([^`]+)`", done.stdout, re.MULTILINE))


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "_", name.lower().removeprefix("--").partition("=")[0])


PRESENT = Release("present", ROOT)


@dataclass(frozen=True)
class Edit:
    """A change of one file. The text that it replaces must occur once, because an unchanged release shows nothing."""

    file: str
    before: str
    after: str


_HELPER = f'''
def _later(value):  # type: ignore
    """The value with a field of a later release at every level."""
    if isinstance(value, dict):
        return {{**{{key: _later(each) for key, each in value.items()}}, "{UNKNOWN}": {{"of": ["GPU-elsewhere", 1]}}}}
    return [_later(each) for each in value] if isinstance(value, list) else value


'''
CODEC, PROTOCOL = "contract/encoding/codec.py", "contract/encoding/protocol.py"
INVENTORIES = "contract/nodes/inventories.py"
NEXT_EDITS = (
    Edit(CODEC, "def _dump(value: object) -> str:", f"{_HELPER}def _dump(value: object) -> str:"),
    Edit(
        CODEC,
        'return {"v": _version_of(request), **_REQUEST.to_json(request)}',
        'return _later({"v": _version_of(request), **_REQUEST.to_json(request)})',
    ),
    Edit(
        CODEC,
        'return {"v": _VERSION, **_ALLOCATION.to_json(allocation)}',
        'return _later({"v": _VERSION, **_ALLOCATION.to_json(allocation)})',
    ),
    Edit(
        PROTOCOL,
        "return cast(JSON, _QUESTION.to_json(question))",
        f'return {{**cast(JSON, _QUESTION.to_json(question)), "{UNKNOWN}": 1}}',
    ),
    Edit(
        PROTOCOL,
        'return {"verdict": verdict, **each.to_json(answer)}',
        f'return {{"verdict": verdict, **each.to_json(answer), "{UNKNOWN}": 1}}',
    ),
    Edit(
        INVENTORIES,
        "return cast(dict[str, Any], _STATUS.to_json(inventory))",
        "status = cast(dict[str, Any], _STATUS.to_json(inventory))\n"
        f'    status["gpus"] = [{{**gpu, "{UNKNOWN}": 1}} for gpu in status["gpus"]]\n'
        f'    return {{**status, "{UNKNOWN}": "1"}}',
    ),
    Edit("contract/names.py", '\nVERSION = "v1alpha1"', '\nVERSION = "v1beta1"'),
    Edit(
        "runtime/kubernetes/paths.py", '"gpufraction.io/v1alpha1", "gpunodes"', '"gpufraction.io/v1beta1", "gpunodes"'
    ),
)
LATER = 3
"""
The version of the later release's texts. This release reads requests of versions 1 and 2, and allocations of version 1.
"""
LATER_EDITS = (
    Edit(CODEC, "\n_VERSION = 1\n", f"\n_VERSION = {LATER}\n"),
    Edit(
        "contract/encoding/wire.py",
        'if wanted and value.get("v") not in wanted:',
        'if wanted and value.get("v") not in (1, 2, *wanted):',
    ),
)


def former(folder: Path) -> Release:
    """The previous commit's programs. Skips the test if the history is missing."""
    commit = os.environ.get(FORMER_COMMIT) or "HEAD^"
    git = shutil.which("git")
    if git is None:
        pytest.skip("needs git on PATH, for the programs of the previous commit")
    done = subprocess.run([git, "archive", commit, *PACKAGES], cwd=ROOT, capture_output=True, timeout=60, check=False)
    if done.returncode != 0:
        pytest.skip(f"needs the repository with its history: {commit} cannot be had; clone with --depth 2 or more")
    folder.mkdir(parents=True)
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return Release("former", folder)


def edited(name: str, folder: Path, edits: Iterable[Edit]) -> Release:
    """These sources with edits."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    for edit in edits:
        file = folder / edit.file
        text = file.read_text()
        assert text.count(edit.before) == 1, (
            f"{edit.file} has {edit.before!r} {text.count(edit.before)} times, not once"
        )
        file.write_text(text.replace(edit.before, edit.after))
    return Release(name, folder)


def following(folder: Path) -> Release:
    """The next release."""
    return edited("next", folder, NEXT_EDITS)


def later(folder: Path) -> Release:
    """The one after it."""
    return edited("later", folder, (*NEXT_EDITS, *LATER_EDITS))


def python(release: Release, program: str) -> str:
    """What a program prints that runs with the release's packages."""
    command = ["env", "-C", str(release.folder), sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
