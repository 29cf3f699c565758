"""
The version: in `pyproject.toml`, and copied to every place that names our image, our chart or the project with it.

    python -m release.version                 # print it; fails where a copy differs
    python -m release.version --tag v0.1.0    # fails also if the tag names another version
    python -m release.version --set 0.2.0     # write it everywhere

Must not: need anything beyond the standard library; a release starts with it.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
FORM = re.compile(r"\d+\.\d+\.\d+((a|b|rc)\d+)?")
"""The form of a version; Python and semantic versioning both accept it without the last part."""
_HELD = re.compile(r'(?m)^(?P<before>version = ")(?P<version>[^"]+)')
_COPIES = (
    # An image with its tag, as in `make image IMAGE=REGISTRY/gpufraction:0.1.0`.
    re.compile(r"(?P<before>\bgpufraction:)(?P<version>\d+\.\d+\.\d+[0-9a-z]*)\b"),
    # The same in a kustomization, which may give the image another name before its tag.
    re.compile(
        r"(?P<before>\bname: gpufraction\n(?:(?: *#| *newName:).*\n)* *newTag: [\"']?)"
        r"(?P<version>\d+\.\d+\.\d+[0-9a-z]*)"
    ),
    # The chart's file.
    re.compile(r"(?P<before>\bgpufraction-)(?P<version>\d+\.\d+\.\d+[0-9a-z]*)(?=\.tgz)"),
    # The first lines of the READMEs.
    re.compile(r"(?P<before>\bVersion |版本 )(?P<version>\d+\.\d+\.\d+[0-9a-z]*)"),
)
_PLACES = ("README*.md", "docs/**/*.md", "manifests/**/*.yaml", "manifests/**/*.md")
_NOT = "docs/decisions/"
"""A decision keeps the facts of its time."""


def version(project: Path = PROJECT) -> str:
    """The version that `pyproject.toml` has."""
    about = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))
    return str(about["project"]["version"])


def files(project: Path) -> Iterator[Path]:
    """The files that may have the version."""
    for pattern in _PLACES:
        for path in sorted(project.glob(pattern)):
            if not path.relative_to(project).as_posix().startswith(_NOT):
                yield path


def differing(project: Path) -> list[str]:
    """A line for each copy that is not the version."""
    wanted = version(project)
    found = []
    for path in files(project):
        text = path.read_text(encoding="utf-8")
        for match in (match for pattern in _COPIES for match in pattern.finditer(text)):
            if match["version"] != wanted:
                line = text.count("\n", 0, match.start("version")) + 1
                found.append(f"{path.relative_to(project)}:{line}: {match['version']}, not {wanted}")
    return found


def write(project: Path, wanted: str) -> list[Path]:
    """Make it the version everywhere; the files that changed."""
    changed = []
    held = ((project / "pyproject.toml", (_HELD,)), *((path, _COPIES) for path in files(project)))
    for path, patterns in held:
        before = text = path.read_text(encoding="utf-8")
        for pattern in patterns:
            text = pattern.sub(lambda match: match["before"] + wanted, text)
        if text != before:
            path.write_text(text, encoding="utf-8")
            changed.append(path)
    return changed


def main(words: list[str], project: Path = PROJECT) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(prog="python -m release.version", description="the version of a release")
    parser.add_argument("--tag", help="the tag that must name the version")
    parser.add_argument("--set", help="the new version", metavar="VERSION")
    asked = parser.parse_args(words)
    if asked.set:
        if not FORM.fullmatch(asked.set):
            print(f"{asked.set} is not a version such as 1.2.3 or 1.2.3rc1", file=sys.stderr)
            return 1
        for path in write(project, asked.set):
            print(path.relative_to(project))
        print("now run `make docs`, and add the version's section to CHANGELOG.md")
        return 0
    wrong = differing(project)
    if asked.tag and asked.tag != f"v{version(project)}":
        wrong.append(f"the tag is {asked.tag}, and pyproject.toml has {version(project)}")
    print("\n".join(wrong) or version(project), file=sys.stderr if wrong else sys.stdout)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
