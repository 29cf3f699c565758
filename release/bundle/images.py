"""
Every image that the manifests and samples name: those that a bundle must have, and those that a mirror may leave out.

A third-party image of the manifests is in the bundle only by its digest: a tag may get other content later. Samples are
examples, whose images are listed and not included. Pure but for reading the files.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

OURS = "gpufraction"
_IMAGE = re.compile(r"^[ \t]*(?:- )?image: *[\"']?(?P<image>[^\s\"'#]+)", re.MULTILINE)
_BASE = re.compile(r"^ARG PYTHON=(?P<image>\S+)", re.MULTILINE)
_FOLDERS = ("manifests", "samples")
MAIN = _FOLDERS[0]


@dataclass(frozen=True, slots=True)
class Image:
    """`name` as the files have it, with tag and digest. `where`: the files, from the project's folder."""

    name: str
    where: tuple[str, ...]

    @property
    def digest(self) -> str:
        """`sha256:...`, or empty where it is named by its tag alone."""
        return self.name.partition("@")[2]

    @property
    def included(self) -> bool:
        """Whether it belongs in a bundle."""
        return self.name != OURS and any(each.startswith(f"{MAIN}/") for each in self.where)

    @property
    def file(self) -> str:
        """The name of its archive in a bundle."""
        return f"{self.name.partition('@')[0].rpartition('/')[2].replace(':', '-')}.tar"


def images(project: Path) -> tuple[Image, ...]:
    """All of them, by name; ours is `gpufraction`."""
    found = defaultdict[str, list[str]](list)
    for where, name in _named(project):
        found[name].append(where)
    return tuple(Image(name, tuple(dict.fromkeys(where))) for name, where in sorted(found.items()))


def base(project: Path) -> str:
    """The image from which ours is built, which is part of ours."""
    found = _BASE.search((project / "Containerfile").read_text(encoding="utf-8"))
    return found["image"] if found is not None else ""


def _named(project: Path) -> Iterator[tuple[str, str]]:
    for folder in _FOLDERS:
        for path in sorted((project / folder).rglob("*.yaml")):
            text = path.read_text(encoding="utf-8")
            for found in _IMAGE.finditer(text):
                yield str(path.relative_to(project)), found["image"]


def listed(found: tuple[Image, ...], version: str, built_from: str) -> str:
    """The text of `images.txt`: the images in the bundle, and those that samples also need."""
    included = [each for each in found if each.included]
    lines = ["# In this bundle, as archives in images/.", f"gpufraction:{version}  # built from {built_from}"]
    lines += [each.name for each in included]
    lines += [
        "",
        "# Not in this bundle: images of samples, and where they are named. Mirror those that you want to try.",
    ]
    lines += [f"{each.name}  # {', '.join(each.where)}" for each in found if not each.included and each.name != OURS]
    return "\n".join(lines) + "\n"
