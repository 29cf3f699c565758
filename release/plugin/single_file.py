"""
The kubectl plugin as one file, for any Python 3.11 or newer: its packages from `plugin.lock`, and our own folders.

    python -m release.plugin.single_file --packages build/plugin --output build/kubectl-gpufraction

`make plugin` installs the packages by hash into the folder first. One file holds no compiled modules, hence the last
releases of the Kubernetes client that are plain Python. The same sources, lock and Python give the same bytes: names
are sorted, times are fixed, and what an installer or a machine adds is left out.

Must not: take a package that the lock does not name, or one that needs a compiled module.
"""

from __future__ import annotations

import argparse
import importlib.util
import marshal
import re
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from release.image.check import Unfit, normal, pins
from release.image.lock import PLUGIN_LOCK
from release.version import PROJECT, version

OURS = ("contract", "kubectl_gpufraction", "runtime")
"""Our folders in the file."""
WITH_SPEEDUPS = frozenset({"charset-normalizer", "pyyaml"})
"""Packages whose compiled modules only make them faster; they work without."""
_COMPILED = (".so", ".pyd", ".dylib")
_LEFT_OUT = (*_COMPILED, ".pyi", ".pyc")
_ABOUT = ("METADATA", "entry_points.txt")
"""A package's metadata that the plugin may read; the rest differs between machines."""
_FILE, _FOLDER = 0o100644 << 16, 0o040755 << 16 | 0x10
"""How a member is marked: as a file or as a folder, by Unix and by DOS."""
_TIME = (1980, 1, 1, 0, 0, 0)
_MAIN = b"from kubectl_gpufraction.__main__ import run\n\nrun()\n"
_FIRST_LINE = b"#!/usr/bin/env python3\n"


def distributions(folder: Path) -> dict[str, str]:
    """The installed versions in the folder by normalised name."""
    found = {}
    for about in sorted(folder.glob("*.dist-info")):
        name, _, number = about.name.removesuffix(".dist-info").rpartition("-")
        found[normal(name)] = number
    return found


def wrong(folder: Path, lock: str) -> list[str]:
    """A line for each package that is not as the lock has it, and for each that needs a compiled module."""
    found, locked = distributions(folder), pins("\n".join(re.findall(r"^[\w.-]+==[^ \n]+", lock, re.MULTILINE)))
    lines = [
        f"{name}: {found.get(name, 'not installed')}, and the lock has {locked.get(name, 'none')}"
        for name in sorted({*found, *locked})
        if found.get(name) != locked.get(name)
    ]
    for about in sorted(folder.glob("*.dist-info")):
        name = normal(about.name.removesuffix(".dist-info").rpartition("-")[0])
        record = (about / "RECORD").read_text(encoding="utf-8") if (about / "RECORD").is_file() else ""
        if name not in WITH_SPEEDUPS and any(
            line.partition(",")[0].endswith(_COMPILED) for line in record.splitlines()
        ):
            lines.append(f"{name}: it has compiled modules, which one file cannot hold")
    return lines


def members(folder: Path, project: Path) -> Iterator[tuple[str, bytes]]:
    """
    The names and contents of the file's members, in order; each module also compiled, for this Python.

    Folders are members too: without one, `zipimport` before Python 3.13 does not find a package that has no
    `__init__.py`, as `google`.
    """
    sources = {str(path.relative_to(folder)): path for path in folder.rglob("*") if _kept(path.relative_to(folder))}
    for name in OURS:
        found = (project / name).rglob("*")
        sources |= {str(path.relative_to(project)): path for path in found if _kept(path.relative_to(project))}
    contents = {name: path.read_bytes() for name, path in sources.items() if path.is_file()}
    own = f"gpufraction-{version(project)}.dist-info/METADATA"
    contents[own] = f"Metadata-Version: 2.1\nName: gpufraction\nVersion: {version(project)}\n".encode()
    contents["__main__.py"] = _MAIN
    contents |= {f"{above}/": b"" for name in contents for above in PurePosixPath(name).parents if above.name}
    for name in sorted(contents):
        yield name, contents[name]
        if name.endswith(".py") and name != "__main__.py":
            yield f"{name}c", _compiled(name, contents[name])


def _kept(path: Path) -> bool:
    if path.suffix in _LEFT_OUT or path.parts[0] == "bin" or "__pycache__" in path.parts:
        return False
    return not path.parts[0].endswith(".dist-info") or path.name in _ABOUT


def _compiled(name: str, source: bytes) -> bytes:
    """The module's byte code, which is not compared with its source when it is loaded."""
    code = compile(source, name, "exec", dont_inherit=True, optimize=0)
    head = importlib.util.MAGIC_NUMBER + (0b01).to_bytes(4, "little") + importlib.util.source_hash(source)
    # Version 2 has no references between equal objects: whether there are any depends on what else this process holds.
    return head + marshal.dumps(code, 2)


def write(output: Path, folder: Path, project: Path) -> None:
    """Write the file. Raises `Unfit` where the packages are not those of the lock."""
    lock = project / PLUGIN_LOCK
    if lines := wrong(folder, lock.read_text(encoding="utf-8")):
        raise Unfit("\n".join(lines))
    output.parent.mkdir(parents=True, exist_ok=True)
    with output.open("wb") as file:
        file.write(_FIRST_LINE)
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            for name, content in members(folder, project):
                member = zipfile.ZipInfo(name, _TIME)
                member.compress_type = zipfile.ZIP_DEFLATED
                member.create_system = 3
                member.external_attr = _FOLDER if member.is_dir() else _FILE
                archive.writestr(member, content)
    output.chmod(0o755)


def main(words: list[str], project: Path = PROJECT) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(prog="python -m release.plugin.single_file")
    parser.add_argument("--packages", required=True, type=Path, help="the folder with the packages of the lock")
    parser.add_argument("--output", required=True, type=Path, help="the file to write")
    given = parser.parse_args(words)
    try:
        write(given.output, given.packages, project)
    except Unfit as unfit:
        print(unfit, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
