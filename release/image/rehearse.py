"""
The Containerfile's build stage without a container engine, and whether the other machine has every wheel.

For CI, and for changes of a dependency or a folder: the stage's own instructions run in an empty directory, with only
the files that they copy and that `.containerignore` lets through, so that a fault that would break the image breaks
here. Then pip resolves the packages of each architecture; nothing of that is kept.

Must not: carry out a later stage (that one changes its base), or write outside its directory.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from release.image.check import Unfit, normal, pins, unpinned

JSON = dict[str, Any]
MACHINES: Mapping[str, str] = {"amd64": "x86_64", "arm64": "aarch64"}
"""The architectures of the image, by the name that pip has for each."""
PLACE = "/opt/gpufraction"
"""Where the environment lies in the image."""
CONTROL = "cryptography"
"""A dependency that has had wheels for every machine for years: without any, the index is a mirror of another one's."""
_GLIBC = (17, 36)
"""Minor versions of glibc 2 that wheels may be made for: the oldest still in use, and Debian bookworm's."""
_PATIENCE = 600.0
"""Seconds for one step; pip tries again by itself within them."""
_SHOWN = 20
"""The last lines of pip's that are shown where it fails."""


@dataclass(frozen=True, slots=True)
class Step:
    """An instruction of a Containerfile, such as COPY, and what follows it on the line."""

    word: str
    rest: str


def steps(text: str) -> tuple[Step, ...]:
    """The instructions in order, without comments; lines that end in a backslash are one with the next."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    whole = re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines()
    parts = [line.strip().partition(" ") for line in whole if line.strip()]
    return tuple(Step(word.upper(), rest.strip()) for word, _, rest in parts)


def build_stage(found: Sequence[Step]) -> tuple[Step, ...]:
    """The instructions of the first stage. Raises `Unfit` where there is none."""
    starts = [number for number, step in enumerate(found) if step.word == "FROM"]
    if not starts:
        raise Unfit("Containerfile: no FROM")
    return tuple(found[starts[0] + 1 : starts[1] if len(starts) > 1 else len(found)])


def python_of(found: Sequence[Step]) -> str:
    """The Python of the image, such as 3.12, by its base's tag. Raises `Unfit` where the tag does not contain it."""
    base = next((step.rest for step in found if step.word == "ARG" and step.rest.startswith("PYTHON=")), "")
    match = re.search(r"python:(\d+\.\d+)\b", base)
    if not match:
        raise Unfit(f"Containerfile: {base or 'no ARG PYTHON'}: the base is not python:VERSION")
    return match[1]


def let_through(ignore: str, path: str) -> bool:
    """Whether a .containerignore that leaves out everything and then takes some back lets an engine see the path."""
    lines = [line.strip() for line in ignore.splitlines() if line.strip() and not line.startswith("#")]
    if lines[:1] != ["*"]:
        raise Unfit(".containerignore: does not begin with *")
    return any(path == kept[1:] or path.startswith(f"{kept[1:]}/") for kept in lines if kept.startswith("!"))


def rehearse(project: Path, scratch: Path, environment: Mapping[str, str]) -> Path:
    """
    Carry out the build stage of the project's Containerfile in the directory; where the environment is then.

    Raises `Unfit` for an instruction that fails or is not understood.
    """
    ignore = (project / ".containerignore").read_text(encoding="utf-8")
    context, place = scratch / "context", scratch / "place"
    here = context
    for step in build_stage(steps((project / "Containerfile").read_text(encoding="utf-8"))):
        if step.word == "WORKDIR":
            here = context / step.rest.strip("/")
            here.mkdir(parents=True, exist_ok=True)
        elif step.word == "COPY":
            _copy(project, ignore, here, shlex.split(step.rest))
        elif step.word == "RUN":
            _run(step.rest, step.rest.replace(PLACE, shlex.quote(str(place))), here, environment)
        else:
            raise Unfit(f"Containerfile: {step.word} in the build stage is not supported here; add it to {__file__}")
    return place


def _copy(project: Path, ignore: str, here: Path, words: Sequence[str]) -> None:
    *sources, target = words
    for source in sources:
        if not let_through(ignore, source):
            raise Unfit(f"COPY {source}: .containerignore leaves it out")
        origin = project / source
        if origin.is_dir():
            unread = shutil.ignore_patterns("__pycache__")
            shutil.copytree(origin, here / target, dirs_exist_ok=True, ignore=unread)
        elif origin.is_file():
            into = here / target
            shutil.copy(origin, into / origin.name if into.is_dir() else into)
        else:
            raise Unfit(f"COPY {source}: there is no such file")


def _run(shown: str, command: str, here: Path, environment: Mapping[str, str]) -> None:
    given = {**environment, "PYTHON": sys.executable}
    try:
        done = subprocess.run(["sh", "-euc", command], cwd=here, env=given, timeout=_PATIENCE, check=False)
    except subprocess.TimeoutExpired as slow:
        raise Unfit(f"RUN {shown}: not done after {slow.timeout:g} s") from slow
    if done.returncode != 0:
        raise Unfit(f"RUN {shown}: status {done.returncode}; its output is above")


def tags(machine: str) -> list[str]:
    """The platforms that pip may take wheels of, newest last."""
    return [
        f"manylinux2014_{machine}",
        *(f"manylinux_2_{minor}_{machine}" for minor in range(_GLIBC[0], _GLIBC[1] + 1)),
    ]


def wheels(project: Path, python: str, machine: str, environment: Mapping[str, str]) -> int | None:
    """
    How many distributions pip would install there; None where the index has nothing at all for that machine.

    Raises `Unfit` where one has no wheel or no pin. Conditions on the interpreter in the dependencies' own requirements
    are taken as they are on this one: pip has no other way.
    """
    wanted = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    constraints = project / "constraints.txt"
    about = ["--constraint", str(constraints), *wanted]
    try:
        found = _asked(about, python, machine, environment)
    except Unfit:
        try:
            _asked(["--no-deps", CONTROL], python, machine, environment)
        except Unfit:
            return None
        raise
    wrong = unpinned(found, pins(constraints.read_text(encoding="utf-8")))
    if wrong:
        raise Unfit("\n".join(wrong))
    return len(found)


def _asked(about: Sequence[str], python: str, machine: str, environment: Mapping[str, str]) -> dict[str, str]:
    """The packages that pip would install, by normalised name. Raises `Unfit` where it finds no wheel."""
    found = [item["metadata"] for item in report(about, python, machine, environment)]
    return {normal(item["name"]): item["version"] for item in found}


def report(about: Sequence[str], python: str, machine: str, environment: Mapping[str, str]) -> list[JSON]:
    """The packages that pip would install, as in its report. Raises `Unfit` where it finds no wheel."""
    with tempfile.TemporaryDirectory() as scratch:
        written = Path(scratch) / "report.json"
        # Some versions of pip want a target, though with --dry-run nothing gets there.
        pip = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--dry-run", "--target", scratch]
        pip += ["--ignore-installed", "--report", str(written), "--only-binary=:all:", "--python-version", python]
        pip += [word for tag in tags(machine) for word in ("--platform", tag)]
        try:
            done = subprocess.run(
                [*pip, *about],
                env=dict(environment),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=_PATIENCE,
                check=False,
            )
        except subprocess.TimeoutExpired as slow:
            raise Unfit(f"{machine}: pip has not answered after {slow.timeout:g} s") from slow
        if done.returncode != 0:
            output = "\n".join(done.stdout.splitlines()[-_SHOWN:])
            raise Unfit(
                f"{machine}: a dependency has no wheel for Python {python}, or the index did not answer\n{output}"
            )
        found: list[JSON] = json.loads(written.read_text(encoding="utf-8"))["install"]
    return found


def main(project: Path) -> int:
    """Rehearse, and resolve for every architecture; the exit status."""
    environment = {"PIP_RETRIES": "10", **os.environ}
    try:
        python = python_of(steps((project / "Containerfile").read_text(encoding="utf-8")))
        with tempfile.TemporaryDirectory(prefix="gpufraction-image-") as scratch, ThreadPoolExecutor() as asking:
            # The image's user must get in.
            os.chmod(scratch, 0o755)
            counts = {
                name: asking.submit(wheels, project, python, machine, environment) for name, machine in MACHINES.items()
            }
            rehearse(project, Path(scratch).resolve(), environment)
        for name, count in counts.items():
            print(f"linux/{name}, Python {python}: {_count_text(count.result())}")
    except Unfit as unfit:
        print(unfit, file=sys.stderr)
        return 1
    return 0


def _count_text(count: int | None) -> str:
    return "this index has no wheels for it, so nothing is known" if count is None else f"{count} wheels, each pinned"


if __name__ == "__main__":
    sys.exit(main(Path(__file__).resolve().parents[2]))
