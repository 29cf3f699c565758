"""
`make renew`: constraints.txt with the newest versions that pyproject.toml allows, each with a wheel for every supported
Python; and the same for the packages of the plugin in one file.

The oldest Python decides, since the newer ones support its versions too; a distribution that only a newer one
needs is added from there. `make lock` follows, and refuses a version that has no wheel somewhere.

Must not: change pyproject.toml, or change a file unless every query succeeded.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from release.image.check import Unfit, normal
from release.image.lock import PLUGIN_PINS, PLUGIN_REQUIREMENTS, PYTHONS, wanted
from release.image.rehearse import MACHINES, report

JSON = dict[str, Any]
Report = Callable[[Sequence[str], str, str, Mapping[str, str]], list[JSON]]


def newest(requirements: Iterable[str], environment: Mapping[str, str], ask: Report = report) -> dict[str, str]:
    """The versions by each distribution's own name. Raises `Unfit` where something has no wheel."""
    found: dict[str, tuple[str, str]] = {}
    for python in PYTHONS:
        for item in ask(list(requirements), python, next(iter(MACHINES.values())), environment):
            about = item["metadata"]
            found.setdefault(normal(about["name"]), (about["name"], about["version"]))
    return dict(found.values())


def text(versions: Mapping[str, str]) -> str:
    """The file."""
    return "".join(f"{name}=={versions[name]}\n" for name in sorted(versions, key=str.lower))


def main(project: Path, ask: Report = report) -> int:
    """Resolve, then write; the exit status."""
    environment = {name: value for name, value in os.environ.items() if name != "PIP_FIND_LINKS"}
    environment |= {"PIP_CONFIG_FILE": os.devnull, "PIP_RETRIES": "10"}
    try:
        made = {
            "constraints.txt": newest([line for part in wanted(project) for line in part], environment, ask),
            PLUGIN_PINS: newest(PLUGIN_REQUIREMENTS, environment, ask),
        }
    except Unfit as unfit:
        print(unfit, file=sys.stderr)
        return 1
    for name, versions in made.items():
        (project / name).write_text(text(versions), encoding="utf-8")
        print(f"{name}: {len(versions)} distributions; now run the tests, with `make test`")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(__file__).resolve().parents[2]))
