"""
`make lock`: requirements.lock, the hashes of every wheel that the pinned versions may be installed from; and the same
for the plugin in one file, whose packages are plain Python and therefore of older versions.

pip itself resolves, from the index, the packages for each Python and each architecture, and reports their hashes.
A wheel's content is trusted once, when this runs, and never again: the image is built with `--require-hashes`, so a
file that is exchanged later is refused. Wheels of a local folder do not count, since they may have been built here.

Must not: choose a version; versions are in constraints.txt, and the plugin's in release/plugin/plugin.txt.
"""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from release.image.check import Unfit, normal, pins, unpinned
from release.image.rehearse import MACHINES, report

LOCK = "requirements.lock"
PLUGIN_LOCK = "release/plugin/plugin.lock"
PLUGIN_PINS = "release/plugin/plugin.txt"
PLUGIN_REQUIREMENTS = ("kubernetes>=30,<34", "google-auth<2.40", "PyYAML>=6")
"""The needs of the plugin in one file: the last releases of the client that are plain Python."""
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
"""Those that the image, its rehearsal and a workplace may have."""
IMAGE_EXTRAS = ("dra",)
"""Extras that the image has too: one image serves nodes of every kind of delivery."""
PROGRAMS, BUILD, TOOLS = "# -- the programs", "# -- what builds our wheel", "# -- the tools of this repository"
"""The headings of the file's parts; the image's build takes the first two."""
_PLUGIN_HEAD = """\
# Made by `make lock` from plugin.txt; not edited by hand. The packages of the kubectl plugin in one file.
# Every wheel for Linux on x86_64 and aarch64, for each Python that is supported.
"""
_HEAD = """\
# Made by `make lock` from pyproject.toml and constraints.txt; not edited by hand.
# Every wheel for Linux on x86_64 and aarch64, for each Python that is supported.
"""

Hashes = dict[str, set[str]]
"""Hashes by `name==version`."""


def wanted(project: Path) -> tuple[list[str], list[str], list[str]]:
    """The requirements of the programs, of our wheel's build, and of the tools, as pyproject.toml has them."""
    about = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))
    extras = about["project"].get("optional-dependencies", {})
    ours = [line for name in IMAGE_EXTRAS for line in extras.get(name, ())]
    others = (lines for name, lines in extras.items() if name not in IMAGE_EXTRAS)
    tools = [line for lines in others for line in lines if not line.startswith("gpufraction[")]
    return [*about["project"]["dependencies"], *ours], about["build-system"]["requires"], tools


def hashes(
    requirements: Iterable[str], constraints: Path, python: str, machine: str, environment: Mapping[str, str]
) -> Hashes:
    """The packages that pip would install there. Raises `Unfit` if one has no wheel or pin, or is from elsewhere."""
    listed = list(requirements)
    if not listed:
        return {}
    items = report(["--constraint", str(constraints), *listed], python, machine, environment)
    installed = {normal(item["metadata"]["name"]): item["metadata"]["version"] for item in items}
    if wrong := unpinned(installed, pins(constraints.read_text(encoding="utf-8"))):
        raise Unfit("\n".join(wrong))
    found: Hashes = {}
    for item in items:
        name, version = normal(item["metadata"]["name"]), item["metadata"]["version"]
        source = item["download_info"]
        if not source["url"].startswith("https://"):
            raise Unfit(f"{name}=={version} is from {source['url'].partition(':')[0]}:, which is no index")
        found[f"{name}=={version}"] = {source["archive_info"]["hashes"]["sha256"]}
    return found


def together(parts: Iterable[Hashes]) -> Hashes:
    """The hashes of several places."""
    found: Hashes = {}
    for part in parts:
        for pin, more in part.items():
            found.setdefault(pin, set()).update(more)
    return found


def text(programs: Hashes, build: Hashes, tools: Hashes) -> str:
    """The file."""
    rest = {pin: found for pin, found in tools.items() if pin not in programs and pin not in build}
    parts = ((PROGRAMS, programs), (BUILD, build), (TOOLS, rest))
    return _HEAD + "".join(f"\n{head}\n{_lines(part)}" for head, part in parts)


def plugin_text(packages: Hashes) -> str:
    """The file of the plugin's packages."""
    return f"{_PLUGIN_HEAD}\n{_lines(packages)}"


def _lines(part: Hashes) -> str:
    return "".join(
        " \\\n".join([pin, *(f"    --hash=sha256:{digest}" for digest in sorted(part[pin]))]) + "\n"
        for pin in sorted(part, key=lambda pin: pin.partition("=="))
    )


def main(project: Path) -> int:
    """Resolve everything and write the file; the exit status."""
    # Neither a local folder of wheels nor a configured one: only the index counts.
    environment = {name: value for name, value in os.environ.items() if name != "PIP_FIND_LINKS"}
    environment |= {"PIP_CONFIG_FILE": os.devnull, "PIP_RETRIES": "10"}
    places = [(python, machine) for python in PYTHONS for machine in MACHINES.values()]
    programs, build, tools = wanted(project)
    try:
        with ThreadPoolExecutor(2) as asking:

            def everywhere(requirements: Iterable[str], constraints: str = "constraints.txt") -> Hashes:
                listed, pinned = list(requirements), project / constraints
                return together(asking.map(lambda at: hashes(listed, pinned, at[0], at[1], environment), places))

            made = {
                LOCK: text(everywhere(programs), everywhere(build), everywhere(tools)),
                PLUGIN_LOCK: plugin_text(everywhere(PLUGIN_REQUIREMENTS, PLUGIN_PINS)),
            }
    except Unfit as unfit:
        print(unfit, file=sys.stderr)
        return 1
    for name, lines in made.items():
        (project / name).write_text(lines, encoding="utf-8")
        print(f"{name}: {lines.count('==')} distributions, {lines.count('--hash=')} wheels")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(__file__).resolve().parents[2]))
