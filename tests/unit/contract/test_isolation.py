"""The table of isolation levels, and every list of them that is not generated from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from contract.isolation import (
    ISOLATION,
    LEVELS,
    LIMITING,
    NO_LEVEL,
    SHOWING_CARDS,
    SHOWING_SHARES,
    WITH_VOLUMES,
    listed,
    quoted,
)

_ROOT = Path(__file__).parents[3]


PUBLISHED = {
    "driver": (True, True, False),
    "mps": (True, False, True),
    "preload": (True, True, True),
    "watch": (False, None, False),
}
"""What each level does, the strongest first. A new level need not be here."""


def test_levels_that_other_versions_read_stay() -> None:
    found = {
        level.name: (level.limits, level.shows_share, level.volumes) for level in LEVELS if level.name in PUBLISHED
    }
    assert list(found.items()) == list(PUBLISHED.items())
    assert NO_LEVEL == "none"


def test_lists_follow_from_the_table() -> None:
    lists = (LIMITING, WITH_VOLUMES, SHOWING_SHARES, SHOWING_CARDS)
    wanted = ({"driver", "mps", "preload"}, {"mps", "preload"}, {"driver", "preload"}, {"mps"})
    assert tuple(PUBLISHED.keys() & set(each) for each in lists) == wanted


def test_a_sentence_lists_names() -> None:
    assert [listed(("a",)), listed(("a", "b"), "and"), listed(quoted("abc"))] == ["a", "a and b", "`a`, `b` or `c`"]


def test_the_gpunode_definition_has_these_levels() -> None:
    definition = yaml.safe_load((_ROOT / "manifests/base/gpunodes.crd.yaml").read_text())
    schema: Any = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    assert tuple(schema["properties"]["status"]["properties"]["isolation"]["items"]["enum"]) == ISOLATION


def test_the_page_describes_these_levels() -> None:
    page = (_ROOT / "docs/isolation.md").read_text()
    table = page.partition("| level | how it limits")[2].partition("\n\n")[0]
    rows = [line.split("|")[1].strip() for line in table.splitlines()[2:]]
    assert tuple(rows) == quoted(ISOLATION)
    containers = f"`GPUFRACTION_ISOLATION` says which: {listed(quoted((*WITH_VOLUMES, NO_LEVEL)))}."
    assert containers in page
