"""Deprecated names: how those of a pod are found, and that the release notes and the table agree."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from contract.deprecations import DEPRECATED, Deprecation, used
from tests.unit.contract.strategies import JSON as ANY_JSON

JSON = dict[str, Any]
ROOT = Path(__file__).parents[3]
RELEASE = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
CHANGES = (ROOT / "CHANGELOG.md").read_text()
OLD = Deprecation("example.com/old", "use example.com/new", "0.2.0", "0.4.0")
OTHER = Deprecation("example.com/other", "leave it out", "0.3.0", "0.5.0")


def pod(
    *, annotations: JSON | None = None, labels: JSON | None = None, kind: str = "containers", **amounts: Any
) -> JSON:
    return {
        "metadata": {"annotations": annotations, "labels": labels},
        "spec": {kind: [{"name": "idle"}, {"name": "main", "resources": amounts}]},
    }


USED = {
    "an annotation": (pod(annotations={"example.com/old": "1"}), [OLD]),
    "an annotation of one container": (pod(annotations={"example.com/old.main": "1"}), [OLD]),
    "a label": (pod(labels={"example.com/old": "1"}), [OLD]),
    "a limit": (pod(limits={"example.com/old": 1}), [OLD]),
    "a request of an init container": (pod(kind="initContainers", requests={"example.com/old": 1}), [OLD]),
    "two, each once": (
        pod(labels={"example.com/other": ""}, limits={"example.com/old": 1}, requests={"example.com/old": 1}),
        [OLD, OTHER],
    ),
    "another name that begins so": (pod(annotations={"example.com/older": "1"}), []),
    "nothing": (pod(), []),
}


@pytest.mark.parametrize(("made", "found"), USED.values(), ids=USED.keys())
def test_the_deprecated_names_of_a_pod(made: JSON, found: list[Deprecation]) -> None:
    assert used(made, (OLD, OTHER)) == tuple(found)


@given(ANY_JSON)
def test_any_pod_can_be_looked_at(value: Any) -> None:
    made = value if isinstance(value, dict) else {"metadata": value, "spec": {"containers": value}}
    assert set(used(made, (OLD, OTHER))) <= {OLD, OTHER}


def test_the_warning_says_what_until_when_and_what_instead() -> None:
    assert OLD.warning == "example.com/old is deprecated since 0.2.0 and read until 0.4.0: use example.com/new"


# -- the table of this release ------------------------------------------------------------------------------------


def wrong(table: tuple[Deprecation, ...], release: str, changes: str) -> list[str]:
    """The promises that the table does not keep."""
    found = []
    for row in table:
        if not notes(changes, row.since, release).count(row.name):
            found.append(f"{row.name}: CHANGELOG.md does not say under {row.since} that it is deprecated")
        if minor(row.until) < (minor(row.since)[0], minor(row.since)[1] + 2):
            found.append(f"{row.name}: it must be read for two minor releases after {row.since}")
        if minor(row.until) < minor(release):
            found.append(f"{row.name}: read until {row.until}, and this is {release}; remove it")
    return [*found, *(["the rows are not in the order of their names"] if [*table] != sorted(table, key=name) else [])]


def name(row: Deprecation) -> str:
    return row.name


def minor(release: str) -> tuple[int, int]:
    major, minor, *_ = release.split(".")
    return int(major), int(minor)


def notes(changes: str, release: str, present: str) -> str:
    """The notes of a release: its own, and the unreleased ones if it is the present or a later release."""
    parts: dict[str, str] = dict(re.findall(r"^## (\S+)[^\n]*\n(.*?)(?=^## |\Z)", changes, re.MULTILINE | re.DOTALL))
    unreleased = parts.get("Unreleased", "") if minor(release) >= minor(present) else ""
    return parts.get(release, "") + unreleased


def test_the_table_and_the_release_notes_agree() -> None:
    assert wrong(DEPRECATED, RELEASE, CHANGES) == []


NOTES = "# Changelog\n\n## Unreleased\n\n- example.com/other is deprecated.\n\n## 0.2.0\n\n- example.com/old, too.\n"
BROKEN = {
    "all is well": ((OLD, OTHER), "0.3.0", []),
    "in its first release": ((OLD,), "0.2.0", []),
    "a note under another release": (
        (Deprecation("example.com/old", "", "0.3.0", "0.5.0"),),
        "0.3.0",
        ["example.com/old: CHANGELOG.md does not say under 0.3.0 that it is deprecated"],
    ),
    "read for too short a time": (
        (Deprecation("example.com/old", "", "0.2.0", "0.3.0"),),
        "0.2.0",
        ["example.com/old: it must be read for two minor releases after 0.2.0"],
    ),
    "past its end": ((OLD,), "0.5.0", ["example.com/old: read until 0.4.0, and this is 0.5.0; remove it"]),
    "out of order": ((OTHER, OLD), "0.3.0", ["the rows are not in the order of their names"]),
}


@pytest.mark.parametrize(("table", "release", "found"), BROKEN.values(), ids=BROKEN.keys())
def test_a_table_that_promises_what_it_does_not_keep(
    table: tuple[Deprecation, ...], release: str, found: list[str]
) -> None:
    assert wrong(table, release, NOTES) == found
