"""
`python -m release.warnings [FILE ...]`: writes the policy, and prints how many ordinary names would cause a warning.

It examines the resources of other systems in `others.txt`, and those in limits and requests of the repository's own
manifests and samples, or of the named files.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from release.warnings import names, policy

_ROOT = Path(__file__).resolve().parents[2]
FILE = _ROOT / "manifests" / "policies" / "warnings.yaml"


def resources(document: Any) -> Iterator[str]:
    """Every name in limits and requests anywhere in a document."""
    if isinstance(document, dict):
        for key, value in document.items():
            if key in ("limits", "requests") and isinstance(value, dict):
                yield from map(str, value)
            yield from resources(value)
    elif isinstance(document, list):
        for each in document:
            yield from resources(each)


def used(files: Iterable[Path]) -> Iterator[str]:
    """The same of files with YAML; one that cannot be parsed, as a chart's template, has none."""
    for file in files:
        try:
            yield from resources(list(yaml.safe_load_all(file.read_text(encoding="utf-8"))))
        except yaml.YAMLError:
            continue


def report(found: Iterable[str]) -> Iterator[str]:
    """The policy's findings on the names of others, and on these."""
    yield (
        f"{len(names.OTHERS)} resources of other systems: {len(names.ORDINARY)} resemble a known name "
        f"({', '.join(names.ORDINARY)}) and are excepted"
    )
    manifests = sorted(set(found))
    wrong = {name: near for name, near in names.alarms(manifests).items() if name not in names.ORDINARY}
    listed = "; ".join(f"{name}: did you mean {near}?" for name, near in wrong.items())
    yield f"{len(manifests)} resources of manifests: {len(wrong)} false alarms{f' ({listed})' if listed else ''}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the policy's file and print the report."""
    FILE.write_text(policy.text(), encoding="utf-8")
    given = [Path(each) for each in (sys.argv[1:] if arguments is None else arguments)]
    own = (file for folder in ("manifests", "samples") for file in (_ROOT / folder).rglob("*.yaml"))
    print(*report(used(given or sorted(own))), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
