"""
Checks the environment of the image: it has the right packages at the tested versions, and every program starts.

Run by `build.sh` with the environment's own Python, in the image's build stage and in CI alike. The programs are
started as on a cluster: as an unprivileged user, and without access to the sources.

Must not: need anything beyond the standard library, change the environment, or find our code anywhere but in it.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import metadata, util
from pathlib import Path

OURS = "gpufraction"
NOBODY = 65532
"""The image's user and group."""
PROGRAMS = ("webhook", "allocator", "nodeagent")
PLUGIN = "kubectl_gpufraction"
"""For its page: manifests/components/ui."""
ABSENT = ("pip", "setuptools", "pytest", "tests", "playground", "benchmarks")
"""Modules that must not be installed alongside a cluster's admission."""
_STARTS = (
    *((program, "--help") for program in (*PROGRAMS, PLUGIN)),
    ("webhook", "conditions"),
    ("nodeagent", "inventory", "--simulate", "1 x Tesla T4 15109MiB"),
)
"""The commands of `python -m` that end by themselves and need no cluster."""
_PATIENCE = 180.0
"""Seconds for one program to start and end; under emulation of another machine it takes ten and more."""


class Unfit(Exception):
    """The environment is not what the image must be; the message says what to change."""


def pins(text: str) -> dict[str, str]:
    """The versions that a constraints file gives, by normalised name. Raises `Unfit` for any other kind of line."""
    found = {}
    for line in filter(None, (line.partition("#")[0].strip() for line in text.splitlines())):
        name, equals, version = line.partition("==")
        if not equals or not re.fullmatch(r"[\w.!+-]+", version.strip()):
            raise Unfit(f"constraints.txt: {line!r} is not NAME==VERSION")
        found[normal(name)] = version.strip()
    return found


def normal(name: str) -> str:
    """The one spelling of a distribution's name (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


def unpinned(installed: Mapping[str, str], pinned: Mapping[str, str]) -> list[str]:
    """A line for each distribution that is there at another version than the pinned one, or without a pin."""
    return [
        f"constraints.txt: {name}=={version} is installed, {_text(pinned.get(name))}; pin the version that was tested"
        for name, version in sorted(installed.items())
        if name != OURS and pinned.get(name) != version
    ]


def _text(pin: str | None) -> str:
    return f"{pin} is pinned" if pin else "it has no pin"


def lacking(source: Path, site: Path, packages: Iterable[str]) -> list[str]:
    """A line for each module of the copied packages that the environment has not."""
    files = sorted(file.relative_to(source) for name in packages for file in (source / name).rglob("*.py"))
    return [f"{file} was copied and is not installed" for file in files if not (site / file).is_file()]


def packages_in(source: Path) -> list[str]:
    """The packages in that folder."""
    return sorted(file.parent.name for file in source.glob("*/__init__.py"))


def strays(modules: Iterable[str]) -> list[str]:
    """A line for each of those modules that can be imported here."""
    return [f"{name} is in the image, and has no place there" for name in modules if util.find_spec(name)]


def import_all(packages: Iterable[str], site: Path) -> list[str]:
    """Import every module of the packages; a line for each that cannot be, or that comes from elsewhere."""
    wrong = []
    for name in _modules(packages, site):
        try:
            file = importlib.import_module(name).__file__ or ""
        except ImportError as error:
            wrong.append(f"{name} cannot be imported: {error}; is what it needs copied, or a dependency?")
        else:
            if not Path(file).resolve().is_relative_to(site):
                wrong.append(f"{name} comes from {file}, not from the image")
    return wrong


def _modules(packages: Iterable[str], site: Path) -> Iterator[str]:
    for package in packages:
        yield package
        for found in pkgutil.iter_modules([str(site / package)], f"{package}."):
            yield from _modules([found.name], site) if found.ispkg else [found.name]


def writable(root: Path) -> list[str]:
    """A line for each thing below that the image's user could change, if the root file system were not read-only."""
    found = []
    for path in sorted(root.rglob("*")):
        seen = path.lstat()
        if not path.is_symlink() and (seen.st_mode & 0o002 or NOBODY in (seen.st_uid, seen.st_gid)):
            found.append(f"{path} can be written to by user {NOBODY}")
    return found


def printed(root: Path) -> dict[str, tuple[int, int]]:
    """Time and size by path, which show whether anything was written."""
    return {str(path): (path.lstat().st_mtime_ns, path.lstat().st_size) for path in root.rglob("*")}


def started(command: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Run the command from the root directory; a line where it fails or prints nothing."""
    shown = " ".join(command)
    try:
        done = subprocess.run(
            command,
            cwd="/",
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PATIENCE,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return [f"{shown}: {error}"]
    if done.returncode != 0 or not done.stdout:
        return [f"{shown}: status {done.returncode}, {len(done.stdout)} characters of output\n{done.stderr[-2000:]}"]
    return []


def become_nobody() -> bool:
    """Give up root for the image's user; False where this is not root's, or that user cannot reach this Python."""
    if os.geteuid() != 0:
        return False
    try:
        command = [sys.executable, "-c", ""]
        subprocess.run(command, user=NOBODY, group=NOBODY, extra_groups=[], cwd="/", capture_output=True, check=True)
    except (PermissionError, subprocess.CalledProcessError):
        return False
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    return True


def troubles(source: Path, prefix: Path, site: Path) -> list[str]:
    """Everything that is wrong with the environment at `prefix`, made of `source`."""
    installed = {normal(found.metadata["Name"]): found.version for found in metadata.distributions(path=[str(site)])}
    pinned = pins((source / "constraints.txt").read_text(encoding="utf-8"))
    packages = packages_in(source)
    before = printed(prefix)
    environment = {
        "PATH": f"{prefix / 'bin'}:{os.defpath}",
        "HOME": "/",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
    }
    commands = [["python", "-m", *start] for start in _STARTS] + [[f"{OURS}-{name}", "--help"] for name in PROGRAMS]
    wrong = [
        *unpinned(installed, pinned),
        *lacking(source, site, packages),
        *strays(ABSENT),
        *import_all(packages, site),
        *writable(prefix),
        *(line for command in commands for line in started(command, environment)),
    ]
    changed = printed(prefix)
    wrong += [f"{path} was written to" for path in sorted(before | changed) if before.get(path) != changed.get(path)]
    return wrong


def main(arguments: Sequence[str]) -> int:
    """Check this Python's environment, made of the sources in the one argument; the exit status."""
    (source,) = arguments
    sys.dont_write_bytecode = True
    prefix, site = Path(sys.prefix).resolve(), Path(sysconfig.get_path("purelib")).resolve()
    place = Path(source).resolve()
    os.chdir("/")
    nobody = become_nobody()
    try:
        wrong = troubles(place, prefix, site)
    except Unfit as unfit:
        wrong = [str(unfit)]
    for line in wrong:
        print(line, file=sys.stderr)
    if wrong:
        return 1
    count = sum(1 for _ in metadata.distributions(path=[str(site)]))
    who = (
        f"user {NOBODY}" if nobody else f"user {os.geteuid()}; {NOBODY} only where root runs this with a public Python"
    )
    print(f"{prefix}: {count} distributions, each pinned; every module and program starts, as {who}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
